"""A worker: one jail, the control socket to its zygote, and the calls inside it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.errors import ServiceFault
from sandbox.isolation import Tier, start_jail
from sandbox.jail.harness import REPLY_HEADER, REQUEST_HEADER
from sandbox.jail.zygote import CALL, CANCEL, ENDED, NOT_RESTRICTED, NOT_STARTED
from sandbox.packages import Packages
from sandbox.protocol import Limits

AGED_AFTER_SECONDS = 0.05  # then a call gives up its fresh slot, so that long calls do not keep short ones waiting
_READ_AFTER_SECONDS = 0.01  # most replies fit the socket's buffer and are read once, when the call has ended
_BACKSTOP_SECONDS = 30.0  # a zygote that has not ended a call this long after its limit is broken, not just starved
_START_SECONDS = 90.0


@dataclass
class Job:
    """One call on its way through the pool."""

    client: str
    document: bytes
    """Request in JSON, in the form that the harness reads."""
    code: bytes
    """Byte code of the tool; its source if `on_code` is given."""
    limits: Limits
    max_reply_bytes: int
    future: asyncio.Future[Outcome]
    on_code: Callable[[bytes], None] | None = None
    """Called with the result of `compile_source`, mostly while the tool still runs; if given, the process compiles."""
    enqueued: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Outcome:
    """The end of a call's process, and the reply that it wrote, if any; with `forged`, other bytes stood beside it."""

    body: bytes | None
    compiled: bytes | None  # the result of `compile_source`, before anything of the source ran
    forged: bool
    too_long: bool
    wait_status: int
    why: int
    wall_seconds: float
    cpu_seconds: float
    max_rss_bytes: int
    queue_seconds: float


@dataclass(eq=False, slots=True)
class _Flight:
    """A job inside a worker."""

    job: Job
    channel: socket.socket
    nonce: bytes
    to_send: memoryview
    chunks: list[bytes] = field(default_factory=list)
    received: int = 0
    compiled: bytes | None = None
    ended: tuple[int, ...] | None = None
    """Figures of the zygote's `ENDED` message; None while the process runs."""
    reason: str = ""
    """Reason why the process could not be restricted; empty if it was."""
    is_open: bool = True
    is_read: bool = False
    """Whether the event loop reads the channel; it is slow to remove a reader that was never added."""
    aged: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


def _first_frame(data: bytes, nonce: bytes) -> tuple[bytes | None, bytes]:
    """Return the body of the frame at the beginning of the data, and the rest; None and all data if there is no frame.

    >>> _first_frame(REPLY_HEADER.pack(b"n" * 16, 2) + b"ab" + b"c", b"n" * 16)
    (b'ab', b'c')
    >>> _first_frame(REPLY_HEADER.pack(b"m" * 16, 0), b"n" * 16)[0] is None
    True
    """
    if len(data) >= REPLY_HEADER.size:
        found, length = REPLY_HEADER.unpack_from(data)
        end = REPLY_HEADER.size + length
        if secrets.compare_digest(found, nonce) and len(data) >= end:
            return data[REPLY_HEADER.size : end], data[end:]
    return None, data


class Worker:
    """One jail: its process, its control socket and the calls inside it.

    Args:
      jail: the tier, the most calls at one time, and the packages, as `start_jail` takes them.
      on_free: called when the worker becomes ready, and when a call gives up its fresh slot.
      on_ended: called with the job of each call that has ended.
      on_closed: called when the jail has ended.
    """

    def __init__(
        self,
        index: int,
        jail: tuple[Tier, int, Packages],
        on_free: Callable[[], None],
        on_ended: Callable[[Job], None],
        on_closed: Callable[[Worker], None],
    ) -> None:
        self.index, self._on_free, self._on_ended, self._on_closed = index, on_free, on_ended, on_closed
        self._loop = asyncio.get_running_loop()
        self._call_numbers = itertools.count(1)
        self.flights: dict[int, _Flight] = {}
        self.fresh = 0
        self.ready = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tier, most_calls, packages = jail
        with theirs:
            self.process = start_jail(tier, theirs.fileno(), most_calls, packages)
        self._control.setblocking(False)
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._control, self._on_control)

    async def wait_ready(self) -> None:
        """Wait until the zygote serves.

        Raises:
            ServiceFault: the zygote did not start.
        """
        try:
            # Shielded, since the time limit of one waiter must not cancel `_started`, which all waiters share.
            await asyncio.wait_for(asyncio.shield(self._started), _START_SECONDS)
        except TimeoutError:
            self.close("did not start in time")
            raise ServiceFault("a worker did not start in time") from None

    def start(self, job: Job) -> bool:
        """Send a job into the jail; its future gets the outcome. Return False if it was not sent and must wait on.

        That happens if this process has no descriptor left, or if the zygote takes no message: then it is closed.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return False
        ours.setblocking(False)
        call, nonce, limits = next(self._call_numbers), secrets.token_bytes(16), job.limits
        message = CALL.pack(b"c", call, limits.wall_seconds, limits.cpu_seconds, limits.memory_bytes)
        try:
            with theirs:
                socket.send_fds(self._control, [message], [theirs.fileno()])
        except OSError as error:  # a dead or stuck zygote
            ours.close()
            self.close(f"does not take calls: {error}")
            return False
        header = REQUEST_HEADER.pack(nonce, len(job.document), len(job.code))
        flight = _Flight(job, ours, nonce, memoryview(b"".join((header, job.document, job.code))))
        self.flights[call] = flight
        self.fresh += 1
        later = self._loop.call_later
        flight.timers = [
            later(_READ_AFTER_SECONDS, self._read_early, flight),
            later(AGED_AFTER_SECONDS, self._age, flight),
            later(limits.wall_seconds + _BACKSTOP_SECONDS, self.close, "is stuck"),
        ]
        self._send(flight)
        return True

    def stop(self, job: Job) -> None:
        """End the process of a job whose caller has gone, if it is in this jail."""
        for call, flight in self.flights.items():
            if flight.job is job:
                # A zygote that takes no message now ends the call at its time limit.
                with contextlib.suppress(OSError):
                    self._control.send(CANCEL.pack(b"k", call))

    def close(self, why: str) -> None:
        """End the jail and fail the calls inside it."""
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control)
        self._control.close()
        self.ready = False
        self.process.kill()  # the kernel ends everything in the jail with it
        self.process.wait()
        if not self._started.done():
            self._started.set_exception(ServiceFault(f"worker {self.index} {why}"))
            self._started.exception()  # marks it as seen: there may be no waiter
        flights, self.flights = self.flights, {}
        for flight in flights.values():
            self._finish(flight, ServiceFault(f"worker {self.index} {why}"))
        self._on_closed(self)

    # Channel of one call.

    def _send(self, flight: _Flight) -> None:
        try:
            while flight.to_send:
                flight.to_send = flight.to_send[flight.channel.send(flight.to_send) :]
        except BlockingIOError:
            self._loop.add_writer(flight.channel, self._send_more, flight)
        except OSError:
            flight.to_send = memoryview(b"")  # the child ended before it read everything; `ENDED` will say why

    def _send_more(self, flight: _Flight) -> None:
        self._loop.remove_writer(flight.channel)
        self._send(flight)

    def _read_early(self, flight: _Flight) -> None:
        self._loop.add_reader(flight.channel, self._read, flight)
        flight.is_read = True

    def _read(self, flight: _Flight) -> None:
        """Read the available bytes; close the channel at its end, or beyond the call's maximum."""
        while True:
            try:
                chunk = flight.channel.recv(1 << 18)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            flight.received += len(chunk)
            if not chunk or flight.received > flight.job.max_reply_bytes:
                self._close_channel(flight)
                self._finish_if_over(flight)
                return
            flight.chunks.append(chunk)
            if flight.compiled is None and flight.job.on_code is not None:
                flight.compiled, rest = _first_frame(b"".join(flight.chunks), flight.nonce)
                flight.chunks = [rest]
                if flight.compiled is not None:
                    flight.job.on_code(flight.compiled)

    def _close_channel(self, flight: _Flight) -> None:
        if flight.is_read:
            self._loop.remove_reader(flight.channel)
        if flight.to_send:  # then the event loop waits until it can be written
            self._loop.remove_writer(flight.channel)
        flight.channel.close()
        flight.is_open = False

    # Control socket.

    def _on_control(self) -> None:
        while True:
            try:
                message = self._control.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self.close("ended")
                return
            if message[:1] != b"e":
                hello = json.loads(message)
                if not hello["ready"]:
                    self.close(f"cannot be isolated: {hello['error']}")
                    return
                self.ready = True
                if not self._started.done():
                    self._started.set_result(None)
                self._on_free()
                continue
            _, call, *ended = ENDED.unpack_from(message)
            flight = self.flights.pop(call)
            flight.ended, flight.reason = tuple(ended), message[ENDED.size :].decode("utf-8", "replace")
            if flight.is_open:
                self._read(flight)  # the child is gone, so this reads to the end
            else:
                self._finish_if_over(flight)

    def _age(self, flight: _Flight) -> None:
        flight.aged = True
        self.fresh -= 1
        self._on_free()

    def _finish_if_over(self, flight: _Flight) -> None:
        # The `ENDED` message and the end of the channel come in either order; the verdict needs both.
        if flight.ended is None or flight.is_open:
            return
        status, why, wall, cpu, rss = flight.ended
        if why == NOT_STARTED:
            error = f"worker {self.index} has no process or thread to give: {os.strerror(status)}"
            self._finish(flight, ServiceFault(error))
        elif why == NOT_RESTRICTED:
            reason = flight.reason or f"its process ended first, wait status {status}"
            self._finish(flight, ServiceFault(f"a call could not be isolated: {reason}"))
        else:
            # Any byte on the channel that is not one whole frame with this call's nonce comes from the tool.
            body, rest = _first_frame(b"".join(flight.chunks), flight.nonce)
            forged, too_long = bool(rest), flight.received > flight.job.max_reply_bytes
            queued = time.monotonic() - flight.job.enqueued - wall  # the time in which it did not run
            self._finish(flight, Outcome(body, flight.compiled, forged, too_long, status, why, wall, cpu, rss, queued))

    def _finish(self, flight: _Flight, result: Outcome | ServiceFault) -> None:
        for timer in flight.timers:
            timer.cancel()
        if flight.is_open:
            self._close_channel(flight)
        if not flight.aged:
            self.fresh -= 1
        future = flight.job.future
        if not future.done():
            if isinstance(result, Outcome):
                future.set_result(result)
            else:
                future.set_exception(result)
        self._on_ended(flight.job)
