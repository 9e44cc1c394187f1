"""The real steps compiled for a TPU that is not there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from astra_jax.config import ConfigError, load_config
from astra_jax.model.qwen3 import _project
from astra_jax.model.sharding import MeshConfig
from astra_jax.plan import PLAN_ENVIRONMENT
from astra_jax.plan.not_yet_runnable import not_yet_runnable
from astra_jax.plan.plan import Plan, PlanConfig, StepPlan, plan
from astra_jax.plan.steps import _partitioner_bytes

REPOSITORY = Path(__file__).parents[3]

_TINY = """
[model]
vocab_size = 1024
hidden_size = 256
num_layers = 2
num_heads = 4
num_kv_heads = 2
head_dim = 128
intermediate_size = 512
dtype = "bfloat16"
remat = "offload"
[mesh]
fsdp = 2
context = 2
[rl_learner]
sequence_tokens = 1024
[rollout_mesh]
data = 2
tensor = 2
[prefill]
prompts_per_shard = 2
episodes_per_prompt = 4
prompt_tokens = 1024
response_tokens = 2048
[decode]
prompts_per_shard = 2
episodes_per_prompt = 4
prompt_tokens = 1024
response_tokens = 2048
"""


def _python_path():
    return os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])


_PLAN = """
import json, sys
from pathlib import Path
from astra_jax.config import load_config
from astra_jax.plan.plan import PlanConfig, plan
print(json.dumps(plan(load_config(PlanConfig, Path(sys.argv[1])), sys.argv[2]).to_json()))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install libtpu")
def test_tiny_steps_are_compiled_for_an_absent_tpu_and_once_only(tmp_path):
    config = tmp_path / "plan.toml"
    config.write_text(_TINY)

    def answer():
        done = subprocess.run(
            [sys.executable, "-c", _PLAN, str(config), "v5e:2x2"],
            env=os.environ
            | PLAN_ENVIRONMENT
            | {"XLA_FLAGS": "", "PYTHONPATH": _python_path(), "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    first, again = answer(), answer()
    assert first["chips"] == 4
    assert first["fits"]
    steps = first["steps"]
    assert steps.keys() == {"rl_learner", "prefill", "decode"}
    for name, step in steps.items():
        assert step["compiled_flops"] >= step["model_flops"]
        assert sum(step["by_category_gib"].values()) == pytest.approx(16, rel=1e-3)
        assert 0 < step["peak_gib_per_chip"] < 1
        assert not step["from_cache"]
        assert again["steps"][name]["from_cache"]
        assert again["steps"][name]["by_category_gib"] == step["by_category_gib"]
    # On each of 2 x 2 chips: 2 layers, keys and values, 1 of 2 key heads of width 128, bfloat16; in pages of 32 tokens
    # 2 prompts, 8 episodes, which need not begin with a page, and two pages to copy.
    pool_bytes = 2 * 2 * 128 * 2 * 32 * (2 * 32 + 8 * (64 + 1) + 2)
    for name in ("prefill", "decode"):
        assert steps[name]["by_category_gib"]["KV pool"] * 2**30 == pool_bytes
    # Of 512 tokens in 2 layers, bfloat16: a layer's input, what its heads attended to, the input of its MLP.
    offloaded_bytes = 2 * 512 * 2 * (256 + 512 + 256)
    assert offloaded_bytes <= steps["rl_learner"]["host_gib_per_chip"] * 2**30 < 1.2 * offloaded_bytes
    assert steps["decode"]["bound"] == "hbm"


@pytest.mark.parametrize(
    ("overrides", "topology", "message"),
    [
        ((), "v9:2x2", "expected a topology of v5e, v5p, v6e"),
        (("mesh.tensor=3",), "v5p:4x4x4", "tensor = 3 does not divide num_heads = 40"),
        (("rl_learner.sequence_tokens=74752",), "v5p:4x4x4", "multiple of 4096 tokens, found 74752"),
        (("rl_learner.sequence_tokens=262144",), "v5p:4x4x4", "exceed the model's context of 131072"),
        (('model="qwen3-15b"',), "v5p:4x4x4", "expected one of qwen3-0.6b"),
        (("rollout_mesh.tensor=20",), "v5p:4x4x4", "tensor = 20 does not divide num_kv_heads = 8"),
        (("rollout_mesh.context=2",), "v5p:4x4x4", "rollout_mesh.context: expected 1"),
        (("prefill.prompt_tokens=25000",), "v5p:4x4x4", "multiple of 128 tokens, found 25000"),
        (("decode.response_tokens=110000",), "v5p:4x4x4", "135600 tokens exceed the model's context of 131072"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_anything_is_compiled(overrides, topology, message):
    config = load_config(PlanConfig, REPOSITORY / "configs" / "qwen3_14b_pod_plan.toml", overrides)
    with pytest.raises(ConfigError, match=message):
        plan(config, topology)


def test_a_plan_without_a_step_is_refused():
    with pytest.raises(ConfigError, match="expected at least one of sft, rl_learner, prefill, decode"):
        plan(PlanConfig(model="qwen3-14b", mesh=MeshConfig()), "v5p:4x4x4")


def test_the_plan_says_which_of_its_steps_no_run_can_have():
    """Each reason goes when its cause does."""
    config = load_config(PlanConfig, REPOSITORY / "configs" / "qwen3_14b_pod_plan.toml")
    mesh = "RL rolls out on its learner's mesh, data 1 × fsdp 64 × tensor 1, not on data 8 × fsdp 1 × tensor 8"
    weights = "RL rolls out with its learner's float32 weights, not with bfloat16 ones"
    accumulation = "RL has no accumulation: an update learns from these 4 rows at once, the paper learns from 256"
    reasons = "; ".join([mesh, weights])
    assert not_yet_runnable(config) == {"rl_learner": accumulation, "prefill": reasons, "decode": reasons}
    runnable = load_config(
        PlanConfig,
        REPOSITORY / "configs" / "qwen3_14b_pod_plan.toml",
        [
            "mesh={data=8, tensor=8}",
            "rl_learner.sequences_per_shard=32",
            'model_overrides={dtype="bfloat16", param_dtype="bfloat16"}',
        ],
    )
    assert not_yet_runnable(runnable) == {}


def test_what_no_run_can_have_stands_in_both_forms_of_the_plan():
    step = StepPlan("4 rows", 1, 0, {}, 1.0, 1.0, {}, {"hbm": 1.0}, 0.0, 0.0, False)
    made = Plan("v5p:4x4x4", 64, 2**30, "0.0.42", {"sft": step, "decode": step}, {"decode": "its mesh is another"})
    text, answer = made.render(), made.to_json()
    assert "libtpu 0.0.42" in text.splitlines()[0]
    assert text.count("NO RUN CAN HAVE THIS STEP YET") == 1
    assert "decode, 4 rows: peak 0.00 GiB per chip, fits\n  NO RUN CAN HAVE THIS STEP YET: its mesh is another" in text
    assert (answer["not_yet_runnable"], answer["libtpu"]) == ({"decode": "its mesh is another"}, "0.0.42")


def test_gradients_are_planned_in_the_type_that_they_are_sent_in():
    """Weights are cast before the product, so what comes back to float32 parameters was rounded to bfloat16 first."""
    model = load_config(PlanConfig, REPOSITORY / "configs" / "qwen3_14b_pod_plan.toml").resolved_model()
    assert (model.param_dtype, model.dtype) == ("float32", "bfloat16")
    mesh = SimpleNamespace(shape={"data": 1, "fsdp": 4, "context": 16, "tensor": 1})
    sent = _partitioner_bytes(model, mesh, 1024, trains=True)
    weights = "of weights over fsdp × context"
    assert sent[f"all_gather {weights}"] == 2 * sent[f"reduce_scatter {weights}"]
    jaxpr = jax.make_jaxpr(jax.grad(lambda w: _project(jnp.ones((1, 2, 4), jnp.bfloat16), w).sum()))(jnp.ones((4, 4)))
    products = [line.outvars[0].aval.dtype.name for line in jaxpr.eqns if line.primitive.name == "dot_general"]
    assert products[-1] == "bfloat16"
    assert jaxpr.out_avals[0].dtype == jnp.float32


@pytest.mark.parametrize("name", ["qwen3_14b_pod_plan", "qwen3_32b_pod_plan"])
def test_the_shipped_plans_divide_their_models(name):
    load_config(PlanConfig, REPOSITORY / "configs" / f"{name}.toml").require_plannable()
