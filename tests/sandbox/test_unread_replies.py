"""Replies that callers do not read have a bound together, and each a time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import uvicorn

from sandbox import endpoints
from sandbox.metrics import Metrics
from sandbox.packages import NO_PACKAGES

REPLY_BYTES = 8 << 20  # more than the kernel takes for a connection
BODY = b'{"source": "def f(): return 1", "function": "f"}'
ASK = b"POST /v1/execute HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


async def long_reply(*_: Any) -> bytes:
    return bytes(REPLY_BYTES)


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    pool = SimpleNamespace(packages=NO_PACKAGES)
    execution: Any = SimpleNamespace(execute_call=long_reply, metrics=Metrics(), pool=pool)
    options: dict[str, Any] = {"lifespan": "off", "ws": "none", "http": "h11", "log_level": "critical"}
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        server = uvicorn.Server(uvicorn.Config(endpoints.application(execution), **options))
        serving = asyncio.ensure_future(server._serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await serving
            assert endpoints._Reply.unread_bytes == 0


async def caller(port: int) -> socket.socket:
    """Ask, and do not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, ASK)
    return sock


async def read_all(sock: socket.socket) -> bytes:
    """Return the bytes until the connection ends, or until they are a whole reply."""
    loop, found = asyncio.get_running_loop(), b""
    while len(found) < REPLY_BYTES and (chunk := await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 10)):
        found += chunk
    return found


async def until_held(size: int) -> None:
    async with asyncio.timeout(10):
        while endpoints._Reply.unread_bytes != size:
            await asyncio.sleep(0.01)


async def test_a_reply_beyond_the_bound_is_503_and_the_others_are_whole(monkeypatch):
    monkeypatch.setattr(endpoints, "MOST_UNREAD_BYTES", 3 * REPLY_BYTES)
    async with served() as port:
        first = [await caller(port) for _ in range(3)]
        await until_held(3 * REPLY_BYTES)
        one_more = await caller(port)
        assert (await asyncio.get_running_loop().sock_recv(one_more, 12)) == b"HTTP/1.1 503"
        assert len(await read_all(first[0])) >= REPLY_BYTES
        await until_held(2 * REPLY_BYTES)
        another = await caller(port)
        assert len(await read_all(another)) >= REPLY_BYTES
        for sock in (*first, one_more, another):
            sock.close()
        await until_held(0)


async def test_a_reply_that_is_not_read_in_time_is_cut_off(monkeypatch):
    monkeypatch.setattr(endpoints, "READ_SECONDS", 0.3)
    async with served() as port:
        sock = await caller(port)
        await until_held(REPLY_BYTES)
        await until_held(0)
        assert 0 < len(await read_all(sock)) < REPLY_BYTES
        sock.close()
