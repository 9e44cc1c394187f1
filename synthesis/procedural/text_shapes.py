"""Texts of a shape: a regular expression is turned round, and a text that it matches is drawn."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from itertools import islice
from random import Random
from re import _parser  # type: ignore[attr-defined]  # the tree of an expression; the standard library has no other way
from typing import Any, Final

_MOST_REPEATS: Final = 12
"""Maximum number of repetitions beyond the least; `+` and `*` have no end of their own."""
_MOST: Final = 1000
"""Maximum number of letters and repetitions of a text, and of the letters of a range that are drawn from."""
_BEGIN, _END = "\x02", "\x03"
_MARKS: Final = {"AT_BEGINNING": _BEGIN, "AT_BEGINNING_STRING": _BEGIN, "AT_END": _END, "AT_END_STRING": _END}
"""Marks of `^` and `$` in a drawn text, which has no unprintable letters of its own."""
_PRINTED: Final = list(map(chr, range(32, 127)))
_CATEGORIES: Final = {"DIGIT": string.digits, "WORD": string.ascii_lowercase + string.digits, "SPACE": " "}


def text_like(pattern: str, rng: Random) -> str | None:
    """Draw a text of printable letters in which a regular expression finds a match; None if this cannot draw one.

    >>> text_like(r"^0x[0-9a-f]{4}$", Random(0)), text_like(r"(BTC|ETH)-\\d+", Random(1)), text_like("(?=a)", Random(0))
    ('0xd18f', 'BTC-1417776317', None)
    """
    try:
        parts = list(islice(_drawn(_parser.parse(pattern), rng), _MOST + 1))
    except (re.error, KeyError, IndexError, OverflowError, RecursionError):
        return None
    # A drawn text matches by construction. A search could take time exponential in its length.
    text = "".join(parts).lstrip(_BEGIN).rstrip(_END)
    return text if len(parts) <= _MOST and text.isprintable() else None


def _drawn(tree: Any, rng: Random) -> Iterator[str]:
    """Yield the parts of a text; each repetition yields an empty one, too, so that empty ones have an end."""
    for operation, argument in tree:
        match str(operation):
            case "LITERAL" if chr(argument).isprintable():
                yield chr(argument)
            case "ANY" | "IN":
                yield rng.choice(_PRINTED if argument is None else _letters(argument))
            case "NOT_LITERAL":
                yield rng.choice(_letters([("NEGATE", None), ("LITERAL", argument)]))
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = argument
                for _ in range(rng.randint(int(least), min(int(most), int(least) + _MOST_REPEATS))):
                    yield ""
                    yield from _drawn(inner, rng)
            case "SUBPATTERN":
                yield from _drawn(argument[-1], rng)
            case "BRANCH":
                yield from _drawn(rng.choice(argument[1]), rng)
            case "AT" if str(argument) in _MARKS:
                yield _MARKS[str(argument)]
            case other:
                raise KeyError(other)


def _letters(parts: Any) -> list[str]:
    """Return the letters that a set such as `[a-f0-9]` stands for; of `[^a]` those that are neither `a` nor `A`."""
    found: list[str] = []
    for kind, value in parts:
        match str(kind):
            case "LITERAL":
                found.append(chr(value))
            case "RANGE":
                found += map(chr, range(value[0], min(value[1] + 1, value[0] + _MOST)))
            case "CATEGORY":
                found += _CATEGORIES[str(value).removeprefix("CATEGORY_")]
    if str(parts[0][0]) == "NEGATE":
        return [letter for letter in _PRINTED if letter not in found and letter.swapcase() not in found]
    return list(filter(str.isprintable, found))
