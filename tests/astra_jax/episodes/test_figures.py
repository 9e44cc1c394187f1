"""F1 praises solving, and neither calling everything nor calling nothing; an edited reward leaves it alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import Source
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.figures import call_errors, episode_figures
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.rewards import precision, recall
from astra_jax.testing import tiny_environment
from synthesis.answers.counting import count_solved
from synthesis.records import SubQuestion, ToolCall


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="at most one sub-task"):
        precision(2, 1)
    with pytest.raises(ValueError, match="at least one sub-task"):
        recall(0, 0)
    with pytest.raises(ValueError, match="found 3/2"):
        recall(3, 2)


def sub_task(index: int, tool: str, answer: int) -> SubQuestion:
    call = ToolCall(id=str(index), name=tool, arguments={})
    return SubQuestion(id=str(index), question="?", answer=answer, call=call)


tools, answers = st.sampled_from(["rent", "owner"]), st.integers(0, 3)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(tools, answers), max_size=6), st.lists(st.tuples(tools, answers), max_size=8), st.randoms())
def test_a_sub_task_counts_once_and_a_call_solves_at_most_one(wanted, outcomes, order: random.Random):
    sub_tasks = [sub_task(i, tool, answer) for i, (tool, answer) in enumerate(wanted)]
    solved = count_solved(sub_tasks, outcomes)
    # Multiset intersection: with sub-tasks that ask the same, each call still solves one of them.
    assert solved == sum(min(wanted.count(pair), outcomes.count(pair)) for pair in set(wanted))
    assert count_solved(sub_tasks, outcomes * 3) <= len(sub_tasks)
    assert solved <= count_solved(sub_tasks, [*outcomes, ("rent", 0)]) <= solved + 1
    order.shuffle(outcomes)
    assert count_solved(sub_tasks, outcomes) == solved


def an_episode(*outcomes: ToolOutcome, num_turns: int, num_sampled: int, final_text: str) -> Episode:
    environment, ledger = tiny_environment(), TokenLedger()
    ledger.append_given([1, 2], [Source.PROMPT] * 2, turn=0)
    ledger.append_sampled([3] * num_sampled, [-1.0] * num_sampled, turn=1, policy_versions=[0] * num_sampled)
    ledger.append_given([4], [Source.TOOL], turn=1)
    return Episode(
        environment, environment.tools, ledger, num_turns=num_turns, outcomes=list(outcomes), final_text=final_text
    )


def outcome(name: str, value: object, irrelevant: bool = False, error_kind: str | None = None) -> ToolOutcome:
    return ToolOutcome(name, {}, error_kind, value, "", irrelevant)  # type: ignore[arg-type]


def test_the_figures_of_episodes_are_means_and_ratios_of_totals():
    found, rent = outcome("find_flat", "Amber Falcon"), outcome("get_rent", 2150)
    weather = outcome("weather", "rain", irrelevant=True)
    busy = an_episode(found, rent, weather, num_turns=3, num_sampled=6, final_text="It is 2150.")
    half = an_episode(found, num_turns=2, num_sampled=4, final_text="It is 2150, I guess.")
    idle = an_episode(num_turns=1, num_sampled=4, final_text="It is 2151.")
    figures = episode_figures([busy, half, idle], [0.5, 0.25, 0.0])
    assert figures == pytest.approx(
        {
            "f1": (0.8 + 2 / 3) / 3,
            "recall": 1.5 / 3,
            "precision": (2 / 3 + 1) / 3,
            "solved_fraction": 1 / 3,
            "answer_accuracy": 2 / 3,
            "reward": 0.25,
            "tool_calls_per_episode": 4 / 3,
            "tokens_per_turn": 14 / 6,
            "irrelevant_call_share": 1 / 4,
            "invalid_call_share": 0,
            "failed_call_share": 0,
        },
        abs=1e-6,
    )
    assert episode_figures([idle], [0.0])["irrelevant_call_share"] == 0
    assert episode_figures([busy], [1.0])["f1"] == pytest.approx(0.8, abs=1e-6)
    with pytest.raises(ValueError, match="no episode to sum up"):
        episode_figures([], [])


def test_the_policys_mistakes_and_the_tools_errors_are_counted_apart():
    unknown, refused = (outcome("x", None, error_kind=kind) for kind in ("unknown_tool", "exception"))
    episode = an_episode(outcome("get_rent", 1), unknown, unknown, refused, num_turns=2, num_sampled=4, final_text="")
    figures = episode_figures([episode, episode], [0.0, 0.0])
    assert (figures["invalid_call_share"], figures["failed_call_share"]) == (2 / 4, 1 / 4)


def test_errors_are_counted_by_cause_and_kind_and_kinds_without_errors_are_left_out():
    kinds = ["unknown_tool", "malformed_call", "wrong_arguments", "timeout", "exception", "exception", None]
    outcomes = [outcome("x", None, error_kind=kind) for kind in kinds]
    two = [an_episode(*outcomes, num_turns=1, num_sampled=1, final_text="")] * 2
    assert call_errors(two) == {
        "model_errors_unknown_tool": 2,
        "model_errors_malformed_call": 2,
        "model_errors_wrong_arguments": 2,
        "tool_errors_timeout": 2,
        "tool_errors_exception": 4,
    }
    assert call_errors([]) == {}
