"""Two values are the same answer by type and by value, never because one stands in the other."""

from __future__ import annotations

import pytest

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
