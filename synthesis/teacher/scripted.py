"""A teacher that answers from queues of replies and failures, for tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import BaseModel

from synthesis.teacher.protocol import Reply, Request, Teacher


class ScriptedTeacher:
    """Answers each kind of request from its own queue of replies and exceptions; `otherwise` answers all others."""

    name = "scripted"

    def __init__(
        self, script: Mapping[type[Request[Any]], Iterable[BaseModel | Exception]], otherwise: Teacher | None = None
    ):
        self._queues = {kind: deque(replies) for kind, replies in script.items()}
        self._otherwise = otherwise
        self.asked: list[Request[Any]] = []
        """Requests so far, in the order in which they came."""

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer with the next reply of the queue, or raise the next exception.

        Raises:
            LookupError: the script has no reply left for this kind of request.
            TypeError: the script's reply is not of the request's reply type.
        """
        self.asked.append(request)
        kind = type(request)
        if kind not in self._queues and self._otherwise is not None:
            return await self._otherwise.ask(request, seed=seed)
        if not self._queues.get(kind):
            raise LookupError(f"the script has no reply left to {kind.__name__}")
        reply = self._queues[kind].popleft()
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, kind.reply_type):
            raise TypeError(f"expected a {kind.reply_type.__name__} as reply to {kind.__name__}, found {reply!r}")
        return cast(Reply, reply)
