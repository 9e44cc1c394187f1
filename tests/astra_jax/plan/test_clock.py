"""What a clock decoder draws: lengths that a run recorded come up as often as they were seen."""

from __future__ import annotations

import asyncio
from collections import Counter

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.interface import Sampling, Session
from astra_jax.plan.clock import ClockDevice, Costs, Observed, clock_devices_of_hosts, run_on_clock
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


def test_hosts_that_call_together_say_what_each_says_alone_and_count_the_rows_of_all_their_calls():
    """Of two hosts one has four times the episodes: the other's rows are padding for the rest, and count."""
    limits, given = some_limits(), {"costs": Costs(1.0, 0.5), "message_tokens": Observed((3, 5, 9)), "end_ids": (0,)}

    async def of_host(decoder: PagedDecoder, slots: range) -> list[list[int]]:
        sessions = [Session(0, slot) for slot in slots]
        messages = await asyncio.gather(*(decoder.generate([1, 2, 3], Sampling(12), each) for each in sessions))
        for each in sessions:
            decoder.forget(each)
        await decoder.close()
        return [message.ids for message in messages]

    async def together() -> tuple[list[list[int]], list[int], list[int]]:
        decoders = [PagedDecoder(each, limits, end_ids=(0,)) for each in clock_devices_of_hosts(2, limits, **given)]
        found = await asyncio.gather(of_host(decoders[0], range(32)), of_host(decoders[1], range(32, 40)))
        loads = [decoder.load for decoder in decoders]
        return [*found[0], *found[1]], [load.row_steps for load in loads], [load.sampled_tokens for load in loads]

    async def alone() -> tuple[list[list[int]], int]:
        decoder = PagedDecoder(ClockDevice(limits, **given), limits, end_ids=(0,))
        return await of_host(decoder, range(40)), decoder.load.row_steps

    said, row_steps, sampled = run_on_clock(together())
    assert said == run_on_clock(alone())[0]
    assert sampled[0] + sampled[1] == sum(map(len, said))
    assert row_steps[0] == row_steps[1] >= sampled[0] > 2 * sampled[1]
