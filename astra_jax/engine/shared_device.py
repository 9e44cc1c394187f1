"""One device for several hosts: each schedules the shards that its own devices hold, and all make the same calls.

A program runs on the devices of all hosts at once. So before each call the hosts agree on which it is: each proposes
what its own schedule wants next, in a few numbers that all of them gather, and all draw the same conclusion (`agreed`).
A call that samples has one of the shapes of every decoder, in which as many proposals as can have their places. A host
whose proposal is not next takes part with rows of padding, and proposes again:

    host 0   propose read ── read: own rows ── propose sample ── sample: own rows ── …
    host 1   propose sample ─ read: padding ── propose sample ── sample: own rows ── …

A host that has nothing to call, because its episodes wait for tools, says so and takes part in the calls of others; or,
where all is to happen in one order, the others wait, and it says every second that they still have to. Nobody leaves
before all are done; who fails says so, and the others stop. A signal at any host is heard by all of them before the
same call, which is not made.

Decided: docs/decisions/hosts.md, “The hosts agree on the next program before each call of the decoder”.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from astra_jax.engine.device import Device, Said, XLADevice, off_the_loop
from astra_jax.engine.schedule import Limits, Read, RowShape, Sample
from astra_jax.mesh.hosts import HostFailed, HostsEnd, gather_from_hosts, hosts_are_to_end

_T = TypeVar("_T")
_PAUSE_SECONDS = 0.01
"""Where no host has anything to call, they ask one another again after this long."""
_HOLD_SECONDS = 1.0
"""A host that holds the others up says so again and again after this long: meanwhile they hear of no signal."""


class Kind(enum.IntEnum):
    """What a host proposes; what comes first goes first."""

    FAILED = 0
    HOLD = 1
    """Nobody calls anything before this host goes on."""
    READ = 2
    FIRST_READ = 3
    SAMPLE = 4
    NOTHING = 5
    DONE = 6


class Proposal(NamedTuple):
    """What a host proposes to call, as numbers."""

    kind: int
    prefixes: int = 0
    """Of a shard; where it reads, each row is its own."""
    rows_per_prefix: int = 0
    tokens: int = 0
    """The most that a row reads."""
    own_pages: int = 0
    leave_at: int = 0
    waited: int = 0
    """Calls that others have made since this was proposed."""

    @property
    def num_rows(self) -> int:
        """Of a shard."""
        return self.prefixes * self.rows_per_prefix

    def is_part_of(self, call: Proposal) -> bool:
        """Say whether the rows of a proposal have their places in a call."""
        if self.kind == call.kind == Kind.SAMPLE:
            return self.prefixes <= call.prefixes and self.rows_per_prefix <= call.rows_per_prefix
        return self[:4] == call[:4]


def agreed(proposals: Sequence[Proposal], row_shapes: Sequence[RowShape]) -> Proposal:
    """Return what all hosts do next: what is read comes before what is sampled, who has waited, more rows before fewer.

    A call that samples has one of the `row_shapes`: of those that hold what is first, one that holds as many others as
    can be, and of these the smallest. What it does not hold waits, and comes first when it has waited longest.

    >>> shapes = [RowShape(6, 4), RowShape(3, 4), RowShape(8, 1), RowShape(2, 1)]
    >>> few, many = Proposal(Kind.SAMPLE, 2, 1, own_pages=3), Proposal(Kind.SAMPLE, 3, 4, own_pages=2, leave_at=12)
    >>> agreed([few, many, Proposal(Kind.NOTHING)], shapes)[1:]  # in the larger call both have their places
    (3, 4, 0, 3, 12, 0)
    >>> alone = Proposal(Kind.SAMPLE, 8, 1, leave_at=7)
    >>> agreed([alone, many], shapes)[1:]  # one call would have 8 × 4 rows: two have 3 × 4 and 8 × 1
    (3, 4, 0, 2, 12, 0)
    >>> agreed([alone._replace(waited=1), many], shapes)[1:]
    (8, 1, 0, 0, 7, 0)
    >>> agreed([few, Proposal(Kind.DONE), Proposal(Kind.READ, 8, 1, tokens=32)], shapes)[1:]
    (8, 1, 32, 0, 0, 0)
    """
    first = min(proposals, key=lambda proposal: (proposal.kind, -proposal.waited, -proposal.num_rows, proposal))
    if first.kind == Kind.SAMPLE:
        calls = [first._replace(prefixes=shape.prefixes, rows_per_prefix=shape.rows_per_prefix) for shape in row_shapes]
        first = max(
            (call for call in calls if first.is_part_of(call)),
            key=lambda call: (sum(proposal.is_part_of(call) for proposal in proposals), -call.num_rows),
        )
    parts = [proposal for proposal in proposals if proposal.is_part_of(first)]
    # A row that goes on is more than `leave_at` of each host's: while one host waits for all of its rows, so do others.
    return first._replace(
        own_pages=max(part.own_pages for part in parts), leave_at=sum(part.leave_at for part in parts), waited=0
    )


def shared(device: XLADevice, limits: Limits) -> Device:
    """Return the device as all hosts call it together; where there is one host, as it is."""
    return device if jax.process_count() == 1 else SharedDevice(device, limits.row_shapes, _gather)


async def _gather(proposal: Proposal) -> np.ndarray:
    if hosts_are_to_end():
        raise HostsEnd("a signal at one of the hosts ends what they compute")
    return await off_the_loop(gather_from_hosts, np.array(proposal, np.int32))


class PartOfDevice(Device, Protocol):
    """A host's shards of a device, in calls that have room for the rows of others."""

    def own_pages(self, sample: Sample) -> int:
        """Return how many pages behind their prefix the rows of a call have at most."""
        ...

    async def sample(self, sample: Sample, own_pages: int | None = None) -> tuple[Said, int]:
        """Sample as `Device` does; `own_pages` are those that all hosts have agreed on."""
        ...


class SharedDevice:
    """This host's shards of a device, and calls that all hosts make together; a `Device`."""

    def __init__(
        self,
        device: PartOfDevice,
        row_shapes: Sequence[RowShape],
        gather: Callable[[Proposal], Awaitable[np.ndarray]],
    ):
        """Agree by `gather`: it takes what this host proposes, and returns what all do, one row each.

        A call that samples has one of the `row_shapes`, the same ones on every host.
        """
        self._device, self._row_shapes, self._gather = device, row_shapes, gather
        self.num_shards, self.vocab_size = device.num_shards, device.vocab_size
        self.penalizes = device.penalizes
        self._ended: Exception | None = None
        """Why nothing is called any more."""

    @property
    def num_programs(self) -> int:
        """Shapes compiled so far."""
        return self._device.num_programs

    @property
    def row_steps(self) -> int:
        """Rows of this host × tokens of all calls, those that it only took part in included."""
        return self._device.row_steps

    def take_weights(self, params: Any) -> None:
        """Go on with other weights; every host is given them before the same call."""
        self._device.take_weights(params)

    def close(self) -> None:
        """Give the memory of pages back; nobody calls again."""
        self._device.close()

    async def read(self, read: Read) -> None:
        """Read the given tokens of some rows, as soon as all hosts have agreed to."""
        kind = Kind.FIRST_READ if read.begins else Kind.READ
        await self._its_turn(Proposal(kind, read.most_rows, 1, read.most_tokens))
        await self._called(self._device.read(read))

    async def sample(self, sample: Sample) -> tuple[Said, int]:
        """Sample in some rows, as soon as all hosts have agreed to; return what each said, and for how many tokens."""
        own_pages = self._device.own_pages(sample)
        call = await self._its_turn(Proposal(Kind.SAMPLE, *sample.shape, own_pages=own_pages, leave_at=sample.leave_at))
        shape = RowShape(call.prefixes, call.rows_per_prefix)
        sample = dataclasses.replace(sample, shape=shape, leave_at=call.leave_at)
        return await self._called(self._device.sample(sample, call.own_pages))

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Have nothing to call before the event is set; take part in the calls of others meanwhile, or hold them up."""
        while not until.is_set():
            if holds_up:
                if not await _is_set_within(_HOLD_SECONDS, until):
                    await self._agree(Proposal(Kind.HOLD))
            elif not await self._take_part(await self._agree(Proposal(Kind.NOTHING))):
                await _is_set_within(_PAUSE_SECONDS, until)

    async def leave(self, *, failed: bool) -> None:
        """Have nothing to call any more: where all is done, go on with the others until they are done as well.

        Raises:
            HostFailed: another host has failed.
            HostsEnd: a signal ends all hosts; whatever has failed here, the others save.
        """
        if failed:
            if isinstance(self._ended, HostsEnd):
                raise self._ended
            if self._ended is None:
                await self._agree(Proposal(Kind.FAILED))
            return
        while (call := await self._agree(Proposal(Kind.DONE))).kind != Kind.DONE:
            if not await self._take_part(call):
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _its_turn(self, own: Proposal) -> Proposal:
        """Take part in other calls until the next one is what this host proposes; return that."""
        while not own.is_part_of(call := await self._agree(own)):
            if await self._take_part(call):
                own = own._replace(waited=own.waited + 1)
        return call

    async def _agree(self, own: Proposal) -> Proposal:
        """Return what all hosts do next; where one has failed, whoever asks again hears of it.

        Raises:
            HostFailed: another host has failed.
            HostsEnd: a signal ends all hosts.
        """
        if self._ended is not None:
            raise self._ended
        try:
            proposals = [Proposal(*map(int, row)) for row in await self._gather(own)]
        except Exception as error:
            self._ended = error
            raise
        call = agreed(proposals, self._row_shapes)
        if call.kind == Kind.FAILED:
            failed = [str(host) for host, proposal in enumerate(proposals) if proposal.kind == Kind.FAILED]
            self._ended = HostFailed(
                f"expected all {len(proposals)} hosts to roll out their episodes, found that host {', '.join(failed)} "
                "has failed and says why; the same command on every host goes on from the last checkpoint"
            )
        return call

    async def _called(self, call: Awaitable[_T]) -> _T:
        """Make the call that all have agreed on; where it fails here, nobody is asked again: others may be in it."""
        try:
            return await call
        except Exception as error:
            self._ended = error
            raise

    async def _take_part(self, call: Proposal) -> bool:
        """Make a call with no row of this host; return whether there was one."""
        nobody: list[list[Any]] = [[] for _ in range(self.num_shards)]
        if call.kind in (Kind.READ, Kind.FIRST_READ):
            read = Read(nobody, call.kind == Kind.FIRST_READ, call.prefixes, call.tokens)
            await self._called(self._device.read(read))
        elif call.kind == Kind.SAMPLE:
            sample = Sample(RowShape(call.prefixes, call.rows_per_prefix), nobody, call.leave_at)
            await self._called(self._device.sample(sample, call.own_pages))
        else:
            return False
        return True


async def _is_set_within(seconds: float, event: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
