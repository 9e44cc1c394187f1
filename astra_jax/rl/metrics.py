"""The metrics of an RL step, one line of `metrics.jsonl`."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from astra_jax.episodes.figures import episode_figures, num_sampled_tokens
from astra_jax.episodes.rollout import Group
from astra_jax.mesh.hosts import gather_from_hosts
from astra_jax.model.config import ModelConfig
from astra_jax.model.flops import training_flops, utilisation
from astra_jax.rl.batch import RLBatch
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.rollouts import Filling, Rollouts

SHOWN: Final = ("reward", "recall", "precision", "seconds")
"""Figures of a progress line."""


def rl_metrics(
    of_step: Mapping[str, jax.Array], groups: Sequence[ScoredGroup[Group]], errors: Mapping[str, int]
) -> dict[str, Any]:
    """Return the figures of a step's update, of the episodes of `groups`, and of the errors of all its calls by kind.

    Reading the update's figures waits for the update.
    """
    episodes = [episode for group in groups for episode in group.group]
    rewards = [reward for group in groups for reward in group.rewards]
    return {
        **{name: float(value) for name, value in of_step.items()},
        "applied": int(of_step["applied"]),
        "episodes": len(episodes),
        **episode_figures(episodes, rewards),
        **quantiles("reward", rewards),
        **quantiles("sampled_tokens", [num_sampled_tokens(episode) for episode in episodes]),
        **errors,
    }


def time_metrics(
    batch: RLBatch,
    filling: Filling,
    model_config: ModelConfig,
    *,
    started: float,
    rollout_seconds: float,
    num_devices: int,
) -> dict[str, float]:
    """Return the figures of a step's time, when its update is done; `started` is the clock's reading before the step.

    `other_share` is the part of the step that is neither in a call of the decoder nor in the update. `tool_seconds` are
    the whole wait of an episode of this host for its tools. Sampled tokens per second are over the rollouts, learnt
    ones over the update; `mfu` is of the learner, if the device's peak is known. Of several hosts, `slowest_host` is
    the one that waited least for the others, before calls of the decoder or after its own last one (absent in a step
    without rollouts), and `held_up_seconds` is how much longer another one waited. Seconds in which a host did not run,
    because it was stopped or had no core, are taken from its waiting.
    """
    seconds = time.monotonic() - started
    learn_seconds, decode_seconds = seconds - rollout_seconds, filling.decode_seconds
    num_sampled, num_learnt = sum(filling.sampled_tokens), float(batch.loss_mask_BT.sum())
    mfu = utilisation(learner_flops(batch, model_config), learn_seconds, devices=num_devices)
    return {
        **({"sampled_tokens_per_second": round(num_sampled / rollout_seconds, 1)} if num_sampled else {}),
        "learnt_tokens_per_second": round(num_learnt / learn_seconds, 1),
        **({} if mfu is None else {"mfu": round(mfu, 4)}),
        **{name: round(value, 3) for name, value in quantiles("tool_seconds", filling.tool_seconds).items()},
        **({"useful_row_steps_share": round(filling.useful_row_steps, 4)} if filling.useful_row_steps else {}),
        "decode_seconds": round(decode_seconds, 3),
        **_waits(filling.waited_seconds, filling.still_seconds),
        "rollout_seconds": round(rollout_seconds, 3),
        "learn_seconds": round(learn_seconds, 3),
        "other_share": round(1 - (decode_seconds + learn_seconds) / seconds, 4),
        "seconds": round(seconds, 3),
    }


def quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the values that 10, 50 and 90 % of all do not exceed, and the largest; nothing without values.

    >>> quantiles("reward", [0.0, 0.25, 0.5, 1.0])
    {'reward_p10': 0.0, 'reward_p50': 0.25, 'reward_p90': 1.0, 'reward_max': 1.0}
    """
    if not values:
        return {}
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9], method="inverted_cdf").tolist()
    return {f"{name}_p10": low, f"{name}_p50": middle, f"{name}_p90": high, f"{name}_max": max(values)}


def learner_flops(batch: RLBatch, model_config: ModelConfig) -> float:
    """Return the FLOPs that a batch needs, forward and backward: of its tokens, without padding or recompute."""
    is_real_BT = np.asarray(batch.segment_ids_BT) > 0
    # A token attends to as many tokens as stand before it in its episode, also where they share its prompt.
    attended = float((np.asarray(batch.positions_BT)[is_real_BT] + 0.5).sum())
    num_tokens, num_learnt = int(is_real_BT.sum()), int(batch.loss_mask_BT.sum())
    # The backward pass has two products for each of the forward pass: one for the input, one for the weight.
    return training_flops(model_config, num_tokens, attended, logits_tokens=num_learnt)


def filling_metrics(batch: Sequence[ScoredGroup[Group]], rollouts: Rollouts, *, step: int) -> dict[str, float]:
    """Return the figures of the filling of a step's batch.

    `groups_in_batch` and `group_age_` (in updates) are of the groups that it learnt from; the other `groups_` count
    since the run began. `sampled_tokens_per_episode` is over all episodes that were rolled out for the batch, and
    `_kept` over those of valid groups: if they differ, long or short episodes are learnt from more often than they are
    sampled. Each is absent if there is no such episode.
    """
    filler, ages = rollouts.filler, [step - group.policy_version for group in batch]
    means = {
        "sampled_tokens_per_episode": rollouts.filling.sampled_tokens,
        "sampled_tokens_per_episode_kept": rollouts.filling.sampled_tokens_kept,
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


def _waits(waited_seconds: float, still_seconds: float) -> dict[str, float]:
    if jax.process_count() == 1:
        return {}
    waited_H, still_H = gather_from_hosts(np.array([waited_seconds, still_seconds])).T
    lead_H = waited_H - still_H
    return {
        "hosts_seconds": round(waited_seconds, 3),
        **({"slowest_host": int(lead_H.argmin())} if waited_H.any() else {}),
        "held_up_seconds": round(float(lead_H.max() - lead_H.min()), 3),
    }
