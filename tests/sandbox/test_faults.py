"""A real service that dies once, behind a proxy that loses replies: every caller still gets its own reply."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import Limits
from tests.sandbox.faulty_proxy import SHARES, FaultyProxy, fault_of
from tests.sandbox.processes import descriptors, service_process, wait_until

CALLERS, CALLS_EACH = 64, 10
DEADLINE_SECONDS = 120.0
COUNT = "def count(x, state):\n    state['calls'] += 1\n    return [x, state['calls']]\n"


def faulty_proxy(seed: int) -> FaultyProxy:
    """Return a proxy that loses replies by the seed, the call and the attempt."""
    attempts: Counter[int] = Counter()

    def fault(body: bytes) -> str:
        x = json.loads(body)["arguments"]["x"]
        attempts[x] += 1
        return fault_of(random.Random(f"{seed} {x} {attempts[x]}").random(), SHARES)

    return FaultyProxy(fault)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
async def test_every_caller_gets_its_own_reply_from_a_service_that_loses_replies_and_dies_once(seed: int) -> None:
    tasks, files = asyncio.all_tasks(), descriptors(os.getpid())
    seconds: list[float] = []
    async with AsyncExitStack() as services:

        async def start() -> str:
            return await asyncio.to_thread(services.enter_context, local_sandbox(2))  # type: ignore[arg-type]

        proxy = faulty_proxy(seed)
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
                a_third = lambda: 3 * len(seconds) >= CALLERS * CALLS_EACH  # noqa: E731
                await asyncio.to_thread(wait_until, a_third, DEADLINE_SECONDS)
                os.kill(service_process(first), signal.SIGKILL)
                proxy.service = await start()

            async with asyncio.TaskGroup() as group:
                for number in range(CALLERS):
                    group.create_task(caller(number))
                group.create_task(kill_and_start_again())

            assert len(seconds) == CALLERS * CALLS_EACH
            assert max(seconds) < DEADLINE_SECONDS
            assert all(proxy.lost[fault] for fault in (*SHARES, "service_dead")), proxy.lost
            # An attempt that was given up holds no connection.
            await asyncio.to_thread(wait_until, lambda: proxy.hanging == 0)
            assert proxy.connections <= CALLERS
            print(f"\n{len(seconds)} calls, lost: {dict(proxy.lost)}, slowest {max(seconds):.1f} s")
        await asyncio.to_thread(wait_until, lambda: proxy.connections == 0)
    async with asyncio.timeout(10):
        while asyncio.all_tasks() != tasks or descriptors(os.getpid()) > files:
            await asyncio.sleep(0.02)
