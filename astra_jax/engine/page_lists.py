"""How many pages the rows of a call that samples have behind them: one of three sizes, so that few are compiled.

Programs on CPU and GPU read the pages of all rows in one list (`kv_pages`), so a size says how many they are on
average; a single row may have twice as many of its own.
"""

from __future__ import annotations

from typing import Final

from astra_jax.engine.schedule import Limits, RowShape, Sample, Track

_FEW_ROWS: Final = 8


def num_prefix_pages(limits: Limits, track: Track) -> int:
    """Return how many pages of a sequence are read as its prefix: fewer while its prompt is being read."""
    return min(limits.num_prefix_pages(track.num_prompt_tokens), track.num_cached // limits.page_tokens)


def own_pages_a_row(limits: Limits, sample: Sample) -> int:
    """Return the smallest size in whose lists the rows of a call have room, on each shard."""
    return next(size for size in _sizes(limits, sample.shape) if _has_room(limits, sample, size))


def _sizes(limits: Limits, shape: RowShape) -> tuple[int, ...]:
    sizes = limits.own_pages_a_row
    # Few rows read little: fewer sizes are enough for them.
    return sizes[1:] if shape.prefixes * shape.rows_per_prefix < _FEW_ROWS else sizes


def _has_room(limits: Limits, sample: Sample, size: int) -> bool:
    num_rows, most_of_row = sample.shape.prefixes * sample.shape.rows_per_prefix, limits.own_table_pages(size)
    most_of_prefixes = limits.prefix_pages(size, sample.shape.prefixes)
    for of_shard in sample.rows:
        tracks = [row.track for of_prefix in of_shard for row in of_prefix]
        prefix_pages = [num_prefix_pages(limits, track) for track in tracks]
        if any(len(track.table) - prefix > most_of_row for track, prefix in zip(tracks, prefix_pages, strict=True)):
            return False
        # Pages that only new tokens go to are in no list.
        if sum(limits.pages_for(track.num_cached) for track in tracks) - sum(prefix_pages) > size * num_rows:
            return False
        of_prefixes = (num_prefix_pages(limits, of_prefix[0].track) for of_prefix in of_shard if of_prefix)
        if sum(of_prefixes) > most_of_prefixes:
            return False
    return True
