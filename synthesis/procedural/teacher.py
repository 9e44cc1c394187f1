"""The embedded teacher: answers every question by grammar and computation, offline, without a key, from a seed.

It is no language model and says so in every record (`teacher = "procedural"`). What it says of a tool comes from that
tool's document; what it says of the world comes from a generated relational world, so that gold answers are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from synthesis.procedural import environments, trajectories
from synthesis.teacher.protocol import Reply, Request

ANSWERS: Mapping[type[Request[Any]], Callable[[Any, int], Any]] = {**trajectories.ANSWERS, **environments.ANSWERS}
"""Request type to the pure function (request, seed) that answers it."""


class ProceduralTeacher:
    """Answers every kind of request of both tracks; the same request and seed give the same reply."""

    name = "procedural"

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question.

        Raises:
            BadReply: the request cannot be answered by rule, e.g. a document without usable tools.
        """
        return cast(Reply, ANSWERS[type(request)](request, seed))
