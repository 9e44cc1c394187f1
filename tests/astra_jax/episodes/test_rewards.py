"""Every reward is a function of a few counts, in [0, 1]; of a logged episode they are those of the episode itself."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.log import LoggedEpisode, episode_to_json
from astra_jax.episodes.rewards import PRECISION_EPSILON, REWARDS, EpisodeResult, RewardName, episode_reward, result_of
from astra_jax.testing import tiny_environment
from synthesis.records import Environment


@st.composite
def results(draw) -> EpisodeResult:
    num_subtasks = draw(st.integers(1, 8))
    num_solved = draw(st.integers(0, num_subtasks))
    num_attempted = draw(st.integers(0, num_subtasks - num_solved))
    num_tool_calls = num_solved + num_attempted + draw(st.integers(0, 20))
    return EpisodeResult(num_solved, num_subtasks, num_tool_calls, num_attempted, *(draw(st.booleans()) for _ in "123"))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(results())
def test_every_reward_lies_between_0_and_1(result):
    for name, reward in REWARDS.items():
        assert 0 <= reward(result) <= 1, name


@settings(max_examples=300, deadline=None, derandomize=True)
@given(results())
def test_rewards_differ_from_f1_as_their_formulas_say(result):
    """2n̂ / (n + c + ε) is F1; the others are told apart by what moves them."""
    solved, subtasks, calls = result[:3]
    f1 = 2 * solved / (subtasks + calls + PRECISION_EPSILON)
    earned = {name: reward(result) for name, reward in REWARDS.items()}
    in_vain = result._replace(num_tool_calls=calls + 1)
    assert earned["f1"] == pytest.approx(f1, rel=1e-9)
    assert earned["recall"] == REWARDS["recall"](in_vain) == solved / subtasks
    assert earned["precision"] == pytest.approx(solved / (calls + PRECISION_EPSILON))
    assert earned["precision"] == REWARDS["precision"](result._replace(num_subtasks=subtasks + 1))
    assert earned["call_budget"] == pytest.approx(solved / max(subtasks, calls))
    assert earned["partial_credit"] == pytest.approx(f1 + result.num_attempted / (subtasks + calls + PRECISION_EPSILON))
    assert earned["f1_and_answer"] == pytest.approx((f1 + result.is_answer_accurate) / 2)
    refusing = result._replace(has_refused=True)
    assert REWARDS["refusals"](refusing) == (solved / subtasks if result.must_refuse else 0)
    if not result.has_refused:
        assert earned["refusals"] == pytest.approx(0 if result.must_refuse else f1)


def test_every_name_has_a_reward():
    assert set(REWARDS) == set(get_args(RewardName))


def an_episode(environment: Environment, outcomes: list[ToolOutcome], final_text: str) -> Episode:
    ledger = TokenLedger()
    episode = Episode(environment, environment.tools, ledger, outcomes=outcomes, final_text=final_text)
    episode.num_turns, episode.stop_reason = 1, "no_tool_call"
    return episode


def the_outcomes(environment: Environment) -> dict[str, ToolOutcome]:
    (sub_task, *_) = environment.sub_tasks
    call = sub_task.call
    assert call is not None
    solved = ToolOutcome(call.name, call.arguments, None, sub_task.answer, "", irrelevant=False)
    failed = ToolOutcome(call.name, {}, "exception", None, "", irrelevant=False)
    elsewhere = ToolOutcome("nowhere", {}, "unknown_tool", None, "", irrelevant=False)
    return {"solved": solved, "failed": failed, "elsewhere": elsewhere}


@pytest.mark.parametrize(
    ("asked", "num_attempted"),
    [
        (["failed"], 1),
        (["failed", "failed"], 1),
        (["failed", "solved"], 0),
        (["elsewhere"], 0),
        ([], 0),
    ],
)
@pytest.mark.parametrize("final_text", ["It is 2150.", "I cannot look that up."])
def test_a_logged_episode_earns_what_the_episode_earned(taught, asked, num_attempted, final_text):
    environment = tiny_environment(rent=2150)
    episode = an_episode(environment, [the_outcomes(environment)[name] for name in asked], final_text)
    result = result_of(episode)
    assert result.num_attempted == num_attempted
    assert result.has_refused == ("cannot" in final_text)
    line = episode_to_json(episode, taught.tokenizer, policy="sft", reward=episode_reward(episode, "partial_credit"))
    assert LoggedEpisode.model_validate(line).result == result
    assert line["reward"] == REWARDS["partial_credit"](result)


def test_a_log_that_kept_too_little_has_no_result(taught):
    episode = an_episode(tiny_environment(rent=2150), [], "It is 2150.")
    line = episode_to_json(episode, taught.tokenizer, policy="sft", reward=0.0)
    del line["expectation"]
    with pytest.raises(ValueError, match="expected calls and the ending that is right, found a line of an older"):
        _ = LoggedEpisode.model_validate(line).result
