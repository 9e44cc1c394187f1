"""Augmentation: a task in other words, harder, or said by another persona, with the same facts and language.

A variant is a task of its own, with scores of its own text. The original stays beside it.

A persona (a speaker with a purpose, a manner and some knowledge) is drawn for every task that a language model
writes. The task writer puts the request in the persona's words, and the simulated user goes on as the same
person. The embedded teacher reads no persona, so its tasks have none.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from synthesis.prompts.tasks import AugmentedTask, AugmentTask, Axis
from synthesis.records import JsonObject, Language, Message, Persona, ServerDocument, Task
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.tools.documents import language_of
from synthesis.track.replies import accepted_reply
from synthesis.track.seeds import derived_random
from synthesis.trajectories.follow_ups import task_so_far
from synthesis.trajectories.tasks import check_text, is_stated

AXES: Final[tuple[Axis, ...]] = ("diversity", "complexity", "persona")


def original_of(slot: int, num_servers: int, *, share: float, seed: int) -> tuple[int, Axis] | None:
    """Return the slot of the task that a slot varies, and the axis; None for a slot with a task of its own.

    Slots go round the servers, and of each server's slots `share`, from 0 to 3/4, vary the task before them. So a task
    has at most one variant along each axis.

    >>> [original_of(slot, 1, share=0.5, seed=0) for slot in range(4)]
    [None, (0, 'diversity'), None, (2, 'persona')]
    """
    ordinal = slot // num_servers
    step = 0
    while int((ordinal - step + 1) * share) > int((ordinal - step) * share):
        step += 1
    if not step:
        return None
    original = slot - step * num_servers
    return original, derived_random(seed, "axes", original).sample(AXES, len(AXES))[step - 1]


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
    task: Task, server: ServerDocument, teacher: Teacher, *, axis: Axis, seed: int, persona: Persona | None = None
) -> Task:
    """Return the task with its first request in new words; on the axis `persona` another speaker makes all requests.

    Raises:
        Rejected: the variant lost a fact, told a hidden one, changed the language, named a tool, or is no variant.
    """
    speaker = persona if axis == "persona" else task.persona
    first = task_so_far(task, [Message(role="user", content=task.text)])
    chain = first.chain
    assert chain is not None  # each task has the calls that its author expects
    facts = {binding.slot for binding in chain.bindings} - task.hidden_parameters.keys()
    first = first.model_copy(update={"slots": {slot: task.slots[slot] for slot in task.slots if slot in facts}})
    request = AugmentTask(server=server, task=first, chain=chain, axis=axis, persona=speaker)

    def checked(augmented: AugmentedTask) -> Task:
        text = augmented.text
        if language_of(text) != language_of(task.text):
            raise Rejected("augmentation changed the language", text[:80])
        check_text(text, server, task.slots)
        if text == task.text:
            raise Rejected("augmentation changed nothing", axis)
        # Both ways: no fact may go, and a fact in other words may not turn into the schema's value.
        for slot, value in (task.slots | task.hidden_parameters).items():
            if is_stated(value, task.text) != is_stated(value, text):
                raise Rejected("augmentation changed a fact", f"{slot!r} = {value!r}")
        return task.model_copy(update={"text": text, "augmentation": axis, "persona": speaker})

    return await accepted_reply(teacher, request, checked, seed=seed)
