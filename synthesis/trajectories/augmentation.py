"""Augmentation: another wording, a harder request or another speaker, with intent, facts and language kept."""

from __future__ import annotations

from synthesis.prompts.augmentation import AugmentedTask, AugmentTask, Axis
from synthesis.records import Chain, Persona, ServerDocument, Task
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.tools.documents import language_of
from synthesis.track.second_try import accepted_reply
from synthesis.trajectories.tasks import check_text, is_stated


async def augment_task(
    task: Task,
    chain: Chain,
    server: ServerDocument,
    teacher: Teacher,
    *,
    axis: Axis,
    seed: int,
    persona: Persona | None = None,
) -> Task:
    """Return the task in new words, everything else as it was, save who says it on the axis `persona`.

    Raises:
        Rejected: the variant lost a fact, told a hidden one, changed the language, named a tool, or is no variant.
        BadReply: the teacher's reply stayed unusable.
        TeacherUnavailable: the teacher cannot be asked.
    """
    speaker = persona if axis == "persona" else task.persona
    request = AugmentTask(server=server, task=task, chain=chain, axis=axis, persona=speaker)

    def checked(augmented: AugmentedTask) -> Task:
        text = augmented.text
        if language_of(text) != language_of(task.text):
            raise Rejected("augmentation changed the language", text[:80])
        check_text(text, server, task.slots)
        if text == task.text:
            raise Rejected("augmentation changed nothing", axis)
        # Both ways: no fact may go, and one that was put in other words may not turn up in the schema's.
        for slot, value in task.slots.items():
            if is_stated(value, task.text) != is_stated(value, text):
                raise Rejected("augmentation changed a fact", f"{slot!r} = {value!r}")
        return task.model_copy(update={"text": text, "augmentation": axis, "persona": speaker})

    return await accepted_reply(teacher, request, checked, seed=seed)
