"""The configs of the paper's RL are read, and say what the paper says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from astra_jax.config import load_config
from astra_jax.model.config import QWEN3_PRESETS
from astra_jax.rl.config import RLConfig

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize("size", ["14b", "32b"])
def test_the_papers_settings(size):
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
