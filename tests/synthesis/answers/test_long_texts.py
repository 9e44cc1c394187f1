"""The time to read a model's text grows no faster than its length, for any characters."""

from __future__ import annotations

import time

import pytest

from synthesis.answers.expectation import meets_expectation
from synthesis.answers.final_answer import holds_answer
from synthesis.answers.same_answer import same_answer
from synthesis.answers.written_values import value_of
from synthesis.environments.questions.qa_instances import mentions
from synthesis.nfkc import nfkc
from synthesis.teacher.lenient_json import json_values
from synthesis.trajectories.reward_axes import _NUMBER
from synthesis.written_language import foreign_passages
from tests.time_limit import at_most

MARKS = ["a" + "\u0301" * 40_000 + "\u0316" * 40_000, "a" + "\u0f73" * 40_000, "a" + "\u0301\uff9e" * 40_000]
"""The second and third are made of characters that are no marks, but decompose into some."""


@pytest.mark.parametrize(
    "refusal", ["I cannot " + "could not but " * 8_000 + "no", "I cannot could not" + " " * 100_000]
)
def test_a_refusal_is_told_in_a_sentence_of_any_length(refusal):
    with at_most(20):
        assert meets_expectation("refuse", refusal)


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("I cannot " + "could not find it, but " * 8_000 + "have it", False),
        ("At first I could not find " + "an item, " * 40 + "in one register, but the second one has it: 42", False),
        ("I could not find the price, but I looked up " + "an item, " * 40 + "and it is not there", True),
        ("I could not find it, but here it is not. I could not find it but here it is", True),
    ],
)
def test_a_failure_that_recovers_is_no_refusal_at_any_length(text, refuses):
    with at_most(20):
        assert meets_expectation("refuse", text) is refuses


@pytest.mark.parametrize("text", MARKS)
def test_marks_without_end_are_compared(text):
    began = time.process_time()  # `normalize` hears no signal before it is done
    assert len(nfkc(text)) < 100
    assert not same_answer(text, "b")
    assert not holds_answer(text + " 12", 13)
    assert not mentions(text, "b")
    foreign_passages(text, "en")
    assert time.process_time() - began < 20


def test_a_short_text_keeps_all_its_marks():
    assert len(nfkc("x" + "\u0316" * 900)) == 901


def test_an_answer_said_over_and_over_is_one_answer():
    with at_most(20):
        assert holds_answer("It is " + "5 " * 200_000, 5)


def test_a_number_without_end_is_none():
    with at_most(20):
        assert _NUMBER.search("1,1,1" * 60_000 + "a") is None


@pytest.mark.parametrize("text", ["```" + "a" * 200_000, "```" + " " * 200_000])
def test_a_fence_that_never_closes_holds_nothing(text):
    with at_most(20):
        assert list(json_values(text)) == []


def test_a_word_without_end_is_no_address():
    with at_most(20):
        foreign_passages("a" * 200_000, "en")
    assert foreign_passages("见 https://example.com/a?b=c 。", "zh") == []


@pytest.mark.parametrize("text", ["5 mıllion", "5 bİllion"])
def test_letters_that_only_look_like_an_i_are_no_scale(text):
    assert value_of(text) != value_of(text.replace("ı", "i").replace("İ", "i"))
    assert not holds_answer(f"It is {text}.", 5_000_000)
    assert not same_answer(text, "7 km")
