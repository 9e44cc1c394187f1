"""The configs of the paper's SFT are read, and say what the paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_jax.config import load_config
from astra_jax.model.config import QWEN3_PRESETS
from astra_jax.sft.config import SFTConfig

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize(("size", "learning_rate", "context"), [("14b", 5e-6, 2), ("32b", 2e-6, 4)])
def test_the_papers_settings(size, learning_rate, context):
    config = load_config(SFTConfig, CONFIGS / f"paper_sft_{size}.toml")
    assert (config.epochs, config.steps, config.packing) == (2, None, False)
    assert config.batch_shapes == [(32, 20480)]
    assert config.optimizer.learning_rate == learning_rate
    assert (config.optimizer.schedule, config.optimizer.warmup_fraction) == ("cosine", 0.05)
    assert config.mesh is not None
    assert config.mesh.context == context
    assert 32 % (config.mesh.data * config.mesh.fsdp * config.accumulation) == 0
    assert config.model == QWEN3_PRESETS[f"qwen3-{size}"]
    model = config.model_overrides.of(config.model)
    assert (model.dtype, model.param_dtype, model.remat) == ("bfloat16", "float32", "full")
    model.require_context(config.length_buckets[-1])
