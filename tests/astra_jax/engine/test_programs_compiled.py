"""Episodes of any lengths compile few programs."""

from __future__ import annotations

import asyncio
import random

import pytest

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.sizes import RowShape, decode_limits
from astra_jax.engine.tracks import Read, Sample
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.plan.clock import ClockDevice, Costs, Lognormal, run_on_clock


def test_calls_of_many_rows_have_a_size_of_tables_more():
    limits = decode_limits(RolloutConfig(max_prompt_tokens=288, max_response_tokens=256, max_turns=5), 20, 8)
    few, many = RowShape(2, 4), limits.row_shapes[0]
    assert few in limits.row_shapes
    assert limits.own_table_sizes(many) == (5, 9, 17)
    assert limits.own_table_sizes(few) == (9, 17)


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
        own = max(len(track.table) - track.prefix_pages(limits) for track in tracks)
        size = next(size for size in limits.own_table_sizes(sample.shape) if size >= own)
        self.shapes.add((sample.shape, size))
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
