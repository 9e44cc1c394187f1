"""The one rule of "the same answer": equal type, and equal after normalisation; never a substring."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping

from synthesis.records import JsonValue


def same_answer(gold: JsonValue, value: JsonValue) -> bool:
    """Say whether two JSON values are the same answer: equal type, and equal after normalisation.

    Texts are compared NFKC-normalised, case-folded, with white space collapsed; whole numbers exactly, others to a
    relative 1e-6 (a Boolean is not a number); lists element by element in order; objects key by key.

    >>> same_answer("Rue  de la Paix", "rue de la paix"), same_answer(5, "error code 1500"), same_answer(5, 5.0)
    (True, False, True)
    >>> same_answer(1, True), same_answer([1, 2], [2, 1]), same_answer(None, None)
    (False, False, True)
    """
    # Python's bool is an int: without this line True would equal 1.
    if isinstance(gold, bool) or isinstance(value, bool):
        return isinstance(gold, bool) and isinstance(value, bool) and gold == value
    if isinstance(gold, int | float) and isinstance(value, int | float):
        if isinstance(gold, int) and isinstance(value, int):
            return gold == value  # a relative tolerance would take 1000001 for 1000000
        return math.isclose(gold, value, rel_tol=1e-6, abs_tol=1e-9)  # absolute, since beside 0 nothing is near
    if isinstance(gold, str) and isinstance(value, str):
        return _normalised_text(gold) == _normalised_text(value)
    if isinstance(gold, Mapping) and isinstance(value, Mapping):
        return gold.keys() == value.keys() and all(same_answer(gold[key], value[key]) for key in gold)
    if isinstance(gold, list | tuple) and isinstance(value, list | tuple):
        return len(gold) == len(value) and all(same_answer(a, b) for a, b in zip(gold, value, strict=True))
    return gold is None and value is None


def _normalised_text(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
