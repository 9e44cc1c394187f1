"""Whether the pages behind a call's rows are read as one list: where that is much shorter than rows side by side.

Rows side by side are as long as the longest of them. A list of the pages that there are (`kv_pages`) has one length,
so that it is one more program: half of what the rows of a call may have of their own, and two thirds of all prefixes.
"""

from __future__ import annotations

from typing import NamedTuple

from astra_jax.engine.schedule import Limits, RowShape, Sample, Track

_FEW_ROWS = 8


class MostPages(NamedTuple):
    """How many pages the lists of a call hold, on each shard."""

    prefix_pages: int
    own_pages: int


def num_prefix_pages(limits: Limits, track: Track) -> int:
    """Return how many pages of a sequence are read as its prefix: fewer while its prompt is being read."""
    return min(limits.num_prefix_pages(track.num_prompt_tokens), track.num_cached // limits.page_tokens)


def has_short_programs(limits: Limits, shape: RowShape) -> bool:
    """Say whether calls of a shape have programs of their own for short tables and for lists.

    Nearly all calls are of the largest shape; few rows read little, and each program is one more to compile.
    """
    return shape == limits.row_shapes[0] and shape.prefixes * shape.rows_per_prefix >= _FEW_ROWS


def own_table_sizes(limits: Limits, shape: RowShape) -> tuple[int, ...]:
    """Return how many pages of their own the rows of a call may be told of: the least that suffices is taken."""
    return limits.own_table_pages if has_short_programs(limits, shape) else limits.own_table_pages[1:]


def most_pages(limits: Limits, shape: RowShape) -> MostPages:
    """Return how long the lists of a shape's calls are."""
    num_own = limits.own_table_pages[0] * shape.prefixes * shape.rows_per_prefix
    return MostPages(-(-2 * shape.prefixes * limits.prefix_table_pages // 3), num_own)


def most_listed_pages(limits: Limits, sample: Sample) -> MostPages | None:
    """Return how long the lists of a call are; None where rows are as short, or have no room in lists."""
    if not has_short_programs(limits, sample.shape):
        return None
    most_of_row, most = limits.own_table_pages[0], most_pages(limits, sample.shape)
    is_longer = False
    for of_shard in sample.rows:
        tracks = [row.track for of_prefix in of_shard for row in of_prefix]
        prefix_pages = [num_prefix_pages(limits, track) for track in tracks]
        in_tables = [len(track.table) - prefix for track, prefix in zip(tracks, prefix_pages, strict=True)]
        is_longer |= max(in_tables, default=0) > most_of_row
        # Pages that only new tokens go to are in no list.
        own_pages = sum(limits.pages_for(track.num_cached) for track in tracks) - sum(prefix_pages)
        of_prefixes = sum(num_prefix_pages(limits, of_prefix[0].track) for of_prefix in of_shard if of_prefix)
        if own_pages > most.own_pages or of_prefixes > most.prefix_pages:
            return None
    return most if is_longer else None
