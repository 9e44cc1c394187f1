"""The metrics of an RL step, one line of `metrics.jsonl`."""

from __future__ import annotations

import dataclasses
import statistics
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
    """Return what a step's line says: of its update, of the episodes of `groups`, of their errors, of its time.

    Errors are those of all calls that were made for it, by kind; a kind that did not happen has no figure.
    Reading the update's figures waits for it, so the clock is read last; `started` is its reading before the rollout.
    """
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
        "rollout_seconds": round(rollout_seconds, 3),
        "seconds": round(time.monotonic() - started, 3),
    }


def filling_metrics(batch: Sequence[ScoredGroup[Group]], rollouts: Rollouts, *, step: int) -> dict[str, float]:
    """Return what a step's line says of how its batch was filled.

    `groups_in_batch` and `group_age_` (in updates) are of the groups that it learnt from; the other `groups_` count
    since the run began. `sampled_tokens_per_episode` is of all that was rolled out for the batch, also of what was
    cancelled or failed, and `_kept` of the valid groups among it: where they differ, long or short episodes are
    learnt from more often than they are sampled. They are not there where nothing was rolled out, or kept.
    """
    filler, ages = rollouts.filler, [step - group.policy_version for group in batch]
    tokens = rollouts.sampled_tokens
    means = {
        "sampled_tokens_per_episode": tokens["rolled_out"],
        "sampled_tokens_per_episode_kept": tokens["kept"],
    }
    return {
        "environments_left_out": rollouts.num_left_out,
        "environments_passed_over": rollouts.num_passed_over,
        **{f"groups_{cause}": count for cause, count in dataclasses.asdict(filler.counts).items()},
        "groups_waiting": len(filler.buffer),
        "groups_in_batch": len(batch),
        "group_age_mean": statistics.fmean(ages),
        "group_age_max": max(ages),
        **{name: statistics.fmean(values) for name, values in means.items() if values},
    }
