"""Texts of a shape: a regular expression is turned round, and a text that it matches is drawn."""

from __future__ import annotations

import re
import string
from random import Random
from re import _parser  # type: ignore[attr-defined]  # the tree of an expression; the standard library has no other way
from typing import Any, Final

_MOST_REPEATS: Final = 12
"""Maximum number of repetitions beyond the least; `+` and `*` have no end of their own."""
_PRINTED: Final = list(map(chr, range(32, 127)))
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_WORD": string.ascii_lowercase + string.digits,
    "CATEGORY_SPACE": " ",
}


def text_like(pattern: str, rng: Random) -> str | None:
    """Draw a text that a regular expression finds a match in; None if it asks for more than this reads.

    >>> text_like(r"^0x[0-9a-f]{4}$", Random(0)), text_like(r"(BTC|ETH)-\\d+", Random(1)), text_like("(?=a)", Random(0))
    ('0xd18f', 'BTC-1417776317', None)
    """
    try:
        text = _drawn(_parser.parse(pattern), rng)
    except (re.error, KeyError, IndexError, OverflowError):
        return None
    return text if re.search(pattern, text) else None


def _drawn(tree: Any, rng: Random) -> str:
    return "".join(_part(str(operation), argument, rng) for operation, argument in tree)


def _part(operation: str, argument: Any, rng: Random) -> str:
    match operation:
        case "LITERAL":
            return chr(argument)
        case "IN" | "NOT_LITERAL" | "ANY":
            return rng.choice(_letters(operation, argument))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, inner = argument
            count = rng.randint(int(least), min(int(most), int(least) + _MOST_REPEATS))
            return "".join(_drawn(inner, rng) for _ in range(count))
        case "SUBPATTERN":
            return _drawn(argument[-1], rng)
        case "BRANCH":
            return _drawn(rng.choice(argument[1]), rng)
        case "AT":  # a beginning, an end or a boundary takes no room
            return ""
    raise KeyError(operation)


def _letters(operation: str, argument: Any) -> list[str]:
    if operation != "IN":
        return [letter for letter in _PRINTED if operation == "ANY" or ord(letter) != argument]
    found: list[str] = []
    for kind, value in argument:
        match str(kind):
            case "LITERAL":
                found.append(chr(value))
            case "RANGE":
                found += map(chr, range(value[0], value[1] + 1))
            case "CATEGORY":
                found += _CATEGORIES[str(value)]
    is_negated = str(argument[0][0]) == "NEGATE"
    return [letter for letter in _PRINTED if letter not in found] if is_negated else found
