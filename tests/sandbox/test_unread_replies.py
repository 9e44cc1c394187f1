"""Replies that callers do not read have a bound together: the oldest are given up, and who reads is served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from sandbox.connections import CallerProtocol, Connections, CountsReplies

REPLY_BYTES = 8 << 20  # more than the kernel takes for a connection
ASK = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
BOUND = 3 * REPLY_BYTES


class Replies:
    """An application whose replies are large; it counts the requests that reach it."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % REPLY_BYTES)]}
        )
        await send({"type": "http.response.body", "body": bytes(REPLY_BYTES)})


@asynccontextmanager
async def served(app: Replies) -> AsyncIterator[tuple[int, Connections]]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    connections = Connections(socket.socket(fileno=listener.detach()), 64, BOUND)
    config = uvicorn.Config(CountsReplies(app), lifespan="off", ws="none", access_log=False)
    config.load()
    connections.accept(lambda: CallerProtocol(connections, config=config, server_state=ServerState(), app_state={}))
    try:
        yield int(connections.url.rpartition(":")[2]), connections
    finally:
        connections.close()
        for protocol in list(connections._open):
            connections._end(protocol)
        await asyncio.sleep(0.05)


async def caller(port: int, requests: int = 1) -> socket.socket:
    """Asks, and does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, requests * ASK)
    return sock


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


async def read_all(sock: socket.socket) -> int:
    """Bytes until the connection ends; as many as a reply has where it is whole."""
    loop, found = asyncio.get_running_loop(), 0
    try:
        while found < REPLY_BYTES and (chunk := await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 10)):
            found += len(chunk)
    except ConnectionError:
        pass
    return found


def unread(connections: Connections) -> int:
    return sum(protocol.transport.get_write_buffer_size() for protocol in connections._open)


async def test_unread_replies_have_a_bound_together_and_the_oldest_are_given_up() -> None:
    app = Replies()
    async with served(app) as (port, connections):
        callers: list[socket.socket] = []
        for number in range(1, 13):
            callers.append(await caller(port))
            await until(lambda number=number: app.asked == number)
            await asyncio.sleep(0.02)
            assert unread(connections) <= BOUND
        assert len(connections) < 12
        assert await read_all(callers[-1]) >= REPLY_BYTES  # who reads is served, while the others do not
        assert await read_all(callers[0]) < REPLY_BYTES
        for sock in callers:
            sock.close()
        await until(lambda: len(connections) == 0)
        assert (connections._unread_bytes, connections._unread) == (0, {})


async def test_a_pipeline_that_nobody_reads_has_one_reply_at_a_time() -> None:
    app = Replies()
    async with served(app) as (port, connections):
        sock = await caller(port, requests=50)
        await until(lambda: app.asked == 1 and unread(connections) > 0)
        await asyncio.sleep(0.2)
        assert app.asked == 1
        assert unread(connections) <= REPLY_BYTES + 4096
        assert await read_all(sock) >= REPLY_BYTES
        await until(lambda: app.asked >= 2)  # and goes on when it is read
        sock.close()


async def test_who_reads_is_never_given_up() -> None:
    app = Replies()
    async with served(app) as (port, connections):

        async def reads(count: int) -> None:
            for _ in range(count):
                sock = await caller(port)
                assert await read_all(sock) >= REPLY_BYTES
                sock.close()

        await asyncio.gather(*(reads(4) for _ in range(3)))
        assert app.asked == 12
        await until(lambda: len(connections) == 0)
        assert connections._unread_bytes == 0


def test_a_service_counts_its_replies(client: Any) -> None:
    source = "def f():\n    return 'x' * (1 << 19)\n"
    assert all(len(client.execute(source, "f", {}).value) == 1 << 19 for _ in range(3))
