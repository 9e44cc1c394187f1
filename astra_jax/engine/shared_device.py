"""One device for several hosts, which make all calls together.

Each host schedules the shards that its own devices hold.

A program runs on the devices of all hosts at once, so before each call the hosts agree on one. Each proposes the next
call of its own schedule, in a few numbers; all gather the proposals and draw the same conclusion (`agreed`). A call
that samples has as many rows and pages as the host with the most, so it holds the rows of every host that wants to
sample. A host whose proposal is not the next call takes part with rows of padding, and proposes again:

    host 0   propose read ── read: own rows ── propose sample ── sample: own rows ── …
    host 1   propose sample ─ read: padding ── propose sample ── sample: own rows ── …

A host without a call, because its episodes wait for tools, says so and takes part in the calls of others. If all calls
must have one order, it holds the others up instead, and says so every second. No host leaves before all are done. A
host that fails says so, and the others stop. A signal at one host reaches all of them before the same call, which is
not made.

Decided: docs/decisions/hosts.md, “The hosts agree on the next program before each call of the decoder”.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from astra_jax.engine.device import Device, Said, off_the_loop
from astra_jax.engine.tracks import Read, Sample
from astra_jax.mesh.hosts import HostFailed, HostsEnd, gather_from_hosts, hosts_are_to_end

_T = TypeVar("_T")
_PAUSE_SECONDS = 0.01
"""Seconds after which hosts ask one another again if none has a call."""
_HOLD_SECONDS = 1.0
"""Seconds after which a host that holds the others up says so again; only then do they hear of a signal."""


class Kind(enum.IntEnum):
    """The kinds of proposals; a smaller number goes first."""

    FAILED = 0
    HOLD = 1
    """Proposal of a host that holds the others up: none makes a call before it goes on."""
    READ = 2
    FIRST_READ = 3
    SAMPLE = 4
    NOTHING = 5
    DONE = 6


class Proposal(NamedTuple):
    """The next call that a host wants, as numbers."""

    kind: int
    rows: int = 0
    """Rows per shard, at most."""
    tokens: int = 0
    """Tokens that a row reads, at most."""
    pages: int = 0
    """Pages of a row of a call that samples, at most."""
    leave_at: int = 0
    """Number of rows at which a call that samples ends."""

    def is_part_of(self, call: Proposal) -> bool:
        """Say whether a call has room for the rows of this proposal."""
        return self.kind == call.kind and (self.kind == Kind.SAMPLE or self[1:3] == call[1:3])


def agreed(proposals: Sequence[Proposal]) -> Proposal:
    """Return the next call of all hosts: reading goes before sampling. It has room for every proposal of its kind.

    >>> few, many = Proposal(Kind.SAMPLE, 2, pages=3, leave_at=1), Proposal(Kind.SAMPLE, 8, pages=2, leave_at=12)
    >>> agreed([few, many, Proposal(Kind.NOTHING)])
    Proposal(kind=<Kind.SAMPLE: 4>, rows=8, tokens=0, pages=3, leave_at=13)
    >>> agreed([few, Proposal(Kind.DONE), Proposal(Kind.READ, 8, tokens=32)])[1:]
    (8, 32, 0, 0)
    """
    # Every host computes this from the same numbers, so all come to the same call without another message.
    first = min(proposals)
    parts = [proposal for proposal in proposals if proposal.is_part_of(first)]
    # `leave_at` counts the rows of all hosts.
    return first._replace(
        rows=max(part.rows for part in parts),
        pages=max(part.pages for part in parts),
        leave_at=sum(part.leave_at for part in parts),
    )


def shared(device: Device) -> Device:
    """Return the device for calls that all hosts make together; with one host, the device itself."""
    return device if jax.process_count() == 1 else SharedDevice(device, _gather)


async def _gather(proposal: Proposal) -> np.ndarray:
    if hosts_are_to_end():
        raise HostsEnd("a signal at one of the hosts ends the rollout")
    return await off_the_loop(gather_from_hosts, np.array(proposal, np.int32))


class SharedDevice:
    """This host's shards of a device, and calls that all hosts make together; a `Device`."""

    def __init__(self, device: Device, gather: Callable[[Proposal], Awaitable[np.ndarray]]):
        """`gather` takes the proposal of this host and returns the proposals of all."""
        self._device, self._gather = device, gather
        self.num_shards, self.vocab_size = device.num_shards, device.vocab_size
        self.waited_seconds = self.left_seconds = 0.0
        self._ended: Exception | None = None
        """Error that ended the calls; None while they go on."""

    @property
    def row_steps(self) -> int:
        """Row-steps of this host's device, those of calls that only other hosts needed included."""
        return self._device.row_steps

    def close(self) -> None:
        """Free the memory of pages and weights; no call follows."""
        self._device.close()

    async def read(self, read: Read) -> None:
        """Read the given tokens of some rows, as soon as all hosts agree."""
        kind = Kind.FIRST_READ if read.begins else Kind.READ
        await self._its_turn(Proposal(kind, read.most_rows, read.most_tokens))
        await self._called(self._device.read(read))

    async def sample(self, sample: Sample) -> Said:
        """Sample in some rows, as soon as all hosts agree; return as `Device.sample` does."""
        own = Proposal(Kind.SAMPLE, sample.most_rows, pages=sample.most_pages, leave_at=sample.leave_at)
        call = await self._its_turn(own)
        sample = dataclasses.replace(sample, most_rows=call.rows, most_pages=call.pages, leave_at=call.leave_at)
        return await self._called(self._device.sample(sample))

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Wait for the event; meanwhile take part in the calls of others, or hold them up."""
        while not until.is_set():
            # A gather returns when all hosts have come, so a host that does not ask holds the others up.
            if holds_up:
                if not await _is_set_within(_HOLD_SECONDS, until):
                    await self._agree(Proposal(Kind.HOLD))
            elif not await self._take_part(await self._agree(Proposal(Kind.NOTHING))):
                await _is_set_within(_PAUSE_SECONDS, until)

    async def leave(self, *, failed: bool) -> None:
        """Propose no more calls; without a failure, take part in the calls of other hosts until all are done.

        Raises:
            HostFailed: another host has failed.
            HostsEnd: a signal ends all hosts; also if this one has failed.
        """
        if failed:
            if isinstance(self._ended, HostsEnd):
                raise self._ended
            if self._ended is None:
                await self._agree(Proposal(Kind.FAILED))
            return
        started = time.monotonic()
        while (call := await self._agree(Proposal(Kind.DONE))).kind != Kind.DONE:
            if not await self._take_part(call):
                await asyncio.sleep(_PAUSE_SECONDS)
        self.left_seconds += time.monotonic() - started

    async def _its_turn(self, own: Proposal) -> Proposal:
        """Take part in other calls until the next one has room for this host's proposal; return that call."""
        while True:
            started = time.monotonic()
            call = await self._agree(own)
            self.waited_seconds += time.monotonic() - started
            if own.is_part_of(call):
                return call
            await self._take_part(call)

    async def _agree(self, own: Proposal) -> Proposal:
        """Return the next call of all hosts; after a failure, raise the same error each time."""
        if self._ended is not None:
            raise self._ended
        try:
            proposals = [Proposal(*map(int, row)) for row in await self._gather(own)]
        except Exception as error:
            self._ended = error
            raise
        call = agreed(proposals)
        if call.kind == Kind.FAILED:
            failed = [str(host) for host, proposal in enumerate(proposals) if proposal.kind == Kind.FAILED]
            self._ended = HostFailed(
                f"host {', '.join(failed)} has failed in the rollouts of {len(proposals)} hosts and says why; the same "
                "command on every host goes on from the last checkpoint"
            )
        return call

    async def _called(self, call: Awaitable[_T]) -> _T:
        """Make a call that all have agreed on; if it fails here, agree on no other: some hosts may still be in it."""
        try:
            return await call
        except Exception as error:
            self._ended = error
            raise

    async def _take_part(self, call: Proposal) -> bool:
        """Make a call without a row of this host; return whether there was one."""
        no_rows: list[list[Any]] = [[] for _ in range(self.num_shards)]
        if call.kind in (Kind.READ, Kind.FIRST_READ):
            read = Read(no_rows, call.kind == Kind.FIRST_READ, call.rows, call.tokens)
            await self._called(self._device.read(read))
        elif call.kind == Kind.SAMPLE:
            await self._called(self._device.sample(Sample(no_rows, call.rows, call.pages, call.leave_at)))
        else:
            return False
        return True


async def _is_set_within(seconds: float, event: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
