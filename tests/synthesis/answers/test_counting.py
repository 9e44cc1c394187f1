"""The counts n̂, n and c: values that solve a sub-task, values that do not, and a checked ending."""

from __future__ import annotations

import pytest

from astra_jax.testing import tiny_environment
from synthesis.answers.counting import count_episode, count_solved, is_solved
from synthesis.answers.expectation import meets_expectation
from synthesis.records import SubQuestion, ToolCall

FLAT, RENT = ("find_flat", "Amber Falcon"), ("get_rent", 2150)


def counted(environment, *outcomes, calls, text="", state=None):
    met_expectation = environment.expectation != "answer" and meets_expectation(environment.expectation, text)
    return count_episode(
        environment, outcomes, num_tool_calls=calls, final_state=state, met_expectation=met_expectation
    )


def test_a_sub_task_is_solved_by_its_own_tool_and_its_own_answer_alone():
    call = ToolCall(id="1", name="get_rent", arguments={"flat": "Amber Falcon"})
    asked = SubQuestion(id="q1", question="?", answer=2150, call=call)
    assert is_solved(asked, "get_rent", 2150.0)
    assert not is_solved(asked, "get_rent", 2151)
    assert not is_solved(asked, "find_flat", 2150)
    assert not is_solved(asked.model_copy(update={"call": None}), "get_rent", 2150)


def test_each_call_solves_the_first_sub_task_that_is_still_open():
    call = ToolCall(id="1", name="get_rent", arguments={})
    asked = [
        SubQuestion(id=name, question="?", answer=answer, call=call)
        for name, answer in [("q1", 1), ("q2", 2), ("q3", 1)]
    ]
    assert count_solved(asked, [("get_rent", 2), ("get_rent", 1), ("get_rent", 1), ("get_rent", 1)]) == 3
    assert count_solved(asked, [("get_rent", 1)]) == 1
    assert count_solved(asked, [("get_rent", 9), ("get_rent", 2)]) == 1
    assert count_solved(asked, []) == 0


def test_where_only_the_answer_counts_the_ending_is_no_sub_task():
    environment = tiny_environment()
    assert counted(environment, FLAT, RENT, calls=5, text="I cannot say.", state={"any": 1}) == (2, 2, 5)
    assert counted(environment, FLAT, calls=1) == (1, 2, 1)


@pytest.mark.parametrize(("state", "solved"), [({"count": 1}, 3), ({"count": 2}, 2), (None, 2)])
def test_a_final_state_is_one_more_sub_task_and_one_more_call(state, solved):
    environment = tiny_environment().model_copy(update={"state": {"count": 0}, "final_state": {"count": 1}})
    assert counted(environment, FLAT, RENT, calls=2, text="Which?", state=state) == (solved, 3, 3)


@pytest.mark.parametrize(
    ("expectation", "text", "solved"),
    [
        ("refuse", "I cannot look that up.", 1),
        ("refuse", "Which flat?", 0),
        ("ask_back", "Which flat?", 1),
        ("ask_back", "I cannot look that up.", 0),
    ],
)
def test_a_refusal_or_a_question_back_is_all_that_there_is_to_solve(expectation, text, solved):
    withheld = {"sub_questions": (), "composition": None, "expectation": expectation, "missing": "get_rent"}
    environment = tiny_environment().model_copy(update=withheld)
    assert counted(environment, FLAT, calls=4, text=text) == (solved, 1, 5)
    assert counted(environment, calls=0, text=text) == (solved, 1, 1)
