"""The blocks of keys that a block of queries must visit where responses share a prompt.

Every token names its segment and its prefix, the segment that this one continues. It attends to its whole prefix and to
the tokens before it in its own segment. A prompt is its own prefix; padding has the id 0 for both.

Decided: docs/decisions/rl.md, “The prompt of a group is computed once for several episodes”.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import numpy as np

Array = TypeVar("Array", jax.Array, np.ndarray)

_BEYOND_ALL = 2**30


def visible_blocks(
    segment_ids_T: Array, prefix_ids_T: Array, places_T: Array, kv_segment_ids_S: Array, *, queries: int, keys: int
) -> Array:
    """Say which blocks of `keys` keys each block of `queries` queries visits: all that it sees, few that it does not.

    Queries stand at `places_T` of the keys' sequence. A block of padding, too, visits the block that it stands in.
    Where every segment begins with a block, none visits a block of another segment but its prefix. Returns bool
    [T / queries, S / keys].

    >>> ids, prefix_ids = np.array([1, 1, 2, 2, 3, 3, 0, 0]), np.array([1, 1, 1, 1, 1, 1, 0, 0])
    >>> visible_blocks(ids, prefix_ids, np.arange(8), ids, queries=2, keys=2).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 0, 1, 0],
           [0, 0, 0, 1]])
    """
    first_Y, last_Y = _range(kv_segment_ids_S.reshape(-1, keys))
    places_XC = places_T.reshape(-1, queries)
    start_Y = kv_segment_ids_S.__array_namespace__().arange(len(first_Y)) * keys

    def meet_XY(ids_T: Array) -> Array:
        first_X, last_X = _range(ids_T.reshape(-1, queries))
        return (first_X[:, None] <= last_Y) & (first_Y <= last_X[:, None])

    is_before_XY = start_Y <= places_XC.max(-1)[:, None]
    is_own_XY = is_before_XY & (start_Y + keys > places_XC.min(-1)[:, None])
    return is_own_XY | is_before_XY & (meet_XY(segment_ids_T) | meet_XY(prefix_ids_T))


def _range(ids_XC: Array) -> tuple[Array, Array]:
    """Return the lowest and the highest id of each block; padding counts only in blocks of nothing else."""
    where = ids_XC.__array_namespace__().where
    last_X = ids_XC.max(-1)
    return where(last_X > 0, where(ids_XC > 0, ids_XC, _BEYOND_ALL).min(-1), 0), last_X
