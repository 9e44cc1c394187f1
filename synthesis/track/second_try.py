"""A reply that breaks a rule of structure is asked for once more, with the reason quoted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from synthesis.prompts.rendering import Correctable
from synthesis.stage import Rejected, SecondTry, note_second_tries
from synthesis.teacher.protocol import Reply, Teacher, reads_prompts

Checked = TypeVar("Checked")


async def accepted_reply(
    teacher: Teacher, request: Correctable[Reply], check: Callable[[Reply], Checked], *, seed: int
) -> Checked:
    """Return the result of `check` on the reply, or on the second reply if the first one is rejected.

    Raises:
        Rejected: the second one is rejected, too; as `check` raised it.
        BadReply: a reply stayed unusable.
        TeacherUnavailable: the teacher cannot be asked.
    """
    reply = await teacher.ask(request, seed=seed)
    try:
        return check(reply)
    except Rejected as rejected:
        if not reads_prompts(teacher):  # it would give the same reply
            raise
        first = rejected
    # The same seed: a question that quotes a failure is another question.
    again = request.model_copy(update={"last_try": reply, "failure": str(first)})
    is_accepted = False
    try:
        checked = check(await teacher.ask(again, seed=seed))
        is_accepted = True
    finally:
        note_second_tries([SecondTry(first.reason, is_accepted)])
    return checked
