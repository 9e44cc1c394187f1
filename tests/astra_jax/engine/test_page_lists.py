"""A call's lists of pages are as short as their rows allow, of three sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from astra_jax.engine.interface import Session
from astra_jax.engine.page_lists import num_prefix_pages, own_pages_a_row
from astra_jax.engine.schedule import Limits, RowShape, Sample, SampleRow, Track
from astra_jax.episodes.rollout import RolloutConfig, decode_limits

LIMITS = decode_limits(RolloutConfig(max_prompt_tokens=288, max_response_tokens=256, max_turns=5), 20, 8)
MANY, FEW = RowShape(4, 4), RowShape(2, 1)


def track_of(num_prompt: int, num_own: int, num_new: int) -> Track:
    """A sequence with a prompt, so many tokens behind its prefix, and pages for new ones."""
    track = Track(Session(0, 0), 0, 0, num_prompt)
    track.num_cached = LIMITS.num_prefix_pages(num_prompt) * LIMITS.page_tokens + num_own
    track.table = list(range(LIMITS.pages_for(track.num_cached + num_new)))
    return track


def sample_of(tracks: list[Track], shape: RowShape) -> Sample:
    width = shape.rows_per_prefix
    rows = [SampleRow(track, 1, None) for track in tracks]
    return Sample(shape, [[rows[first : first + width] for first in range(0, len(rows), width)]], leave_at=0)


def size_of(tracks: list[Track], shape: RowShape = MANY) -> int:
    return own_pages_a_row(LIMITS, sample_of(tracks, shape))


def test_rows_that_have_five_pages_each_on_average_have_the_shortest_lists():
    assert LIMITS.own_pages_a_row == (5, 9, 17)
    assert size_of([track_of(170, 160, 0)] * 16) == 5
    assert size_of([track_of(170, 160, 16)] * 16) == 5  # a page for new tokens is in no list
    assert size_of([track_of(170, 161, 0)] * 16) == 9
    assert size_of([track_of(170, 161, 0)] * 13) == 5  # other rows are empty
    assert size_of([track_of(170, 300, 0)] + [track_of(170, 60, 0)] * 15) == 5
    assert size_of([track_of(170, 330, 0)] + [track_of(170, 60, 0)] * 15) == 9  # more than twice as many in one row


def test_two_thirds_of_the_prefixes_pages_have_room_in_the_shortest_lists():
    assert LIMITS.prefix_pages(5, 4) == 24
    assert size_of([track_of(193, 20, 0)] * 16) == 5
    assert size_of([track_of(193, 20, 0)] * 12 + [track_of(225, 20, 0)] * 4) == 9
    assert size_of([track_of(288, 20, 0)] * 8) == 5  # two prefixes of eight pages


def test_few_rows_have_fewer_sizes():
    assert size_of([track_of(170, 20, 0)], FEW) == 9


@given(st.lists(st.tuples(st.integers(1, 288), st.integers(0, 256), st.integers(0, 16)), min_size=1, max_size=16))
def test_whatever_the_rows_hold_has_room(rows):
    tracks = [track_of(prompt, min(own, 240), new) for prompt, own, new in rows]
    size = size_of(tracks, RowShape(16, 1))
    prefixes = [num_prefix_pages(LIMITS, track) for track in tracks]
    assert sum(prefixes) <= LIMITS.prefix_pages(size, 16)
    own = [LIMITS.pages_for(track.num_cached) - prefix for track, prefix in zip(tracks, prefixes, strict=True)]
    assert sum(own) <= size * 16
    tables = [len(track.table) - prefix for track, prefix in zip(tracks, prefixes, strict=True)]
    assert max(tables) <= LIMITS.own_table_pages(size)


def test_where_nobody_knows_how_long_a_prompt_is_sizes_are_parts_of_a_longest_sequence():
    limits = Limits(
        max_prompt_tokens=0,
        max_tokens=4608,
        num_pages=300,
        page_tokens=16,
        row_shapes=(RowShape(16, 1),),
        sample_tokens=16,
        read_rows=4,
        read_tokens=32,
        first_read_rows=1,
        first_read_tokens=512,
    )
    assert limits.own_pages_a_row == (18, 72, 288)
    assert [limits.own_table_pages(size) for size in limits.own_pages_a_row] == [36, 144, 288]
