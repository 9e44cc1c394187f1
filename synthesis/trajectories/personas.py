"""Personas: who asks, what for, in which manner, and what they know; one is drawn for every task that a model writes.

The task writer puts the request in the persona's words, and the simulated user speaks as the same person after it.
The embedded teacher reads none, so its tasks have none.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from random import Random

from pydantic import BaseModel, ConfigDict

from synthesis.records import Language, Persona


class _Knowledge(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    knows: str
    does_not_know: str


class _Traits(BaseModel):
    """What personas of one language are made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    who: tuple[str, ...]
    purpose: tuple[str, ...]
    manner: tuple[str, ...]
    knowledge: tuple[_Knowledge, ...]


@cache
def _traits() -> dict[str, _Traits]:
    table = tomllib.loads(Path(__file__).with_name("personas.toml").read_text(encoding="utf-8"))
    return {language: _Traits.model_validate(traits) for language, traits in table.items()}


def draw_persona(language: Language, rng: Random) -> Persona:
    """Draw a person who speaks a language.

    >>> draw_persona("en", Random(0)) == draw_persona("en", Random(0)), draw_persona("zh", Random(0)).language
    (True, 'zh')
    """
    traits = _traits()[language]
    knowledge = rng.choice(traits.knowledge)
    return Persona(
        who=rng.choice(traits.who),
        purpose=rng.choice(traits.purpose),
        manner=rng.choice(traits.manner),
        language=language,
        knows=knowledge.knows,
        does_not_know=knowledge.does_not_know,
    )
