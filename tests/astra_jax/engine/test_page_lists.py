"""Pages are listed where that is shorter than rows side by side, and where there is room."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_jax.engine.clock import ClockDevice, Costs, Lognormal, run_on_clock
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.page_lists import MostPages, most_listed_pages, num_prefix_pages, own_table_sizes
from astra_jax.engine.paged import PagedDecoder
from astra_jax.engine.schedule import Read, RowShape, Sample, SampleRow, Track
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
    return most_listed_pages(dataclasses.replace(LIMITS, row_shapes=(shape,)), sample_of(tracks, shape))


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


def test_calls_of_fewer_rows_than_the_most_have_one_size_and_no_lists():
    half = RowShape(2, 4)
    assert half in LIMITS.row_shapes
    assert most_listed_pages(LIMITS, sample_of([LONG] + [SHORT] * 7, half)) is None
    assert own_table_sizes(LIMITS, half) == (9, 17)
    assert own_table_sizes(LIMITS, MANY) == (5, 9, 17)


class Shapes(ClockDevice):
    """Notes which programs a device would compile for its calls."""

    def __init__(self, limits, **named):
        super().__init__(limits, **named)
        self.shapes: set[tuple] = set()

    async def read(self, read: Read) -> None:
        self.shapes.add((read.most_rows, read.most_tokens, read.begins))
        await super().read(read)

    async def sample(self, sample: Sample, own_pages: int | None = None):
        limits, tracks = self._limits, [row.track for row in sample.all_rows()]
        own = max(len(track.table) - num_prefix_pages(limits, track) for track in tracks)
        size = next(size for size in own_table_sizes(limits, sample.shape) if size >= own)
        self.shapes.add((sample.shape, size, most_listed_pages(limits, sample)))
        return await super().sample(sample)


@pytest.mark.parametrize("most_given", [30, 300])
@pytest.mark.parametrize("median_tokens", [8, 30, 120])
@pytest.mark.parametrize(("prompt", "response"), [(288, 256), (600, 1500), (1024, 1024)])
def test_a_thousand_episodes_of_random_lengths_compile_twelve_programs_at_most(
    prompt, response, median_tokens, most_given
):
    """Two of the twelve are none of these: one makes pages, one takes the layers of stacked weights apart."""
    limits = decode_limits(RolloutConfig(max_prompt_tokens=prompt, max_response_tokens=response, max_turns=5), 20, 8)
    lengths, shapes = Lognormal(median_tokens, 1.0), set()

    async def episode(decoder: PagedDecoder, slot: int, ids: list[int], draws: random.Random) -> None:
        start, session = len(ids), Session(0, slot)
        for _ in range(draws.randint(1, 5)):
            room = response - (len(ids) - start)
            if room < 1:
                break
            message = await decoder.generate(ids, Sampling(room), session)
            ids = [*ids, *message.ids, *[3] * draws.randint(1, most_given)]
            await asyncio.sleep(draws.random() / 5)
        decoder.forget(session)

    async def lot(seed: int) -> None:
        draws = random.Random(seed)
        device = Shapes(limits, costs=Costs(0.02, 0.001), message_tokens=lengths, end_ids=(1,))
        decoder = PagedDecoder(device, limits, end_ids=(1,), calls_away=2)
        prompts = [[draws.randint(2, 500) for _ in range(draws.randint(20, prompt))] for _ in range(20)]
        await asyncio.gather(
            *(episode(decoder, slot, prompts[slot // 8], random.Random(draws.random())) for slot in range(160))
        )
        await decoder.close()
        shapes.update(device.shapes)

    for seed in range(7):
        run_on_clock(lot(seed))
    assert len(shapes) <= 10
