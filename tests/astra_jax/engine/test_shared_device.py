"""Hosts that share a device make the same calls, also if their work differs; on a simulated clock, without a model."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random

import numpy as np
import pytest

from astra_jax.engine import shared_device
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import Said
from astra_jax.engine.interface import Generated, Sampling, Session
from astra_jax.engine.shared_device import Kind, Proposal, SharedDevice, agreed
from astra_jax.engine.tracks import Read, Sample
from astra_jax.mesh.hosts import HostFailed, HostsEnd
from astra_jax.plan.clock import ClockDevice, Costs, Lognormal, run_on_clock
from tests.astra_jax.engine import test_conformance

NUM_HOSTS = 3
LIMITS = dataclasses.replace(test_conformance.LIMITS, row_counts=(4, 2, 1))


class PartOfDevice(ClockDevice):
    """One host's part of a device; it keeps the calls, and how many rows of its own each has."""

    def __init__(self) -> None:
        super().__init__(
            LIMITS, costs=Costs(0.02, 0.001), message_tokens=Lognormal(24, 0.9).draw, end_ids=(1,), num_shards=2
        )
        self.calls: list[tuple] = []
        self.num_rows: list[int] = []

    async def read(self, read: Read) -> None:
        self._note(read, ("read", read.begins, read.most_rows, read.most_tokens))
        assert all(len(of_shard) <= read.most_rows for of_shard in read.rows)
        await super().read(read)

    async def sample(self, sample: Sample) -> Said:
        self._note(sample, ("sample", sample.most_rows, sample.most_pages, sample.leave_at))
        assert all(len(row.track.table) <= sample.most_pages for row in sample.all_rows())
        assert all(len(of_shard) <= sample.most_rows for of_shard in sample.rows)
        if self.num_rows[-1] == 0:
            return []
        return await super().sample(dataclasses.replace(sample, leave_at=0))

    def _note(self, call: Read | Sample, agreed: tuple) -> None:
        self.calls.append(agreed)
        self.num_rows.append(len(list(call.all_rows())))


class Hosts:
    """Hosts of one job, in one event loop."""

    def __init__(self, calls_away: int | None):
        self._barrier, self._proposals = asyncio.Barrier(NUM_HOSTS), [Proposal(0)] * NUM_HOSTS
        self.rounds: list[list[Proposal]] = []
        self.is_signalled = self.end = False
        self.devices = [PartOfDevice() for _ in range(NUM_HOSTS)]
        self.decoders = [
            PagedDecoder(
                SharedDevice(device, self._gather_of(host)),
                LIMITS,
                end_ids=(1,),
                calls_away=calls_away,
            )
            for host, device in enumerate(self.devices)
        ]

    def _gather_of(self, host: int):
        async def gather(proposal: Proposal) -> np.ndarray:
            self._proposals[host] = proposal
            await self._barrier.wait()
            rows = np.array(self._proposals, np.int32)
            if host == 0:
                self.rounds.append([*self._proposals])
                self.end = self.is_signalled
            await self._barrier.wait()
            if self.end:
                raise HostsEnd("a signal at one of the hosts")
            return rows

        return gather


async def an_episode(decoder: PagedDecoder, session: Session, tool_seconds: float) -> list[Generated]:
    """Three messages, with tools between them."""
    ids, messages = list(range(21, 25 + session.slot % 20)), []
    for _ in range(3):
        messages.append(await decoder.generate(ids, Sampling(30), session))
        ids = [*ids, *messages[-1].ids, *range(40, 40 + session.slot % 12 + 1)]
        await asyncio.sleep(tool_seconds)
    decoder.forget(session)
    return messages


async def a_host(decoder: PagedDecoder, slots: range, tool_seconds) -> list[list[Generated]]:
    found = await asyncio.gather(*(an_episode(decoder, Session(1, slot), tool_seconds()) for slot in slots))
    await decoder.close()
    return found


@pytest.mark.parametrize(
    ("calls_away", "hold_seconds"),
    [(None, 1.0), (2, 1.0), (2, 0.05)],
    ids=["own_pace", "one_order", "one_order, in which each says that it holds up the others"],
)
def test_all_hosts_make_the_same_calls_until_all_are_done(calls_away, hold_seconds, monkeypatch):
    """One host has many episodes, one few, one none; the sampled tokens follow from seeds alone."""
    monkeypatch.setattr(shared_device, "_HOLD_SECONDS", hold_seconds)
    held_up = set()

    async def main(delays: int) -> tuple[list, list, list]:
        hosts, draws = Hosts(calls_away), random.Random(delays)
        slots = [range(9), range(9, 11), range(0)]
        found = await asyncio.gather(
            *(a_host(decoder, of_host, draws.random) for decoder, of_host in zip(hosts.decoders, slots, strict=True))
        )
        held_up.update(any(each.kind == Kind.HOLD for each in proposals) for proposals in hosts.rounds)
        assert len({tuple(device.calls) for device in hosts.devices}) == 1
        assert sum(hosts.devices[2].num_rows) == 0
        assert [decoder.load.sessions for decoder in hosts.decoders] == [0, 0, 0]
        return hosts.devices[0].calls, [device.num_rows for device in hosts.devices], found

    async def alone() -> list[list[Generated]]:
        decoder = PagedDecoder(PartOfDevice(), LIMITS, end_ids=(1,))
        return await a_host(decoder, range(11), lambda: 0.0)

    one, other = (run_on_clock(main(delays)) for delays in (0, 1))
    assert one[2] == other[2]
    assert [messages for of_host in one[2] for messages in of_host] == run_on_clock(alone())
    assert (one[:2] == other[:2]) == (calls_away is not None), (
        "delays of tools change calls where nobody waits for them"
    )
    assert held_up == ({False, True} if hold_seconds < 1 else {False})


def test_any_proposals_lead_all_hosts_to_the_same_call_of_the_first_kind():
    for kinds in itertools.permutations(Kind, 2):
        proposals = [Proposal(kind, pages=number, leave_at=1) for number, kind in enumerate(kinds)]
        assert agreed(proposals) == agreed(proposals[::-1]) == min(proposals)
        both = [Proposal(kinds[0], pages=pages, leave_at=1) for pages in (3, 2)]
        assert agreed(both)[3:] == (3, 2), "a call has room for all of its kind"
    assert agreed([Proposal(Kind.SAMPLE, 1, pages=2), Proposal(Kind.SAMPLE, 4, pages=1)])[1:4] == (4, 0, 2)
    assert agreed([Proposal(Kind.READ, 4, 32), Proposal(Kind.READ, 1, 16)])[1:3] == (1, 16), "reads are not widened"


def test_while_the_tools_of_a_host_take_long_the_others_go_on():
    """Its tools answer only when the others are done."""

    async def main() -> None:
        hosts, done = Hosts(None), asyncio.Event()

        async def slow() -> None:
            decoder, ids = hosts.decoders[0], [21, 22, 23]
            message = await decoder.generate(ids, Sampling(30), Session(1, 0))
            calls_before = len(hosts.devices[0].calls)
            await done.wait()
            assert len(hosts.devices[0].calls) > calls_before + 20, "it takes part in their calls meanwhile"
            assert set(hosts.devices[0].num_rows[calls_before:]) == {0}
            await decoder.generate([*ids, *message.ids, 30], Sampling(30), Session(1, 0))
            await decoder.close()

        async def others() -> None:
            episodes = [an_episode(hosts.decoders[host], Session(2, slot), 0.1) for host in (1, 2) for slot in range(6)]
            await asyncio.gather(*episodes)
            done.set()
            await asyncio.gather(*(hosts.decoders[host].close() for host in (1, 2)))

        await asyncio.gather(slow(), others())

    run_on_clock(main())


@pytest.mark.parametrize("calls_away", [None, 2], ids=["own_pace", "one_order"])
def test_where_one_host_fails_all_others_are_told_which(calls_away):
    async def main() -> None:
        hosts = Hosts(calls_away)

        async def fails() -> None:
            tasks = [asyncio.create_task(an_episode(hosts.decoders[1], Session(1, slot), 0.3)) for slot in range(4)]
            await asyncio.sleep(0.5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await hosts.decoders[1].close(failed=True)

        async def others(host: int) -> None:
            with pytest.raises(HostFailed, match=r"^host 1 has failed in the rollouts of 3 hosts"):
                await a_host(hosts.decoders[host], range(6) if host else range(0), lambda: 0.1)
            await hosts.decoders[host].close(failed=True)

        await asyncio.gather(others(0), fails(), others(2))

    run_on_clock(main())


@pytest.mark.parametrize("calls_away", [None, 2], ids=["own_pace", "one_order"])
def test_while_all_hosts_wait_for_tools_each_hears_of_a_signal(calls_away):
    """No host has a message to wait for; in one order, and at their own pace."""

    async def main() -> list[float]:
        hosts, loop, heard = Hosts(calls_away), asyncio.get_running_loop(), []

        async def a_host(host: int) -> None:
            decoder = hosts.decoders[host]
            episodes = [asyncio.ensure_future(an_episode(decoder, Session(host, slot), 1000.0)) for slot in range(3)]
            with pytest.raises(HostsEnd):
                await decoder.until_failed()
            heard.append(loop.time())
            for episode in episodes:
                episode.cancel()
            await asyncio.gather(*episodes, return_exceptions=True)
            with pytest.raises(HostsEnd):
                await decoder.close(failed=True)

        async def signalled() -> None:
            await asyncio.sleep(10.0)
            hosts.is_signalled = True

        await asyncio.gather(*map(a_host, range(NUM_HOSTS)), signalled())
        return heard

    heard = run_on_clock(main())
    assert len(heard) == NUM_HOSTS
    assert all(10 < seconds < 13 for seconds in heard)


def test_a_host_that_fails_in_its_part_of_a_call_proposes_no_more():
    """The others may be in that call, and would never answer."""
    asked: list[Proposal] = []

    class Breaks(PartOfDevice):
        async def sample(self, sample: Sample) -> Said:
            raise MemoryError("of this host")

    async def gather(proposal: Proposal) -> np.ndarray:
        asked.append(proposal)
        return np.array([proposal], np.int32)

    async def main() -> None:
        decoder = PagedDecoder(SharedDevice(Breaks(), gather), LIMITS, end_ids=(1,))
        with pytest.raises(MemoryError, match="of this host"):
            await decoder.generate([21, 22, 23], Sampling(30), Session(1, 0))
        num_asked = len(asked)
        await decoder.close(failed=True)
        assert len(asked) == num_asked > 0

    run_on_clock(main())


async def test_a_host_knows_how_long_it_waited_for_others_and_the_late_one_waited_for_none():
    hosts = Hosts(calls_away=None)

    async def episode(host: int) -> None:
        await asyncio.sleep(1 if host == 2 else 0)
        await hosts.decoders[host].generate([5, 6, 7], Sampling(4), Session(1, host))
        await hosts.decoders[host].close()

    await asyncio.gather(*map(episode, range(NUM_HOSTS)))
    first, second, late = (decoder.load.waited_seconds for decoder in hosts.decoders)
    assert min(first, second) > 0.9
    assert late < 0.5


async def test_a_host_that_has_ended_knows_how_long_others_went_on():
    hosts = Hosts(calls_away=None)

    async def episode(host: int) -> None:
        await hosts.decoders[host].generate([5, 6, 7], Sampling(4), Session(1, host))
        if host == 2:
            await asyncio.sleep(1)
            await hosts.decoders[host].generate([5, 6, 7, 8, 9, 10, 11, 12], Sampling(4), Session(1, host + 8))
        await hosts.decoders[host].close()

    await asyncio.gather(*map(episode, range(NUM_HOSTS)))
    first, second, last = (decoder.load.left_seconds for decoder in hosts.decoders)
    assert min(first, second) > 0.9
    assert last < 0.5
