"""An embedded teacher that answers some kinds of question otherwise, and keeps all that it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from synthesis.procedural.teacher import ProceduralTeacher

Change = Callable[[Any, Any, int], Any]
"""Returns the reply to (request, the embedded teacher's reply, seed), or raises in its place."""


class Otherwise(ProceduralTeacher):
    """The embedded teacher with other replies to some kinds of request."""

    def __init__(self, changes=None, *, times=None):
        """Change the replies to these kinds of request: the first so many of them, or all."""
        self._changes, self._left = changes or {}, times
        self.asked: list[Any] = []

    async def ask(self, request, *, seed):
        self.asked.append(request)
        reply = await super().ask(request, seed=seed)
        change = self._changes.get(type(request))
        if change is None or self._left == 0:
            return reply
        if self._left is not None:
            self._left -= 1
        return change(request, reply, seed)

    def asked_for(self, kind):
        return [request for request in self.asked if isinstance(request, kind)]


def raising(error: Exception) -> Change:
    """Return the change that raises an error instead of a reply."""

    def change(request, reply, seed):
        raise error

    return change
