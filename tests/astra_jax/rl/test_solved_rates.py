"""Solved rates count every scored episode once, survive a checkpoint, and decide which environments sit out."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.config import ConfigError
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.rl.solved_rates import EnvironmentRate, SolvedRates
from astra_jax.testing import tiny_environment
from examples.curriculum import sometimes_solved
from tests.astra_jax.rl.curricula import undecided

ENVIRONMENTS = [tiny_environment(rent=rent) for rent in (1, 2)]


def an_episode(environment, num_calls: int) -> Episode:
    """It answers the first sub-tasks of the two that there are."""
    outcomes = [
        ToolOutcome(task.call.name, task.call.arguments, None, task.answer, "", irrelevant=False)
        for task in environment.sub_tasks[:num_calls]
    ]
    return Episode(environment, environment.tools, TokenLedger(), outcomes=outcomes, stop_reason="no_tool_call")


GROUPS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), min_size=1, max_size=4)),
    max_size=8,
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(groups=GROUPS, cut=st.integers(0, 8))
def test_every_episode_counts_once_also_across_a_checkpoint(groups, cut, tmp_path_factory):
    rates = SolvedRates()
    for number, (which, episodes) in enumerate(groups):
        if number == cut:
            position = rates.position()
            rates = SolvedRates.at(json.loads(json.dumps(position)))
            assert rates.position() == position
        environment = ENVIRONMENTS[which]
        rates.note_draw(environment.id, epoch=number)
        rates.add([an_episode(environment, calls) for calls, _ in episodes], [reward for _, reward in episodes])
        assert rates.of[environment.id].last_epoch == number
    path = tmp_path_factory.mktemp("rates") / "solved_rates.jsonl"
    rates.write(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["environment_id"] for line in lines] == sorted({ENVIRONMENTS[which].id for which, _ in groups})
    for line in lines:
        of = [
            each for which, episodes in groups if ENVIRONMENTS[which].id == line["environment_id"] for each in episodes
        ]
        assert (line["episodes"], line["solved"]) == (len(of), sum(calls == 2 for calls, _ in of))
        assert line["mean_reward"] == pytest.approx(sum(reward for _, reward in of) / len(of))


@pytest.mark.parametrize(
    ("solved", "sits_out"), [(0, True), (1, True), (2, False), (5, False), (8, False), (9, True), (10, True)]
)
def test_a_rate_outside_the_band_sits_out_the_epoch_after_it_was_drawn(solved, sits_out):
    rates = SolvedRates({"x": EnvironmentRate(10, solved, 3.0, last_epoch=4)})
    assert rates.sits_out("x", 5, sometimes_solved) == sits_out
    assert not rates.sits_out("x", 6, sometimes_solved)
    assert not rates.sits_out("never drawn", 5, sometimes_solved)
    drawn_alone = SolvedRates({"x": dataclasses.replace(EnvironmentRate(), last_epoch=4)})
    assert not drawn_alone.sits_out("x", 5, sometimes_solved), "its only group was cut off"


def test_a_curriculum_that_returns_nothing_is_an_error_and_passes_over_nothing():
    rates = SolvedRates({"x": EnvironmentRate(10, 5, 3.0, last_epoch=4)})
    with pytest.raises(ConfigError, match=r"the curriculum returned None for .*; return True or False"):
        rates.sits_out("x", 5, undecided)


def test_a_curriculum_cannot_change_the_rates():
    def meddles(rate, epoch):
        rate.solved = 0
        return True

    rates = SolvedRates({"x": EnvironmentRate(10, 5, 3.0, last_epoch=4)})
    assert not rates.sits_out("x", 5, meddles)
    assert rates.of["x"].solved == 5
