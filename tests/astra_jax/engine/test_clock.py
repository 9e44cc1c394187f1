"""What a clock decoder draws: lengths that a run recorded come up as often as they were seen."""

from __future__ import annotations

import asyncio
from collections import Counter

from astra_jax.engine.clock import ClockDevice, Costs, Observed, run_on_clock
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.paged import PagedDecoder
from tests.astra_jax.engine.test_schedule import some_limits


def test_messages_are_as_long_as_observed_ones_and_as_often():
    async def main() -> list[int]:
        limits, observed = some_limits(), Observed((3, 3, 3, 8))
        device = ClockDevice(limits, costs=Costs(1.0, 0.0), message_tokens=observed, end_ids=(0,))
        decoder = PagedDecoder(device, limits, end_ids=(0,))
        lengths = []
        for slot in range(200):
            message = await decoder.generate([1, 2, 3], Sampling(12), Session(0, slot))
            decoder.forget(Session(0, slot))
            lengths.append(len(message.ids))
        # A step of a second each, one row at a time.
        assert asyncio.get_running_loop().time() == sum(lengths) == device.num_steps
        await decoder.close()
        return lengths

    lengths = run_on_clock(main())
    assert lengths == run_on_clock(main())
    counts = Counter(lengths)
    assert set(counts) == {3, 8}
    assert 30 <= counts[8] <= 70
