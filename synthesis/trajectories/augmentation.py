"""Augmentation: another wording, a harder request or another speaker, with intent, facts and language kept."""

from __future__ import annotations

from synthesis.prompts.augmentation import AugmentTask, Axis
from synthesis.records import Chain, ServerDocument, Task
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.tools.documents import language_of
from synthesis.trajectories.tasks import check_text, is_stated


async def augment_task(
    task: Task, chain: Chain, server: ServerDocument, teacher: Teacher, *, axis: Axis, seed: int
) -> Task:
    """Return the task in new words, everything else as it was.

    Raises:
        Rejected: the variant lost a fact, told a hidden one, changed the language, named a tool, or is no variant.
        BadReply: the teacher's reply stayed unusable.
        TeacherUnavailable: the teacher cannot be asked.
    """
    request = AugmentTask(server=server, task=task, chain=chain, axis=axis)
    text = (await teacher.ask(request, seed=seed)).text
    check_text(text, server)
    if text == task.text:
        raise Rejected("augmentation changed nothing", axis)
    if language_of(text) != language_of(task.text):
        raise Rejected("augmentation changed the language", text[:80])
    # Both ways: no fact may go, and one that was put in other words may not turn up in the schema's.
    for slot, value in task.slots.items():
        if is_stated(value, task.text) != is_stated(value, text):
            raise Rejected("augmentation changed a fact", f"{slot!r} = {value!r}")
    return task.model_copy(update={"text": text, "augmentation": axis})
