"""The line of an RL step says what its update, its episodes, its filling and its clock said."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from astra_jax.chat.format import Source
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.rl.batch_filling import BatchFiller, GroupCounts, ScoredGroup
from astra_jax.rl.metrics import SHOWN, filling_metrics, rl_metrics
from astra_jax.testing import tiny_environment


def an_episode(*outcomes: ToolOutcome, num_sampled: int) -> Episode:
    environment, ledger = tiny_environment(), TokenLedger()
    ledger.append_sampled([3] * num_sampled, [-1.0] * num_sampled, turn=1, policy_versions=[0] * num_sampled)
    ledger.append_given([4], [Source.TOOL], turn=1)
    return Episode(environment, environment.tools, ledger, num_turns=2, outcomes=list(outcomes), final_text="2150.")


def test_a_step_has_one_line_of_its_update_its_episodes_its_filling_and_its_time():
    found, rain = (
        ToolOutcome("find_flat", {}, None, "Amber Falcon", "", irrelevant=False),
        ToolOutcome("weather", {}, None, "rain", "", irrelevant=True),
    )
    refused = ToolOutcome("find_flat", {}, "exception", None, "", irrelevant=False)
    unknown = ToolOutcome("x", {}, "unknown_tool", None, "", irrelevant=False)
    first = ScoredGroup((an_episode(found, num_sampled=6), an_episode(num_sampled=2)), (1.0, 0.0), 0)
    second = ScoredGroup(
        (an_episode(found, rain, num_sampled=8), an_episode(refused, unknown, unknown, num_sampled=4)), (0.25, 0.75), 0
    )
    line = rl_metrics(
        {"loss": jnp.float32(-0.5), "applied": jnp.int32(1)},
        [first, second],  # type: ignore[list-item]
        SimpleNamespace(errors=Counter(tool_errors_timeout=9)),  # type: ignore[arg-type]
        started=time.monotonic() - 20.25,
        rollout_seconds=1.23456,
    )
    assert 20.25 <= line["seconds"] < 80
    assert line["seconds"] == round(line.pop("seconds"), 3)
    assert type(line["applied"]) is int
    assert line == {
        "loss": -0.5,
        "applied": 1,
        "reward": 0.5,
        # n̂ = 1 of n = 2 with one call, then with two; nothing without a call.
        "f1": pytest.approx((2 / 3 + 1 / 2) / 4, abs=1e-5),
        "recall": 0.25,
        "precision": pytest.approx((1 + 1 / 2) / 4, abs=1e-5),
        "answer_accuracy": 1.0,
        "tool_calls_per_episode": 1.5,
        "tokens_per_turn": 2.5,
        "irrelevant_call_share": pytest.approx(1 / 6),
        "invalid_call_share": pytest.approx(2 / 6),
        "failed_call_share": pytest.approx(1 / 6),
        "tool_errors_timeout": 9,
        "rollout_seconds": 1.235,
    }
    assert set(SHOWN) - {"seconds"} <= set(line)


def test_a_step_has_figures_of_how_its_batch_was_filled():
    group = ScoredGroup((), (1.0, 0.0), policy_version=4)
    counts = GroupCounts(submitted=16, valid=8, degenerate=5, failed=1, cancelled=2, learnt=4, stale=1)
    filler = BatchFiller(1, min_reward_std=0.1, max_staleness=3, counts=counts)
    filler.buffer.extend([group, group, group])  # type: ignore[list-item]
    tokens = {"rolled_out": [2, 4, 9], "kept": [4, 9]}
    rollouts = SimpleNamespace(filler=filler, num_left_out=4, num_passed_over=6, sampled_tokens=tokens)
    older = dataclasses.replace(group, policy_version=3)
    figures = filling_metrics([group, older, older, older], rollouts, step=5)  # type: ignore[arg-type, list-item]
    assert figures == {
        "environments_left_out": 4,
        "environments_passed_over": 6,
        "groups_submitted": 16,
        "groups_valid": 8,
        "groups_degenerate": 5,
        "groups_failed": 1,
        "groups_cancelled": 2,
        "groups_learnt": 4,
        "groups_stale": 1,
        "groups_waiting": 3,
        "groups_in_batch": 4,
        "group_age_mean": 1.75,
        "group_age_max": 2,
        "sampled_tokens_per_episode": 5,
        "sampled_tokens_per_episode_kept": 6.5,
    }
