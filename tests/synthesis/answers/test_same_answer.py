"""Two values are the same answer by type and by value, never because one stands in the other."""

from __future__ import annotations

import pytest

from synthesis.answers.expectation import meets_expectation
from synthesis.answers.same_answer import same_answer
from synthesis.records import JsonValue


@pytest.mark.parametrize(
    ("gold", "value", "same"),
    [
        ("Oak", "oak ", True), ("ＳＢ３７１８", "sb3718", True), ("Oak", "Oak Hill", False),
        ("Oak Hill", "Oak", False), ("5", 5, False), (1_000_000, 1_000_001, False), (1_000_000, 1_000_000.5, True),
        (0.3, 0.1 + 0.2, True), (0.3, 0.301, False), (0, 1e-6, False), (1, True, False), (False, False, True),
        ([1, 2], [2, 1], False), ([1, 2], (1, 2), True), ([1, 2], [1, 2, 3], False),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1}, True), ({"a": 1}, {"a": 1, "b": 2}, False), (None, None, True),
        (None, "None", False), ("", None, False),
    ],
)  # fmt: skip
def test_values_are_the_same_answer_by_type_and_value(gold: JsonValue, value: JsonValue, same: bool) -> None:
    assert same_answer(gold, value) is same
    assert same_answer(value, gold) is same


@pytest.mark.parametrize(
    ("text", "refuses", "asks_back"),
    [
        ("I cannot look that up.", True, False), ("没有合适的工具，无法回答。", True, False),
        ("Sorry, none of my tools can book a table.", True, False),
        ("My tools do not allow me to book a table.", True, False), ("No suitable tool is here.", True, False),
        ("The tools do it: it is 5.", False, False), ("No other tools were needed: the rent is 5.", False, False),
        ("The tools do not disagree: it is 5.", False, False),
        ("The tool doesn't charge for that; it is 5.", False, False), ("No search tool was used; 5.", False, False),
        ("The cannotery costs 5.", False, False), ("Which flat do you mean?\n", False, True),
        ("请问是哪套公寓？", False, True), ("Which flat? I take Oak: it is 5.", False, False),
        ("I am not able to: which flat?", True, True), ("", False, False),
    ],
)  # fmt: skip
def test_the_last_words_refuse_or_hand_the_turn_back(text: str, refuses: bool, asks_back: bool) -> None:
    assert meets_expectation("refuse", text) is refuses
    assert meets_expectation("ask_back", text) is asks_back
