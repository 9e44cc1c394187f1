"""The line of an RL step has the figures of its update, its episodes, its filling and its clock."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.chat.format import Source
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.metrics_file import goodput
from astra_jax.model import flops
from astra_jax.rl import metrics as rl_metrics_module
from astra_jax.rl.batch import make_rl_batch
from astra_jax.rl.batch_filling import BatchFiller, GroupCounts, ScoredGroup
from astra_jax.rl.metrics import SHOWN, filling_metrics, learner_flops, rl_metrics, time_metrics
from astra_jax.rl.rollouts import Filling
from astra_jax.testing import tiny_environment
from tests.astra_jax.curves import without_times


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
        Counter(tool_errors_timeout=9),
    )
    assert type(line["applied"]) is int
    assert line == {
        "loss": -0.5,
        "applied": 1,
        "episodes": 4,
        "reward": 0.5,
        # A percentile of 0, 0.25, 0.75 and 1 is the first value that is no less than so many of them.
        "reward_p10": 0.0,
        "reward_p50": 0.25,
        "reward_p90": 1.0,
        "reward_max": 1.0,
        # n̂ = 1 of n = 2 with one call, then with two; nothing without a call.
        "f1": pytest.approx((2 / 3 + 1 / 2) / 4, abs=1e-5),
        "recall": 0.25,
        "solved_fraction": 0.0,
        "precision": pytest.approx((1 + 1 / 2) / 4, abs=1e-5),
        "answer_accuracy": 1.0,
        "tool_calls_per_episode": 1.5,
        "tokens_per_turn": 2.5,
        "sampled_tokens_p10": 2,
        "sampled_tokens_p50": 4,
        "sampled_tokens_p90": 8,
        "sampled_tokens_max": 8,
        "irrelevant_call_share": pytest.approx(1 / 6),
        "invalid_call_share": pytest.approx(2 / 6),
        "failed_call_share": pytest.approx(1 / 6),
        "tool_errors_timeout": 9,
    }
    assert set(SHOWN) - {"seconds"} <= set(line)


def a_batch(episodes_per_row):
    """A group of two: a prompt of 5 tokens, then 7 and 3, of which 6 and 2 were sampled."""
    environment, episodes = tiny_environment(), []
    for num_sampled in (6, 2):
        ledger = TokenLedger()
        ledger.append_given([1, 2, 3, 4, 5], [Source.PROMPT] * 5, turn=0)
        ledger.append_sampled([7] * num_sampled, [-1.0] * num_sampled, turn=1, policy_versions=[0] * num_sampled)
        ledger.append_given([8], [Source.TOOL], turn=1)
        episodes.append(Episode(environment, environment.tools, ledger, stop_reason="no_tool_call"))
    group = ScoredGroup(episodes, (0.0, 1.0), 0)
    return make_rl_batch([group], length_bucket_tokens=16, pad_id=0, episodes_per_row=episodes_per_row)[0]


def test_a_step_has_figures_of_its_time_by_phase(untrained, monkeypatch):
    monkeypatch.setitem(flops._PEAK_FLOPS_PER_SECOND, jax.devices()[0].device_kind, 1e6)
    loads = [
        SimpleNamespace(row_steps=64, sampled_tokens=56, call_seconds=4.5, waited_seconds=0.0, left_seconds=0.0)
    ] * 2
    filling = Filling(sampled_tokens=[30, 70], tool_seconds=[0.5, 2.0, 8.0], loads=loads)  # type: ignore[arg-type]
    monkeypatch.setattr(rl_metrics_module.time, "monotonic", lambda: 120.0)
    batch = a_batch(1)
    found = time_metrics(
        batch,
        filling,
        untrained.model_config,
        started=100.0,
        rollout_seconds=12.5,
        num_devices=2,  # type: ignore[arg-type]
    )
    assert found == {
        "sampled_tokens_per_second": 8.0,
        "learnt_tokens_per_second": round(8 / 7.5, 1),
        "mfu": pytest.approx(learner_flops(batch, untrained.model_config) / 7.5 / 2e6, abs=1e-4),
        "tool_seconds_p10": 0.5,
        "tool_seconds_p50": 2.0,
        "tool_seconds_p90": 8.0,
        "tool_seconds_max": 8.0,
        "useful_row_steps_share": 0.875,
        "decode_seconds": 9.0,
        "rollout_seconds": 12.5,
        "learn_seconds": 7.5,
        "other_share": 0.175,
        "seconds": 20.0,
    }
    assert without_times(found) == {}


def test_of_several_hosts_the_one_that_the_others_wait_for_is_named(untrained, monkeypatch):
    loads = [
        SimpleNamespace(row_steps=64, sampled_tokens=56, call_seconds=4.5, waited_seconds=0.75, left_seconds=0.5)
    ] * 2
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    others = [[0.25, 0.0], [4.0, 0.0]]
    monkeypatch.setattr(rl_metrics_module, "gather_from_hosts", lambda own: np.array([own, *others]))
    filling = Filling(sampled_tokens=[30, 70], loads=loads)  # type: ignore[arg-type]
    found = time_metrics(
        a_batch(1),
        filling,
        untrained.model_config,
        started=time.monotonic() - 20,
        rollout_seconds=12.5,
        num_devices=2,
    )
    assert (found["decode_seconds"], found["hosts_seconds"]) == (7.5, 2.5)
    assert (found["slowest_host"], found["held_up_seconds"]) == (1, pytest.approx(3.75, abs=0.01))
    line = found | {"compile_seconds": 0, "save_seconds": 0, "restore_seconds": 0, "ended_unix_seconds": 100}
    shares = goodput([line])
    assert shares["hosts"] == pytest.approx(2.5 / 20, abs=1e-3)
    assert shares["tools"] == pytest.approx((12.5 - 7.5 - 2.5) / 20, abs=1e-3)
    assert sum(shares.values()) == pytest.approx(1)
    others = [[0.25, 0.0], [4.0, 4.5]]  # the last was stopped while it waited
    stopped = time_metrics(
        a_batch(1), filling, untrained.model_config, started=time.monotonic() - 20, rollout_seconds=12, num_devices=2
    )
    assert (stopped["slowest_host"], stopped["held_up_seconds"]) == (2, pytest.approx(3.0, abs=0.01))
    monkeypatch.setattr(rl_metrics_module, "gather_from_hosts", lambda _: np.zeros((3, 2)))
    still = time_metrics(
        a_batch(1), Filling(), untrained.model_config, started=time.monotonic() - 2, rollout_seconds=1, num_devices=2
    )
    assert "slowest_host" not in still  # nothing was rolled out


def test_the_flops_of_a_batch_are_those_of_its_tokens_and_attended_pairs(untrained):
    """Alone 12 and 8 tokens; in one row 4 of the prompt, then 7 and 3 that attend to it and to themselves."""
    model = untrained.model_config
    assert learner_flops(a_batch(1), model) == pytest.approx(flops.model_flops(model, [12, 8], logits_tokens=8))
    attended = 4**2 / 2 + (7**2 + 3**2) / 2 + 4 * (7 + 3)
    expected = 3 * flops.forward_flops(model, 4 + 7 + 3, attended, logits_tokens=8)
    assert learner_flops(a_batch(2), model) == pytest.approx(expected)


def test_a_step_has_figures_of_how_its_batch_was_filled():
    group = ScoredGroup((), (1.0, 0.0), policy_version=4)
    counts = GroupCounts(submitted=14, valid=8, degenerate=5, failed=1, learnt=4, stale=1)
    filler = BatchFiller(1, min_reward_std=0.1, max_staleness=3, counts=counts)
    filler.buffer.extend([group, group, group])  # type: ignore[list-item]
    filling = Filling(sampled_tokens=[2, 4, 9], sampled_tokens_kept=[4, 9])
    rollouts = SimpleNamespace(filler=filler, num_left_out=4, num_passed_over=6, filling=filling)
    older = dataclasses.replace(group, policy_version=3)
    figures = filling_metrics([group, older, older, older], rollouts, step=5)  # type: ignore[arg-type, list-item]
    assert figures == {
        "environments_left_out": 4,
        "environments_passed_over": 6,
        "groups_submitted": 14,
        "groups_valid": 8,
        "groups_degenerate": 5,
        "groups_failed": 1,
        "groups_learnt": 4,
        "groups_stale": 1,
        "groups_waiting": 3,
        "groups_in_batch": 4,
        "group_age_mean": 1.75,
        "group_age_max": 2,
        "sampled_tokens_per_episode": 5,
        "sampled_tokens_per_episode_kept": 6.5,
    }
