r"""Answers to AIME: whole numbers from 0 to 999, the last of which stands in `\boxed{}`."""

from __future__ import annotations

import re
from typing import Final

_BOX: Final = r"\boxed{"
_BRACE: Final = re.compile("[{}]")
_AROUND: Final = re.compile(r"\\[,;!: ]|\s|\$|\^\{?\\circ\}?|\\text\{[a-zA-Z ]*\}")
"""What may stand around a number without changing it: spaces, dollars, degrees, a unit in words."""
MOST_ANSWER: Final = 999


def boxed(text: str) -> str | None:
    r"""Return what stands in the last `\boxed{}` of a text that is closed; None where there is none.

    >>> boxed(r"so \boxed{1}, no: \boxed{m+n=\frac{50}{2}}"), boxed(r"\boxed{12"), boxed("12")
    ('m+n=\\frac{50}{2}', None, None)
    """
    last: tuple[int, int] | None = None
    opened: list[int] = []  # where what stands in each brace begins that is not closed yet
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened and text.endswith(_BOX, 0, first := opened.pop()) and (last is None or first > last[0]):
            last = first, brace.start()
    return None if last is None else text[slice(*last)]


def answer_of(text: str) -> int | None:
    r"""Return the whole number that a text gives as its answer; None where its last box holds none from 0 to 999.

    >>> [answer_of(rf"\boxed{{{inner}}}") for inner in ("073", " $25^\\circ$ ", "m+n = 25", "1/2", "1000", "-3")]
    [73, 25, 25, None, None, None]
    """
    inner = boxed(text)
    if inner is None:
        return None
    return whole_number(_AROUND.sub("", inner).rpartition("=")[2])


def whole_number(text: str) -> int | None:
    """Read a whole number from 0 to 999, zeros before it or not; None where it is none.

    >>> whole_number("007"), whole_number("７"), whole_number("")
    (7, None, None)
    """
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else None
    return number if number is not None and number <= MOST_ANSWER else None
