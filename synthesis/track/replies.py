"""Replies to the questions about one item: their cost is kept, and one that breaks a rule is asked for once more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import TypeVar

from synthesis.prompts.rendering import Correctable
from synthesis.stage import Rejected, note_second_try
from synthesis.teacher.protocol import BadReply, Reply, Teacher, reads_prompts
from synthesis.teacher.usage import Usage, metered_usage

Checked = TypeVar("Checked")


@asynccontextmanager
async def metered_item() -> AsyncIterator[Usage]:
    """Meter every reply that is asked for inside the block.

    Raises:
        Rejected: a reply stayed unusable. An outage passes as it is: it stops the run and rejects nothing.
    """
    with metered_usage() as usage:
        try:
            yield usage
        except BadReply as bad:
            raise Rejected("unusable reply", str(bad)) from bad


async def accepted_reply(
    teacher: Teacher, request: Correctable[Reply], check: Callable[[Reply], Checked | Awaitable[Checked]], *, seed: int
) -> Checked:
    """Return the result of `check` on the reply, or on a second reply, to a question that quotes the first fault.

    A check that itself asks a teacher is awaited.

    Raises:
        Rejected: the second one is rejected, too; as `check` raised it.
    """

    async def checked(reply: Reply) -> Checked:
        found = check(reply)
        return await found if isawaitable(found) else found

    reply = await teacher.ask(request, seed=seed)
    try:
        return await checked(reply)
    except Rejected as rejected:
        if not reads_prompts(teacher):  # it would give the same reply
            raise
        first = rejected
    # The same seed: a question that quotes a failure is another question.
    again = request.model_copy(update={"last_try": reply, "failure": str(first)})
    is_accepted = False
    try:
        second = await checked(await teacher.ask(again, seed=seed))
        is_accepted = True
    finally:
        note_second_try(first.reason, is_accepted)
    return second
