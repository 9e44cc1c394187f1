"""The callers' connections: no more than there are descriptors for, and none that waits for ever for a request.

Every call in a jail needs descriptors of its own, so connections may take those that are left. When all are taken,
a new caller gets the place of the connection that has waited longest for a whole request; one whose request is being
answered is never closed. While none can be closed, callers wait in the kernel's queue, where nobody spins or logs.

Replies that callers do not read lie in memory: one a connection, and together no more than a bound, beyond which the
connection whose reply has lain longest is closed. Its caller, if there is one, finds a reply cut, and asks again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import select
import socket
import time
from collections.abc import Callable
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("sandbox")
MAX_DESCRIPTORS = 1 << 16
REQUEST_SECONDS = 75.0
"""The most that a whole request may take to come, from the connection's beginning or the last reply."""
MOST_UNREAD_BYTES = 256 << 20
"""The most that replies may have together which callers have not read yet; a single one has at most some 64 MB."""
_RESERVED_DESCRIPTORS = 64  # files, logs, the event loop, and connections that are just being closed
_CONNECTION = "connection"  # where a request finds the protocol that it came by
_LEAST_WAIT_SECONDS = 1.0  # a connection that has waited for less may have its request on the way
_LOOK_AGAIN_SECONDS = 0.1
_ACCEPTED_AT_ONCE = 32  # then what has come on the others is looked at
_SWEEP_SECONDS = 5.0
_SAY_AGAIN_SECONDS = 60.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_descriptor_limit() -> int:
    """Take as many descriptors as this user may, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def most_connections(descriptors: int, workers: int, calls_of_a_worker: int) -> int:
    """Return how many connections leave enough descriptors for the calls, of which each needs one.

    >>> most_connections(1024, workers=2, calls_of_a_worker=32)
    880
    """
    return descriptors - _RESERVED_DESCRIPTORS - workers * (calls_of_a_worker + 8)


class Connections:
    """All connections of the callers, and the listening socket that they come from.

    Args:
      listener: the listening socket; it is closed by `close`.
      most: how many there may be at once, 1 or more.
      most_unread_bytes: how many bytes of replies may wait to be read.
    """

    def __init__(self, listener: socket.socket, most: int, most_unread_bytes: int = MOST_UNREAD_BYTES) -> None:
        self._listener, self._most, self._most_unread_bytes = listener, most, most_unread_bytes
        self._unread: dict[CallerProtocol, int] = {}
        """Bytes of the reply that each has not read, the one that has lain longest first; those of a part count whole
        until they are counted anew."""
        self._unread_bytes = 0
        self._open: set[CallerProtocol] = set()
        self.waiting: dict[CallerProtocol, float] = {}
        """Since when each waits for a whole request, the longest first."""
        self._said_at = -_SAY_AGAIN_SECONDS
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_accepting = False
        self._pause_over: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def url(self) -> str:
        """Where callers come in."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def are_to_take_turns(self) -> bool:
        """Whether callers whose calls are answered hold the places that others want, so that each should come anew."""
        return self._are_scarce and 2 * len(self.waiting) < self._most

    @property
    def _are_scarce(self) -> bool:
        return len(self._open) >= self._most

    def accept(self, make_protocol: Callable[[], CallerProtocol]) -> None:
        """Begin to take callers in."""
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._listener.setblocking(False)
        self._resume()
        self._sweep_at = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def close(self) -> None:
        """Take nobody in any more; those who are here stay."""
        self._pause()
        self._sweep_at.cancel()
        self._listener.close()

    def left(self, protocol: CallerProtocol) -> None:
        """Learn that a connection has ended."""
        self.waiting.pop(protocol, None)
        self.is_read(protocol)
        self._open.discard(protocol)
        if self._listener.fileno() >= 0:
            self._resume()

    def holds(self, protocol: CallerProtocol, size: int) -> None:
        """Learn of a reply that is about to be sent; where all together are too much, give up what has lain longest."""
        self._unread[protocol] = size
        self._unread_bytes += size
        if self._unread_bytes <= self._most_unread_bytes:
            return
        for one in self._unread:
            self._unread[one] = one.unread_bytes(self._unread[one])
        self._unread_bytes = sum(self._unread.values())
        for one in list(self._unread):
            if self._unread_bytes <= self._most_unread_bytes or one is protocol:
                return
            self._say("replies that callers do not read take too much: those that have lain longest are given up")
            self._end(one)

    def is_read(self, protocol: CallerProtocol) -> None:
        """Learn that nothing is left of a connection's reply."""
        self._unread_bytes -= self._unread.pop(protocol, 0)

    def _resume(self) -> None:
        if self._pause_over is not None:
            self._pause_over.cancel()
            self._pause_over = None
        if not self._is_accepting and self._listener.fileno() >= 0:
            self._is_accepting = True
            self._loop.add_reader(self._listener, self._accept_some)

    def _pause(self, seconds: float | None = None) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listener)
        if self._pause_over is not None:
            self._pause_over.cancel()
        self._pause_over = None if seconds is None else self._loop.call_later(seconds, self._resume)

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._are_scarce and not self._make_room():
                self._pause(_LOOK_AGAIN_SECONDS)
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                self._say(f"no connection can be taken: {error}")
                self._pause(_LOOK_AGAIN_SECONDS)
                return
            connection.setblocking(False)
            protocol = self._make_protocol()
            self._open.add(protocol)
            task = self._loop.create_task(self._connect(protocol, connection))
            self._tasks.add(task)  # the loop itself holds tasks only weakly
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, protocol: CallerProtocol, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:  # gone already
            connection.close()
            self.left(protocol)

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for a whole request, if that is long enough."""
        self._say(f"all {self._most} connections are taken: those that wait longest for a request make room")
        latest = time.monotonic() - _LEAST_WAIT_SECONDS
        for protocol, since in self.waiting.items():
            if since > latest:
                return False
            if not protocol.is_busy():
                self._end(protocol)
                return True
        return False

    def _sweep(self) -> None:
        self._sweep_at = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        latest = time.monotonic() - REQUEST_SECONDS
        for protocol in [protocol for protocol, since in self.waiting.items() if since <= latest]:
            self._end(protocol)

    def _end(self, protocol: CallerProtocol) -> None:
        # Its place is free from now on; its descriptor, a turn of the event loop later, is one of the reserved.
        self.waiting.pop(protocol, None)
        self.is_read(protocol)
        self._open.discard(protocol)
        protocol.transport.abort()  # which, unlike `close`, does not wait for a caller that does not read

    def _say(self, message: str) -> None:
        now = time.monotonic()
        if now - self._said_at >= _SAY_AGAIN_SECONDS:
            self._said_at = now
            log.warning("%s", message)


class CountsReplies:
    """Tells a connection of the size of each reply before it is sent, however long that takes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: CallerProtocol = scope["state"][_CONNECTION]

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.body":
                connection.hold(len(message.get("body", b"")))
            await send(message)

        await self._app(scope, receive, counted)


class CallerProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, which has no time limit for a request, with an account of who waits for one."""

    def __init__(self, connections: Connections, **rest: Any) -> None:
        super().__init__(**rest)
        self._connections = connections
        self.app_state = {**self.app_state, _CONNECTION: self}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # told of each byte that does not go out, and of the last that does
        self._account()

    def data_received(self, data: bytes) -> None:
        """Take bytes in; more of a request does not make its time longer."""
        super().data_received(data)
        self._account()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        if not self.flow.write_paused:
            self._connections.is_read(self)
        super().on_response_complete()
        self._account()

    def handle_events(self) -> None:
        """Look at what has come, but at no further request before the last reply is on its way."""
        if self.flow.write_paused:
            self.flow.pause_reading()
            return
        super().handle_events()

    def resume_writing(self) -> None:
        """Go on when all that was written is on its way."""
        super().resume_writing()
        if self.cycle is None or self.cycle.response_complete:
            self._connections.is_read(self)
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.handle_events()
            self._account()

    def hold(self, size: int) -> None:
        """Count a reply of which so many bytes are about to be sent."""
        self._connections.holds(self, size)

    def unread_bytes(self, size: int) -> int:
        """Return how much is left of a reply of `size` bytes; all of it until the whole has been written."""
        is_written = self.cycle is None or self.cycle.response_complete
        return self.transport.get_write_buffer_size() if is_written else size

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place up."""
        super().connection_lost(exc)
        self._connections.left(self)

    def is_busy(self) -> bool:
        """Whether its caller is still reading the last reply, or has sent what has not been looked at yet."""
        unread = select.poll()
        unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return self.transport.get_write_buffer_size() > 0 or bool(unread.poll(0))

    def _account(self) -> None:
        waiting = self._connections.waiting
        is_whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
        is_answered = self.cycle is None or self.cycle.response_complete or self.transport.is_closing()
        if is_whole and not is_answered:
            waiting.pop(self, None)
        else:
            waiting.setdefault(self, time.monotonic())
