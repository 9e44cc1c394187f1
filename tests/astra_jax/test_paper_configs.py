"""The configs of the paper's SFT and RL are read, and have the paper's settings."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from astra_jax.config import CONFIGS, load_config
from astra_jax.model.config import QWEN3_PRESETS
from astra_jax.rl.config import RLConfig
from astra_jax.sft.config import SFTConfig


@pytest.mark.parametrize(("size", "learning_rate", "context"), [("14b", 5e-6, 2), ("32b", 2e-6, 4)])
def test_sft_has_the_papers_settings(size, learning_rate, context):
    config = load_config(SFTConfig, CONFIGS / f"paper_sft_{size}.toml")
    assert (config.epochs, config.steps, config.packing) == (2, None, False)
    assert config.batch_shapes == [(32, 5120), (32, 10240), (32, 20480)]
    assert config.optimizer.learning_rate == learning_rate
    assert (config.optimizer.schedule, config.optimizer.warmup_fraction) == ("cosine", 0.05)
    assert config.mesh is not None
    assert config.mesh.context == context
    assert 32 % (config.mesh.data * config.mesh.fsdp * config.accumulation) == 0
    assert config.model == QWEN3_PRESETS[f"qwen3-{size}"]
    model = config.model_overrides.of(config.model)
    assert (model.dtype, model.param_dtype, model.remat) == ("bfloat16", "float32", "full")
    model.require_context(config.length_buckets[-1])
    rl = load_config(RLConfig, CONFIGS / f"paper_rl_{size}.toml")
    assert model.yarn == rl.model_overrides.yarn, "RL would begin with another rope than SFT ended with"


@pytest.mark.parametrize("size", ["14b", "32b"])
def test_rl_has_the_papers_settings(size):
    config = load_config(RLConfig, CONFIGS / f"paper_rl_{size}.toml")
    assert config.groups_per_step * config.group_size == 256
    assert (config.optimizer.learning_rate, config.optimizer.schedule) == (2e-6, "constant")
    assert (config.rollout.max_prompt_tokens, config.rollout.max_response_tokens) == (25_600, 49_152)
    assert config.rollout.max_turns == 32
    assert config.model == QWEN3_PRESETS[f"qwen3-{size}"]
    assert config.mesh is not None
    assert config.rollout_mesh is not None
    assert math.prod(config.mesh.shape) == math.prod(config.rollout_mesh.shape)
    assert config.init == Path(f"runs/paper_sft_{size}/policy")
