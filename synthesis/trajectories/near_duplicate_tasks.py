"""Near-duplicate tasks: of requests to one server that are put in almost the same words, the first one is kept.

MinHash signatures in bands (locality-sensitive hashing) name the candidates; what decides is the exact Jaccard
similarity of their shingles, so a task is never lost to a chance collision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_WORD: Final = re.compile(r"[^\W_\u3400-\u9fff]+|[\u3400-\u9fff]")
_SHINGLE_WORDS: Final = 3
_NUM_PERMUTATIONS: Final = 128
_LEAST_RECALL: Final = 0.999
"""Share of the pairs at the very limit that the bands must find; more alike pairs are found more surely still."""


def shingles(text: str) -> frozenset[str]:
    """Return every run of three words of a text; a Chinese character is a word, letter case and marks say nothing.

    >>> sorted(shingles("Book a hotel in Oslo!"))
    ['a hotel in', 'book a hotel', 'hotel in oslo']
    >>> sorted(shingles("查天气。"))
    ['查 天 气']
    """
    words = _WORD.findall(text.casefold())
    # A text of fewer words is one shingle, even one of none: so no set is empty, and similarity never divides by 0.
    return frozenset(
        " ".join(words[start : start + _SHINGLE_WORDS]) for start in range(max(1, len(words) - _SHINGLE_WORDS + 1))
    )


def similarity(some: frozenset[str], others: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets of shingles: what they share over what they hold together.

    >>> similarity(frozenset("abc"), frozenset("bcd"))
    0.5
    """
    return len(some & others) / len(some | others)


def bands_and_rows(least_similarity: float) -> tuple[int, int]:
    """Return how many bands of how many signature rows find all but one in a thousand pairs of a similarity.

    A pair of similarity s shares one band of r rows with probability s^r, and one of b bands with 1 - (1 - s^r)^b.

    >>> bands_and_rows(0.8), bands_and_rows(0.5)
    ((25, 5), (64, 2))
    """
    # As many rows as the recall allows: every further one makes chance candidates rarer. One row is the last resort.
    rows = max(
        rows
        for rows in range(1, _NUM_PERMUTATIONS + 1)
        if rows == 1 or 1 - (1 - least_similarity**rows) ** (_NUM_PERMUTATIONS // rows) >= _LEAST_RECALL
    )
    return _NUM_PERMUTATIONS // rows, rows


def near_duplicates(tasks: Iterable[tuple[int, str]], least_similarity: float) -> Iterator[int]:
    """Yield the number of every task, given as (number, text), that repeats an earlier one that was kept.

    Two tasks are one from the Jaccard similarity `least_similarity` in (0, 1] on.
    """
    from datasketch import MinHash, MinHashLSH  # here: it takes a second to import, and few runs need it

    index = MinHashLSH(num_perm=_NUM_PERMUTATIONS, params=bands_and_rows(least_similarity))
    kept: dict[int, frozenset[str]] = {}
    unmarked = MinHash(num_perm=_NUM_PERMUTATIONS)
    for number, text in tasks:
        found = shingles(text)
        signature = unmarked.copy()
        signature.update_batch([shingle.encode() for shingle in found])
        if any(similarity(found, kept[earlier]) >= least_similarity for earlier in index.query(signature)):
            yield number
        else:
            kept[number] = found
            index.insert(number, signature)
