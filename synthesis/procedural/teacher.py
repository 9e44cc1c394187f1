"""The embedded teacher: it answers every question by grammar and computation, offline, from a seed.

It is no language model and says so in every record (`teacher = "procedural"`). Its words about a tool come from
the tool's document. Its facts come from a generated relational world, so that gold answers are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from synthesis.procedural import trajectories
from synthesis.teacher.protocol import EMBEDDED, Reply, Request


def answer_to(kind: type[Request[Any]]) -> Callable[[Any, int], Any]:
    """Return the pure function (request, seed) that answers a kind of request.

    Raises:
        KeyError: there is none.
    """
    if (answer := trajectories.ANSWERS.get(kind)) is not None:
        return answer
    # Here, since the other track needs neither worlds nor lexicons.
    from synthesis.procedural import environments

    return environments.ANSWERS[kind]


class ProceduralTeacher:
    """Answers every kind of request of both tracks; the same request and seed give the same reply."""

    name = EMBEDDED

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question.

        Raises:
            BadReply: the request cannot be answered by rule, e.g. a document without usable tools.
        """
        return cast(Reply, answer_to(type(request))(request, seed))
