"""Unicode's compatibility form of foreign text, in time linear in the text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

MOST_MARKS: Final = 30
"""Maximum number of marks on one character, that of Unicode's Stream-Safe Text Format (UAX #15, section 13)."""
_SHORT: Final = 1_000


def nfkc(text: str) -> str:
    """Return a text in NFKC, a long one without the marks on a character beyond the first `MOST_MARKS`.

    Marks are sorted, each past all before it: 40,000 on one character took seconds.

    >>> nfkc("５㎞"), len(nfkc("a" + "\u0301" * 2_000))
    ('5km', 30)
    """
    if len(text) > _SHORT and not text.isascii():
        text = "".join(_with_few_marks(text))
    return unicodedata.normalize("NFKC", text)


def _with_few_marks(text: str) -> Iterator[str]:
    marks = 0
    for character in text:
        # Its first part counts: some characters that are no mark are composed of marks.
        is_mark = unicodedata.combining(unicodedata.normalize("NFKD", character)[0])
        marks = marks + 1 if is_mark else 0
        if marks <= MOST_MARKS:
            yield character
