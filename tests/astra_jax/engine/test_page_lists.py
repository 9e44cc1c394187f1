"""Pages are listed where that is shorter than rows side by side, and where there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from astra_jax.engine.interface import Session
from astra_jax.engine.page_lists import MostPages, most_listed_pages, num_prefix_pages
from astra_jax.engine.schedule import RowShape, Sample, SampleRow, Track
from astra_jax.episodes.rollout import RolloutConfig, decode_limits

LIMITS = decode_limits(RolloutConfig(max_prompt_tokens=288, max_response_tokens=256, max_turns=5), 20, 8)
MANY = RowShape(4, 4)


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


def lists_of(tracks: list[Track], shape: RowShape = MANY) -> MostPages | None:
    return most_listed_pages(LIMITS, sample_of(tracks, shape))


SHORT, LONG = track_of(170, 60, 0), track_of(170, 230, 0)


def test_pages_are_listed_where_a_row_is_long_and_most_are_short():
    assert LIMITS.own_table_pages == (5, 9, 17)
    assert lists_of([LONG] + [SHORT] * 15) == (24, 80)
    assert lists_of([SHORT] * 16) is None  # side by side they are as short
    assert lists_of([LONG] * 10) == (24, 80)  # eight pages each
    assert lists_of([LONG] * 11) is None
    assert lists_of([track_of(170, 160, 16)] * 16) == (24, 80)  # a page for new tokens is in no list


def test_pages_are_listed_where_prefixes_have_two_thirds_of_the_longest_on_average():
    assert lists_of([track_of(193, 230, 0)] + [track_of(193, 60, 0)] * 15) == (24, 80)
    assert lists_of([track_of(193, 230, 0)] + [track_of(193, 60, 0)] * 11 + [track_of(225, 60, 0)] * 4) is None
    assert lists_of([track_of(288, 230, 0)] + [track_of(288, 60, 0)] * 7) == (24, 80)  # two prefixes of eight pages


@given(st.lists(st.tuples(st.integers(1, 288), st.integers(0, 240), st.integers(0, 16)), min_size=1, max_size=16))
def test_whatever_is_listed_has_room(rows):
    tracks = [track_of(*row) for row in rows]
    most = lists_of(tracks, RowShape(16, 1))
    prefixes = [num_prefix_pages(LIMITS, track) for track in tracks]
    own = [LIMITS.pages_for(track.num_cached) - prefix for track, prefix in zip(tracks, prefixes, strict=True)]
    fits = sum(prefixes) <= 96 and sum(own) <= 80
    is_long = any(len(track.table) - prefix > 5 for track, prefix in zip(tracks, prefixes, strict=True))
    assert most == ((96, 80) if fits and is_long else None)
