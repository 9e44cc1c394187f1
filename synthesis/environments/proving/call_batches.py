"""Call batches: calls that many proofs make at the same time go to the sandbox in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from sandbox.client import AsyncSandboxClient, ExecuteReply, ExecuteRequest

MAX_CALLS: Final = 1024
"""Maximum number of calls that the service takes in one request."""


class Sandbox(Protocol):
    """An object that runs calls: the sandbox's client itself, or `CallBatches` in front of it."""

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls; the replies are in the order of the requests."""
        ...


class CallBatches:
    """Collects the batches that tasks ask for while the event loop is busy, and sends them in one request.

    More than `MAX_CALLS` calls are sent in several requests, one after the other.
    """

    def __init__(self, client: AsyncSandboxClient):
        self._client = client
        self._waiting: list[tuple[Sequence[ExecuteRequest], asyncio.Future[list[ExecuteReply]]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls; the replies are in the order of the requests."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            task = loop.create_task(self._deliver())
            self._sending.add(task)  # the loop alone would let a running task be collected as garbage
            task.add_done_callback(self._sending.discard)
        replies: asyncio.Future[list[ExecuteReply]] = loop.create_future()
        self._waiting.append((requests, replies))
        return await replies

    async def _deliver(self) -> None:
        await asyncio.sleep(0)  # one turn of the loop more, so that tasks that become ready now get into the batch
        waiting, self._waiting = self._waiting, []
        try:
            calls = [item for requests, _ in waiting for item in requests]
            told: list[ExecuteReply] = []
            for start in range(0, len(calls), MAX_CALLS):
                told += await self._client.execute_batch(calls[start : start + MAX_CALLS])
            replies = iter(told)
        except Exception as error:  # noqa: BLE001 - any error goes to the waiting callers
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for requests, future in waiting:
            own = [next(replies) for _ in requests]  # also for a caller that has gone: the next one's follow
            if not future.done():
                future.set_result(own)
