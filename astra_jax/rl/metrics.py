"""The metrics of an RL step, one line of `metrics.jsonl`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax

from astra_jax.episodes.figures import episode_figures
from astra_jax.episodes.rollout import Group
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.rollouts import Rollouts

SHOWN: Final = ("reward", "recall", "precision", "seconds")
"""What progress lines name."""


def rl_metrics(
    of_step: Mapping[str, jax.Array],
    groups: Sequence[ScoredGroup[Group]],
    rollouts: Rollouts,
    *,
    started: float,
    rollout_seconds: float,
) -> dict[str, Any]:
    """Return what a step's line says: of its update, of the episodes of `groups`, of the rollouts so far, of its time.

    Errors are those of all calls that were made for it, by kind; a kind that did not happen has no figure.
    Reading the update's figures waits for it, so the clock is read last; `started` is its reading before the rollout.
    """
    filler = rollouts.filler
    figures = episode_figures(
        [episode for group in groups for episode in group.group],
        [reward for group in groups for reward in group.rewards],
    )
    return {
        **{name: float(value) for name, value in of_step.items()},
        "applied": int(of_step["applied"]),
        "reward": figures.reward,
        "f1": figures.f1,
        "recall": figures.recall,
        "precision": figures.precision,
        "answer_accuracy": figures.answer_accuracy,
        "tool_calls_per_episode": figures.tool_calls_per_episode,
        "tokens_per_turn": figures.tokens_per_turn,
        "irrelevant_call_share": figures.irrelevant_call_share,
        "invalid_call_share": figures.invalid_call_share,
        "failed_call_share": figures.failed_call_share,
        **rollouts.errors,
        "environments_left_out": rollouts.num_left_out,
        "groups_valid": filler.num_valid,
        "groups_degenerate": filler.num_degenerate,
        "groups_stale": filler.num_stale,
        "groups_unfinished": rollouts.num_unfinished,
        "groups_waiting": len(filler.buffer),
        "rollout_seconds": round(rollout_seconds, 3),
        "seconds": round(time.monotonic() - started, 3),
    }
