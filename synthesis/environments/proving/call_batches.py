"""Call batches: the calls of many proofs at one moment travel to the sandbox in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from sandbox.client import AsyncSandboxClient, ExecuteReply, ExecuteRequest

MAX_CALLS: Final = 1024
"""Most calls of one request that the service takes."""


class Sandbox(Protocol):
    """Runs calls: the client itself, or `CallBatches` in front of it."""

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls; the replies are in the order of the requests.

        Raises:
            SandboxUnavailable: the sandbox gives no answer.
        """
        ...


class CallBatches:
    """Joins the batches that are asked for while the event loop is busy into one request of the client.

    More calls than the service takes at once are sent in several requests, one after the other.
    """

    def __init__(self, client: AsyncSandboxClient):
        self._client = client
        self._waiting: list[tuple[Sequence[ExecuteRequest], asyncio.Future[list[ExecuteReply]]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls; the replies are in the order of the requests.

        Raises:
            SandboxUnavailable: the sandbox gives no answer.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            # Two turns of the loop later: tasks that become ready in this turn still get into the batch.
            loop.call_soon(loop.call_soon, self._send)
        replies: asyncio.Future[list[ExecuteReply]] = loop.create_future()
        self._waiting.append((requests, replies))
        return await replies

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._deliver(waiting))
        self._sending.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._sending.discard)

    async def _deliver(
        self, waiting: Sequence[tuple[Sequence[ExecuteRequest], asyncio.Future[list[ExecuteReply]]]]
    ) -> None:
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
            own = [next(replies) for _ in requests]  # taken even if the caller is gone: the next replies follow
            if not future.done():
                future.set_result(own)
