"""The real steps compiled for a TPU that is not there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astra_jax.config import load_config
from astra_jax.plan import PLAN_ENVIRONMENT
from astra_jax.plan.plan import PlanConfig, plan

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
remat = "full"
[mesh]
fsdp = 2
context = 2
[rl_learner]
sequence_tokens = 1024
"""

_PLAN = """
import json, sys
from pathlib import Path
from astra_jax.config import load_config
from astra_jax.plan.plan import PlanConfig, plan
print(json.dumps(plan(load_config(PlanConfig, Path(sys.argv[1])), sys.argv[2]).to_json()))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install libtpu")
def test_a_tiny_rl_step_is_compiled_for_an_absent_tpu(tmp_path):
    config = tmp_path / "plan.toml"
    config.write_text(_TINY)
    done = subprocess.run(
        [sys.executable, "-c", _PLAN, str(config), "v5e:2x2"],
        env=os.environ | PLAN_ENVIRONMENT | {"XLA_FLAGS": "", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    step = answer["steps"]["rl_learner"]
    assert answer["chips"] == 4
    assert answer["fits"]
    assert step["compiled_flops"] > step["model_flops"]
    assert sum(step["by_category_gib"].values()) == pytest.approx(16, rel=1e-3)
    assert 0 < step["peak_gib_per_chip"] < 1


@pytest.mark.parametrize(
    ("overrides", "topology", "message"),
    [
        ((), "v9:2x2", "expected a topology of v5e, v5p, v6e"),
        (("mesh.tensor=3",), "v5p:4x4x4", "tensor = 3 does not divide num_heads = 40"),
        (("rl_learner.sequence_tokens=74752",), "v5p:4x4x4", "multiple of 4096 tokens, found 74752"),
        (("rl_learner.sequence_tokens=262144",), "v5p:4x4x4", "exceed the model's context of 131072"),
        (('model="qwen3-15b"',), "v5p:4x4x4", "expected one of qwen3-0.6b"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_anything_is_compiled(overrides, topology, message):
    config = load_config(PlanConfig, REPOSITORY / "configs" / "qwen3_14b_pod_plan.toml", overrides)
    with pytest.raises(ValueError, match=message):
        plan(config, topology)
