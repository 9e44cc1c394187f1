"""A real service that dies once, behind a proxy that loses replies: every caller still gets its own reply."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import Limits
from tests.sandbox.processes import descriptors, service_process

CALLERS, CALLS_EACH = 64, 10
DEADLINE_SECONDS = 120.0
SHARES = {"hang": 0.05, "500": 0.05, "cut": 0.02}  # of all replies
COUNT = "def count(x, state):\n    state['calls'] += 1\n    return [x, state['calls']]\n"


class FaultyProxy:
    """Passes calls on and loses some of the replies; which ones follows from the seed, the call and the attempt."""

    def __init__(self, seed: int) -> None:
        self.service = ""
        self.lost: Counter[str] = Counter()
        self.connections = self.hanging = 0
        self._seed = seed
        self._attempts: Counter[int] = Counter()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, backlog=2 * CALLERS)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def _fault(self, x: int) -> str:
        self._attempts[x] += 1
        drawn = random.Random(f"{self._seed} {x} {self._attempts[x]}").random()
        for fault, share in SHARES.items():
            if drawn < share:
                self.lost[fault] += 1
                return fault
            drawn -= share
        return ""

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writers = [writer]
        try:
            host, port = self.service.removeprefix("http://").split(":")
            service_reader, service_writer = await asyncio.open_connection(host, int(port))
            writers.append(service_writer)
            while True:
                try:
                    head, body = await message(reader)
                except asyncio.IncompleteReadError:  # the caller has hung up
                    return
                service_writer.write(head + body)
                reply = b"".join(await message(service_reader))  # it has run, whatever becomes of its reply
                match self._fault(json.loads(body)["arguments"]["x"]):
                    case "hang":
                        self.hanging += 1
                        await reader.read()  # until its caller hangs up
                        self.hanging -= 1
                        return
                    case "500":
                        reply = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\noops\n"
                    case "cut":
                        writer.write(reply[: random.Random(f"{self._seed} {body!r}").randrange(1, len(reply))])
                        return
                writer.write(reply)
        except (OSError, asyncio.IncompleteReadError):
            self.lost["service dead"] += 1
        finally:
            for open_writer in writers:
                open_writer.close()
            self.connections -= 1


async def message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of the next request or reply.

    Raises:
        IncompleteReadError: it ends first.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head, await reader.readexactly(int(length.partition(b":")[2]))


async def wait_for(what: str, holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
async def test_every_caller_gets_its_own_reply_from_a_service_that_loses_replies_and_dies_once(seed: int) -> None:
    tasks, files = asyncio.all_tasks(), descriptors(os.getpid())
    seconds: list[float] = []
    async with AsyncExitStack() as services:

        async def start() -> str:
            return await asyncio.to_thread(services.enter_context, local_sandbox(2))  # type: ignore[arg-type]

        proxy = FaultyProxy(seed)
        first = proxy.service = await start()
        async with (
            proxy as url,
            AsyncSandboxClient(url, deadline_seconds=DEADLINE_SECONDS, grace_seconds=2.0) as client,
        ):

            async def caller(number: int) -> None:
                state: dict[str, object] = {"calls": 0}
                for call in range(CALLS_EACH):
                    x, began = CALLS_EACH * number + call, time.monotonic()
                    reply = await client.execute(
                        COUNT, "count", {"x": x}, state=state, seed=seed, limits=Limits(wall_seconds=1)
                    )
                    seconds.append(time.monotonic() - began)
                    assert (reply.value, reply.state) == ([x, call + 1], {"calls": call + 1})
                    state = reply.state or {}

            async def kill_and_start_again() -> None:
                await wait_for(
                    "a third of the calls", lambda: 3 * len(seconds) >= CALLERS * CALLS_EACH, DEADLINE_SECONDS
                )
                os.kill(service_process(first), signal.SIGKILL)
                proxy.service = await start()

            async with asyncio.TaskGroup() as group:
                for number in range(CALLERS):
                    group.create_task(caller(number))
                group.create_task(kill_and_start_again())

            assert len(seconds) == CALLERS * CALLS_EACH
            assert max(seconds) < DEADLINE_SECONDS
            assert all(proxy.lost[fault] for fault in (*SHARES, "service dead")), proxy.lost
            # An attempt that was given up holds no connection.
            await wait_for("the end of those that hang", lambda: proxy.hanging == 0)
            assert proxy.connections <= CALLERS
            print(f"\n{len(seconds)} calls, lost: {dict(proxy.lost)}, slowest {max(seconds):.1f} s")
        await wait_for("the end of the connections", lambda: proxy.connections == 0)
    await wait_for("the end of the tasks", lambda: asyncio.all_tasks() == tasks)
    await wait_for("the files to be closed", lambda: descriptors(os.getpid()) <= files)
