"""The run of a config: `astra sft` or `astra rl`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astra_jax.config import ConfigError, config_keys, load_config
from astra_jax.rl.config import RLConfig
from astra_jax.sft.config import SFTConfig


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> SFTConfig | RLConfig:
    """Read the config of a run; a run that rolls out is RL, one with lengths of samples SFT.

    Raises:
        ConfigError: as `load_config`; or it is neither.
    """
    keys = config_keys(path)
    if "rollout" in keys and "length_buckets" not in keys:
        return load_config(RLConfig, path, overrides)
    if "length_buckets" in keys and "rollout" not in keys:
        return load_config(SFTConfig, path, overrides)
    raise ConfigError(
        f"expected the config of `astra sft` (length_buckets) or `astra rl` (rollout), found neither or both in {path}"
    )
