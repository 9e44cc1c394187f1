"""Curricula of tests, named as a user names one."""

from __future__ import annotations

from astra_jax.rl.solved_rates import EnvironmentRate


def nothing_twice(rate: EnvironmentRate, epoch: int) -> bool:
    """Roll no environment out again."""
    return False


def undecided(rate: EnvironmentRate, epoch: int) -> None:
    """Forget to return anything."""
