"""Augmentation: a task in other words, harder, or said by another persona, with the same facts and language.

A persona (a speaker with a purpose, a manner and some knowledge) is drawn for every task that a language model
writes. The task writer puts the request in the persona's words, and the simulated user goes on as the same
person. The embedded teacher reads no persona, so its tasks have none.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from random import Random

from synthesis.prompts.tasks import AugmentedTask, AugmentTask, Axis
from synthesis.records import Chain, JsonObject, Language, Persona, ServerDocument, Task
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.tools.documents import language_of
from synthesis.track.replies import accepted_reply
from synthesis.trajectories.tasks import check_text, is_stated


@cache
def traits_of(language: Language) -> JsonObject:
    """Return the traits that personas of a language are drawn from: lists by name."""
    return tomllib.loads(Path(__file__).with_name("personas.toml").read_text(encoding="utf-8"))[language]


def draw_persona(language: Language, rng: Random) -> Persona:
    """Draw a persona that speaks a language.

    >>> draw_persona("en", Random(0)) == draw_persona("en", Random(0)), draw_persona("zh", Random(0)).language
    (True, 'zh')
    """
    traits = traits_of(language)
    knowledge = rng.choice(traits["knowledge"])
    drawn = {name: rng.choice(traits[name]) for name in ("who", "purpose", "manner")}
    return Persona(**drawn, language=language, **knowledge)


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
    """Return the task in new words, otherwise unchanged; on the axis `persona` another speaker says it.

    Raises:
        Rejected: the variant lost a fact, told a hidden one, changed the language, named a tool, or is no variant.
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
        # Both ways: no fact may go, and a fact in other words may not turn into the schema's value.
        for slot, value in task.slots.items():
            if is_stated(value, task.text) != is_stated(value, text):
                raise Rejected("augmentation changed a fact", f"{slot!r} = {value!r}")
        return task.model_copy(update={"text": text, "augmentation": axis, "persona": speaker})

    return await accepted_reply(teacher, request, checked, seed=seed)
