"""A sandbox service behind a proxy that loses replies, which can be killed and started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack

from sandbox.local import local_sandbox
from tests.sandbox.faulty_proxy import FaultyProxy, fault_of
from tests.sandbox.processes import service_process


def faulty_proxy(service: str, shares: Mapping[str, float], seed: int) -> FaultyProxy:
    """Return a proxy that loses such shares of the replies, drawn one after the other."""
    drawn = random.Random(seed)
    return FaultyProxy(lambda _: fault_of(drawn.random(), shares), service)


async def start(services: AsyncExitStack) -> str:
    """Start a sandbox that lives as long as `services`; return its URL."""
    return await asyncio.to_thread(services.enter_context, local_sandbox())


async def kill_and_start_again(proxy: FaultyProxy, services: AsyncExitStack, after_replies: int) -> None:
    """Kill the sandbox behind a proxy once it has answered so often, and start another one."""
    while proxy.replies < after_replies:
        await asyncio.sleep(0.02)
    os.kill(service_process(proxy.service), signal.SIGKILL)
    proxy.lost["killed"] += 1
    proxy.service = await start(services)
