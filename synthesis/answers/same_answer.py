"""The one rule of "the same answer": the same value in any notation, or a stated alias; no substring.

A tool may reply with a record; the path of a sub-question leads to the value in it that is compared.

Decided: docs/decisions/figures.md, “Answers are compared by value: numbers, quantities with units, dates”.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from synthesis.answers.written_values import POWER_OR_FRACTION, Quantity, value_of
from synthesis.nfkc import nfkc
from synthesis.records import JsonValue, SubQuestion

ABSENT: Final = object()
"""The result of `value_at` where a path leads nowhere; it is the same answer as no JSON value."""


def value_at(value: JsonValue, path: Sequence[str | int]) -> JsonValue:
    """Return the value to which a path of keys and list indices leads; `ABSENT` if it leads nowhere.

    >>> value_at({"items": [{"rent": 900}]}, ("items", 0, "rent")), value_at(900, ())
    (900, 900)
    >>> value_at({"items": []}, ("items", 0, "rent")) is ABSENT
    True
    """
    for key in path:
        in_object = isinstance(value, dict) and isinstance(key, str) and key in value
        in_list = isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value)
        if not in_object and not in_list:
            return ABSENT
        value = value[key]
    return value


def is_answered(sub_question: SubQuestion, reply: JsonValue) -> bool:
    """Say whether a tool's reply has the gold answer of a sub-question, or an alias of it, at its path."""
    return same_answer(sub_question.answer, value_at(reply, sub_question.path), sub_question.aliases)


def stands_in(reply: JsonValue, gold: JsonValue) -> bool:
    """Say whether a reply is an answer or has it anywhere inside; a Boolean or null stands nowhere.

    Here a numeral is also its number, and words stand in a longer text.

    >>> stands_in({"owner": {"name": "Amber Fox"}}, "amber fox"), stands_in(["sold by Amber Fox"], "Amber Fox")
    (True, True)
    >>> stands_in([{"open": True}], True), stands_in({"rent": "3050"}, 3050), stands_in("Oakland", "Oak")
    (False, True, False)
    """
    said = _normalised_text(str(gold))
    if gold is None or isinstance(gold, bool) or not said:
        return False
    # Digits stand in no longer text: 2024 is not told by 2024-05-01.
    is_words = isinstance(gold, str) and any(map(str.isalpha, gold))
    told = re.compile(rf"(?<![0-9a-z]){re.escape(said)}(?![0-9a-z])" if is_words else rf"^{re.escape(said)}$")
    return any(
        same_answer(gold, value) or (isinstance(value, str) and told.search(_normalised_text(value)) is not None)
        for value in _values_in(reply)
    )


def _values_in(value: JsonValue) -> Iterator[JsonValue]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _values_in(inner)


def same_answer(gold: JsonValue, value: JsonValue, aliases: Collection[str] = ()) -> bool:
    """Say whether two JSON values are the same answer: equal after normalisation.

    Texts that say a number, a quantity or a date (`written_values`) are compared by that, exactly; others
    NFKC-normalised, case-folded, with white space collapsed. A text that writes a number out is that number; "5" alone
    is a text. Whole numbers are compared exactly, others to a relative 1e-6 (a Boolean is not a number); lists element
    by element in order; objects key by key. `aliases` are further texts with the meaning of `gold`, by its author.

    >>> same_answer("Rue  de la Paix", "rue de la paix"), same_answer(5, "error code 1500"), same_answer(5, 5.0)
    (True, False, True)
    >>> same_answer(1, True), same_answer([1, 2], [2, 1]), same_answer(None, None)
    (False, False, True)
    >>> same_answer(8000000, "8 million"), same_answer("5 km", "5000 m"), same_answer("3 March 2021", "2021-03-03")
    (True, True, True)
    >>> same_answer("New York City", "NYC"), same_answer("New York City", "NYC", aliases=["NYC"])
    (False, True)
    """
    # Python's bool is an int: without this line True would equal 1.
    if isinstance(gold, bool) or isinstance(value, bool):
        return isinstance(gold, bool) and isinstance(value, bool) and gold == value
    if isinstance(gold, int | float) and isinstance(value, int | float):
        return _same_number(gold, value)
    if isinstance(gold, str) and isinstance(value, str):
        return _same_text(gold, value) or any(_same_text(alias, value) for alias in aliases)
    if isinstance(gold, int | float) and isinstance(value, str):
        return _says(value, gold)
    if isinstance(gold, str) and isinstance(value, int | float):
        return _says(gold, value)
    if isinstance(gold, Mapping) and isinstance(value, Mapping):
        return gold.keys() == value.keys() and all(same_answer(gold[key], value[key]) for key in gold)
    if isinstance(gold, list | tuple) and isinstance(value, list | tuple):
        return len(gold) == len(value) and all(same_answer(a, b) for a, b in zip(gold, value, strict=True))
    return gold is None and value is None


def _same_number(gold: float, value: float) -> bool:
    if isinstance(gold, int) and isinstance(value, int):
        return gold == value  # a relative tolerance would take 1000001 for 1000000
    if abs(gold) > sys.float_info.max or abs(value) > sys.float_info.max:  # a whole number that no float reaches
        return gold == value
    return math.isclose(gold, value, rel_tol=1e-6, abs_tol=1e-9)  # absolute, since beside 0 nothing is near


def _same_text(gold: str, value: str) -> bool:
    if gold == value:
        return True
    said, other = value_of(gold), value_of(value)
    if said is None and other is None:
        return _normalised_text(gold) == _normalised_text(value)
    return said == other  # by their values alone: "5 mg" and "5 Mg" differ in case, and are two values


def _says(text: str, number: int | float) -> bool:
    said = value_of(text)
    if not isinstance(said, Quantity) or said.what:
        return False
    return _same_number(number, said.number if isinstance(said.number, int) else float(said.number))


def _normalised_text(text: str) -> str:
    if not text.isascii():
        text = nfkc(POWER_OR_FRACTION.sub("^", text))
    return " ".join(text.casefold().split())
