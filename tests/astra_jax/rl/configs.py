"""The config of a tiny RL run, with all that it reads: a policy, and three environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.rl.config import RLConfig
from astra_jax.testing import tiny_environment
from synthesis.record_io import write_records

GROUP_SIZE = 4


def tiny_rl_config(folder: Path, policy: Policy, **changes: Any) -> RLConfig:
    """Write the policy and the environments to `folder`; one group a rollout and an update, unless changed."""
    save_policy(policy, folder / "init")
    environments = [tiny_environment(rent=rent) for rent in (2150, 100, 200)]
    write_records(folder / "environments", environments, kind="environment")
    return RLConfig.model_validate(
        {
            "seed": 1,
            "out": folder / "run",
            "init": folder / "init",
            "environments": folder / "environments",
            "rollout": {"max_prompt_tokens": 256, "max_response_tokens": 160, "max_turns": 6},
            "optimizer": {"learning_rate": 1e-4},
            "group_size": GROUP_SIZE,
            "groups_per_step": 1,
            "groups_per_rollout": 1,
            "length_bucket_tokens": 384,
            "logprob_chunk_tokens": 128,
            **changes,
        }
    )
