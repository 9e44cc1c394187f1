"""A real service that dies once, behind a proxy that loses replies: every caller still gets its own reply."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import Limits
from tests.sandbox.faulty_proxy import SHARES, FaultyProxy, fault_of
from tests.sandbox.processes import descriptors, service_process, wait_until

CALLERS, CALLS_EACH = 64, 10
COUNT = "def count(x, state):\n    state['calls'] += 1\n    return [x, state['calls']]\n"


def faulty_proxy(seed: int) -> FaultyProxy:
    """Return a proxy that loses replies by the seed, the call and the attempt."""
    attempts: Counter[int] = Counter()

    def fault(body):
        x = json.loads(body)["arguments"]["x"]
        attempts[x] += 1
        return fault_of(random.Random(f"{seed} {x} {attempts[x]}").random(), SHARES)

    return FaultyProxy(fault)


@pytest.mark.slow
async def test_every_caller_gets_its_own_reply_from_a_service_that_loses_replies_and_dies_once():
    tasks, files, answered = asyncio.all_tasks(), descriptors(os.getpid()), 0
    async with AsyncExitStack() as services:

        async def start():
            return await asyncio.to_thread(services.enter_context, local_sandbox(2))

        proxy = faulty_proxy(seed=1)
        first = proxy.service = await start()
        async with proxy as url, AsyncSandboxClient(url, grace_seconds=2.0) as client:

            async def caller(number):
                nonlocal answered
                state: dict[str, object] = {"calls": 0}
                for call in range(CALLS_EACH):
                    x = CALLS_EACH * number + call
                    reply = await client.execute(COUNT, "count", {"x": x}, state=state, limits=Limits(wall_seconds=1))
                    assert (reply.value, reply.state) == ([x, call + 1], {"calls": call + 1})
                    state, answered = reply.state or {}, answered + 1

            async def kill_and_start_again():
                a_third = lambda: 3 * answered >= CALLERS * CALLS_EACH  # noqa: E731
                await asyncio.to_thread(wait_until, a_third, 120.0)
                os.kill(service_process(first), signal.SIGKILL)
                proxy.service = await start()

            async with asyncio.TaskGroup() as group:
                for number in range(CALLERS):
                    group.create_task(caller(number))
                group.create_task(kill_and_start_again())
            assert answered == CALLERS * CALLS_EACH
            assert all(proxy.lost[fault] for fault in (*SHARES, "service_dead")), proxy.lost
            # An attempt that was given up holds no connection.
            await asyncio.to_thread(wait_until, lambda: proxy.hanging == 0)
        await asyncio.to_thread(wait_until, lambda: proxy.connections == 0)
    async with asyncio.timeout(10):
        while asyncio.all_tasks() != tasks or descriptors(os.getpid()) > files:
            await asyncio.sleep(0.02)
