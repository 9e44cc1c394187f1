"""The real steps compiled for a TPU that is not there."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from packaging.version import Version

from astra_jax.checkpoints.checkpoint import CheckpointError
from astra_jax.config import ConfigError
from astra_jax.episodes import rollout as rollout_module
from astra_jax.episodes.rollout import RolloutEngine
from astra_jax.mesh.layouts import rollout_mesh
from astra_jax.mesh.placement import training_mesh
from astra_jax.model.families import FAMILIES
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.plan import PLAN_ENVIRONMENT
from astra_jax.plan import plan as plan_module
from astra_jax.plan.chips import chip_of
from astra_jax.plan.learner_steps import rl_learner_step
from astra_jax.plan.plan import Plan, StepPlan, load_run_config, plan
from astra_jax.plan.rollout_steps import episodes_in_flight, rollout_steps
from astra_jax.rl.config import RLConfig
from tests.tpu_compiler import needs_tpu_compiler, with_tpu_compiler

REPOSITORY = Path(__file__).parents[3]

TINY = """
seed = 0
steps = 2
out = "runs/none"
init = "runs/none"
environments = "runs/none"
group_size = 4
groups_per_step = 2
groups_per_rollout = 4
accumulation = 2
length_bucket_tokens = 512
optimizer = { learning_rate = 1e-5 }
model_overrides = { dtype = "bfloat16", remat = "offload" }
[model]
vocab_size = 1024
hidden_size = 256
num_layers = 2
num_heads = 4
num_kv_heads = 2
head_dim = 128
intermediate_size = 512
[mesh]
fsdp = 2
context = 2
[rollout_mesh]
data = 2
tensor = 2
[rollout]
max_prompt_tokens = 128
max_response_tokens = 384
max_turns = 3
"""


def in_process_of_its_own(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ
        | PLAN_ENVIRONMENT
        | {"XLA_FLAGS": "", "PYTHONPATH": with_tpu_compiler(REPOSITORY)}
        | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


_PLAN = """
import json, sys
from pathlib import Path
from astra_jax.plan.plan import load_run_config, plan
print(json.dumps(plan(load_run_config(Path(sys.argv[1])), sys.argv[2]).to_json()))
"""


@pytest.mark.slow
@needs_tpu_compiler
def test_over_two_slices_copies_of_the_weights_exchange_gradients_by_a_network_of_their_own(tmp_path):
    config = tmp_path / "plan.toml"
    config.write_text(TINY.replace("[mesh]\n", "[mesh]\ndata = 2\n").replace("data = 2\ntensor", "data = 4\ntensor"))
    said = in_process_of_its_own(_PLAN, str(config), "2*v5e:2x2", XDG_CACHE_HOME=str(tmp_path))
    found = json.loads(said.splitlines()[-1])
    assert found["chips"] == 8
    learner = found["steps"]["rl_learner"]
    sent = learner["collective_bytes"]["all_reduce of gradients over data"]
    # 2 layers, of which each chip has a quarter, in float32, for 2 parts: as much out as in, half of it each way.
    layers = 2 * (256 * 128 * (4 + 2 + 2) + 4 * 128 * 256 + 3 * 256 * 512 + 2 * 256 + 2 * 128)
    assert sent == 2 * 4 * layers / 4 * (2 * 1 / 2)
    seconds = learner["roofline_seconds"]["network between slices"]
    crossing = sum(size for name, size in learner["collective_bytes"].items() if "data" in name.partition(" over ")[2])
    assert seconds == crossing / chip_of("2*v5e:2x2")[0].between_slices_bytes_per_second
    assert crossing >= sent
    assert found["steps"]["decode"]["roofline_seconds"].keys() == {"compute", "hbm", "interconnect"}


@pytest.mark.slow
@needs_tpu_compiler
def test_tiny_steps_are_compiled_for_an_absent_tpu_and_once_only(tmp_path):
    config = tmp_path / "plan.toml"
    config.write_text(TINY)

    def answer():
        said = in_process_of_its_own(_PLAN, str(config), "v5e:2x2", XDG_CACHE_HOME=str(tmp_path))
        return json.loads(said.splitlines()[-1])

    first, again = answer(), answer()
    assert first["chips"] == 4
    assert first["fits"]
    steps = first["steps"]
    assert steps.keys() == {"prefill", "prefill_on", "append", "decode", "rl_learner"}
    for name, step in steps.items():
        assert step["compiled_flops"] >= step["model_flops"]
        assert sum(step["by_category_gib"].values()) == pytest.approx(16, rel=1e-3)
        assert 0 < step["peak_gib_per_chip"] < 1
        assert not step["from_cache"]
        assert again["steps"][name]["from_cache"]
        assert again["steps"][name]["by_category_gib"] == step["by_category_gib"]
    # On each of 2 x 2 chips: 2 layers, keys and values, 1 of 2 key heads of width 128, bfloat16; in pages of 32 tokens
    # 2 prompts, and 8 episodes, which need not begin with a page.
    pool_bytes = 2 * 2 * 128 * 2 * 32 * (2 * 4 + 8 * (12 + 1))
    for name in ("prefill", "prefill_on", "append", "decode"):
        found = steps[name]["by_category_gib"]
        assert (found["KV pool"] + found.get("KV pool of other layers", 0)) * 2**30 == pool_bytes
        # The learner's float32 weights lie over fsdp x context, half the model's those of decoding over tensor.
        parameters = found["parameters"] + found.get("parameters of other layers", 0)
        assert parameters == pytest.approx(found["parameters of the learner"], rel=1e-2)
        assert found["optimiser"] == pytest.approx(2 * found["parameters of the learner"], rel=1e-2)
    # A part is one row on each of 2 shards. It keeps for 256 of its tokens in 2 layers, in bfloat16: the layer's input,
    # the attention output of its heads, the input of its MLP.
    # The residual stream is kept twice by libtpu 0.0.42 (jax 0.10) and 0.0.50 (jax 0.12), and once by 0.0.51.
    times = 2 if Version(first["libtpu"]) < Version("0.0.51") else 1
    offloaded_bytes = 2 * 2 * 256 * 2 * (times * 256 + 512 + times * 256)
    assert offloaded_bytes <= steps["rl_learner"]["host_gib_per_chip"] * 2**30 < 1.2 * offloaded_bytes
    assert steps["decode"]["bound"] == "hbm"
    assert first["rollouts"] == "16 episodes of 512 tokens in flight"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_is_gathered_for_a_token(family):
    """The plan says so by a formula (`partitioner_bytes`); this test reads the partitioned program of a run."""
    # In none of these sizes do logits, keys or activations have as many numbers as a weight.
    model = {"vocab_size": 3968, "hidden_size": 256, "num_layers": 2, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32}
    model = {**model, "family": family, "intermediate_size": 512}
    given = tomllib.loads(TINY) | {"model": model, "group_size": 4}
    config = RLConfig.model_validate(given)
    mesh = make_mesh(MeshConfig(data=2, tensor=4), jax.devices()[:8])
    step = rollout_steps(config, config.model, mesh, mesh)["decode"]
    with jax.set_mesh(mesh):
        compiled = step.trace().lower().compile().as_text()
    exchanged = re.findall(r"= \w+\[([\d,]*)\]\S* (?:all-gather|all-to-all)(?:-start)?\(", compiled)
    assert exchanged, "rows are told of each other's parts of the vocabulary"
    sizes = {math.prod(map(int, dimensions.split(","))) if dimensions else 1 for dimensions in exchanged}
    layers = abstract_params(config.model)["layers"].items()  # a bias has as few numbers as the activations of a row
    weights = {math.prod(leaf.shape[1:]) for name, leaf in layers if len(leaf.shape) > 2 and "bias" not in name}
    weights |= {3968 * 256}
    assert not sizes & weights


PAPER_RL, PAPER_SFT = (REPOSITORY / "configs" / f"paper_{stage}_14b.toml" for stage in ("rl", "sft"))


_SIX_HEADS = (
    "model={vocab_size=8, hidden_size=8, num_layers=1, num_heads=6, num_kv_heads=2, head_dim=2, intermediate_size=8}"
)
_8_CHIPS = ("mesh={fsdp=2, context=4}", "rollout_mesh={data=2, tensor=4}")


@pytest.mark.parametrize(
    ("config", "overrides", "message"),
    [
        (PAPER_RL, (*_8_CHIPS, "mesh.tensor=3"), "a mesh of data 1 × fsdp 2 × context 4 × tensor 3 needs 24 devices"),
        (PAPER_RL, (*_8_CHIPS, "accumulation=3"), "accumulation × data × fsdp = 3 × 2 rows, found 32"),
        (PAPER_RL, (*_8_CHIPS, "rollout.max_response_tokens=110000"), "135600 tokens exceed the model's context"),
        (PAPER_RL, (*_8_CHIPS, "rollout_mesh.context=2"), "rollout_mesh.context: expected 1"),
        (
            PAPER_RL,
            (*_8_CHIPS, "rollout_mesh.data=4"),
            "expected a rollout_mesh of the 8 devices of the mesh, found one of 16",
        ),
        (PAPER_RL, (*_8_CHIPS, _SIX_HEADS), "tensor = 4 does not divide num_heads = 6"),
        (PAPER_SFT, ("mesh={fsdp=8}", "batch_rows=1"), "accumulation × data × fsdp = 1 × 8 rows, found 1"),
        (PAPER_SFT, ("mesh={fsdp=8}", "length_buckets=[262144]", "batch_rows=8"), "the model's context of 131072"),
    ],
)
def test_a_plan_is_refused_as_the_run_would_be_before_anything_is_compiled(config, overrides, message, monkeypatch):
    monkeypatch.setattr(plan_module, "devices_of", lambda _: jax.devices())
    with pytest.raises(ConfigError, match=message):
        plan(load_run_config(config, overrides), "v5p:2x2x2")


def test_a_topology_that_is_none_and_a_config_of_no_run_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected a topology of v5e, v5p, v6e"):
        plan(load_run_config(PAPER_RL), "v9:2x2")
    neither = tmp_path / "neither.toml"
    neither.write_text("seed = 0\n")
    with pytest.raises(ConfigError, match=r"has neither or both of length_buckets \(`astra sft`\) and rollout"):
        load_run_config(neither)


def test_a_plan_of_a_checkpoint_that_is_not_there_needs_the_models_name(tmp_path):
    config = load_run_config(PAPER_SFT).model_copy(update={"model": None, "init": tmp_path})
    with pytest.raises(CheckpointError, match=r"not a checkpoint folder, since it holds no params\.json"):
        plan(config, "v5p:4x4x4")


@pytest.mark.parametrize("pool", ["KV pool", "KV pool of other layers"])
def test_a_step_that_does_not_fit_names_a_remedy(pool):
    sizes = {"parameters": 2**29, pool: 2**30, "headroom": -1}
    step = StepPlan("4 rows", 2**31, 0, sizes, 1.0, 1.0, {}, {"hbm": 2.0}, 6, 0.0, False)
    made = Plan(
        "v5p:4x4x4", 64, 2**30, 2**31, "0.0.42", "v5p:4x4x4", {"decode": step}, "4 episodes of 9 tokens in flight"
    )
    text, answer = made.render(), made.to_json()
    assert text.splitlines()[:2] == [
        "v5p:4x4x4: 64 chips of 1 GiB; compiled by libtpu 0.0.42",
        "4 episodes of 9 tokens in flight",
    ]
    assert "decode, 4 rows: peak 2.00 GiB per chip, DOES NOT FIT" in text
    assert "bound by hbm, 3 tokens/s at best" in text
    assert f"the largest category is {pool}: lower groups_per_rollout or rollout.max_response_tokens" in text
    assert (answer["fits"], answer["rollouts"]) == (False, "4 episodes of 9 tokens in flight")


def test_what_waits_on_the_host_has_to_fit_there():
    step = StepPlan("4 rows", 2**20, 3 * 2**30, {"headroom": 1}, 1.0, 1.0, {}, {"hbm": 2.0}, 6, 0.0, False)
    made = Plan("v5p:4x4x4", 64, 2**30, 2 * 2**30, "0.0.42", "v5p:4x4x4", {"rl_learner": step})
    assert not made.fits
    assert "DOES NOT FIT" in made.render()
    assert "in the host’s memory            3.00 of 2 GiB" in made.render()
    assert "the host's memory is too small: set model_overrides.remat to full" in made.render()
    assert dataclasses.replace(made, host_memory_bytes=4 * 2**30).fits


def test_a_plan_for_gpus_says_that_tpus_stand_in():
    chip, compiled_for = chip_of("h100:8")
    made = Plan("h100:8", 8, int(chip.hbm_bytes), chip.host_bytes, "0.0.42", compiled_for, {})
    assert made.render().splitlines() == [
        "h100:8: 8 chips of 76 GiB; compiled by libtpu 0.0.42",
        "compiled for TPUs in their place (v5p:2x2x2): weights, moments and pages are the same on a GPU; temporaries "
        "and the kernels' time are not",
    ]
    with pytest.raises(ConfigError, match=r"or 1, 2, 4 or 8 of a100, h100, h200 such as h100:8, found 'h100:3'"):
        chip_of("h100:3")


def test_moments_are_counted_where_they_wait_while_episodes_are_rolled_out():
    found = []
    for waits in ("false", "true"):
        config = load_run_config(PAPER_RL, (*_8_CHIPS, f"optimizer_waits_on_host={waits}"))
        mesh = training_mesh(config.mesh)
        steps = rollout_steps(config, config.model, rollout_mesh(config.rollout_mesh, mesh), mesh).values()
        found.append({(step.resident_bytes.get("optimiser", 0), step.host_bytes) for step in steps})
    (((on_chip, nothing),), ((none, on_host),)) = found
    assert (nothing, none) == (0, 0)
    # Two float32 moments of 14.8 billion parameters, over 8 chips.
    assert on_chip == on_host == pytest.approx(2 * 4 * config.model.num_parameters / 8, rel=1e-2)


def test_a_run_of_adapters_has_moments_and_gradients_of_them_alone_and_two_thirds_of_the_flops():
    def of(*overrides):
        one_each = ("episodes_per_row=1", "accumulation=64")
        config = load_run_config(PAPER_RL, (*_8_CHIPS, "optimizer_waits_on_host=false", *one_each, *overrides))
        mesh = training_mesh(config.mesh)
        rollouts = rollout_steps(config, config.model, rollout_mesh(config.rollout_mesh, mesh), mesh)
        return rl_learner_step(config, config.model, mesh), rollouts["decode"]

    (whole, decode), (adapted, decode_adapted) = of(), of("lora.rank=16")
    # Rank 16 beside every matrix of 40 layers: 0.43 % of the parameters, but half of an adapter is not sharded here.
    for category in ("optimiser", "gradients"):
        assert adapted.bytes_by_category[category] < 0.025 * whole.bytes_by_category[category]
    assert 1 < adapted.bytes_by_category["parameters"] / whole.bytes_by_category["parameters"] < 1.025
    assert 2 / 3 < adapted.model_flops / whole.model_flops < 0.85  # attention has both passes whole
    assert decode_adapted.bytes_by_category == decode.bytes_by_category, "the adapters are merged"
    assert decode_adapted.resident_bytes["optimiser"] < 0.025 * decode.resident_bytes["optimiser"]


def test_a_step_whose_rows_share_prompts_needs_half_of_the_flops():
    """At 25,600 + 10,000 tokens and 8 episodes a group."""
    tokens = ("rollout.max_response_tokens=10000", "length_bucket_tokens=8192")
    shared, plain = (
        rl_learner_step(config, config.model, training_mesh(config.mesh))
        for config in (
            load_run_config(PAPER_RL, (*_8_CHIPS, *tokens, "accumulation=8")),
            load_run_config(PAPER_RL, (*_8_CHIPS, *tokens, "episodes_per_row=1", "accumulation=64")),
        )
    )
    assert shared.work == "32 rows of 106,496 tokens, 80,000 of them learnt, in 8 parts"
    assert plain.work == "256 rows of 40,960 tokens, 10,000 of them learnt, in 64 parts"
    assert plain.model_flops > 2.2 * shared.model_flops
    assert plain.tokens == shared.tokens == 256 * 10_000
    # One row a shard: 80,000 of 106,496 tokens are active, most of all on some one of 4 shards, in chunks of 1/16.
    assert 13 <= shared.while_trips <= 16


@pytest.mark.parametrize(
    ("mesh", "rollout_mesh_of"),
    [("fsdp=1", "tensor=1"), ("fsdp=2, context=4", "tensor=8"), ("fsdp=2, context=4", "data=2, tensor=4")],
)
def test_a_plan_counts_the_pages_and_rows_that_the_run_has(mesh, rollout_mesh_of, monkeypatch):
    overrides = (f"mesh={{{mesh}}}", f"rollout_mesh={{{rollout_mesh_of}}}")
    held_out = 'held_out={environments="none", every_steps=5, num_environments=6}'
    config = load_run_config(PAPER_RL, (*overrides, held_out, "groups_per_rollout=5", "groups_per_step=3"))
    learner_mesh = training_mesh(config.mesh, jax.devices()[: 1 if mesh == "fsdp=1" else 8])
    decode_mesh = rollout_mesh(config.rollout_mesh, learner_mesh)
    monkeypatch.setattr(rollout_module, "XLADevice", lambda *_, **__: None)
    monkeypatch.setattr(rollout_module, "PagedDecoder", lambda _, limits, **__: limits)
    engine = RolloutEngine(
        config.model_overrides.of(config.model), SimpleNamespace(end_id=0, end_of_text_id=1), None, config.rollout
    )
    steps = rollout_steps(config, config.model, decode_mesh, learner_mesh)
    model, (data, tensor) = config.model, (decode_mesh.shape[axis] for axis in ("data", "tensor"))
    key_bytes = model.num_kv_heads // tensor * model.head_dim * jnp.dtype(model.dtype).itemsize
    for step, *asked in (
        (steps["decode"], config.groups_per_rollout, config.group_size, 0, config.groups_with_rows),
        (steps["held_out_decode"], 6, 1, 0, 6),
    ):
        with jax.set_mesh(decode_mesh):
            limits = engine._decoder({}, *asked)
        assert (
            step.bytes_by_category["KV pool"]
            == 2 * model.num_layers * key_bytes * limits.page_tokens * limits.num_pages
        )
        assert step.tokens == data * limits.row_counts[0]
    assert episodes_in_flight(config).endswith("; at another time up to 6 in held-out environments")


def test_an_unknown_preset_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"model: .*expected sizes, or one of qwen3-0\.6b, .* found 'qwen3-15b'"):
        load_run_config(PAPER_RL, ['model="qwen3-15b"'])
