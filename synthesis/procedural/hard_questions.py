"""Questions of hard worlds: frames around noun phrases that no tool's document has."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from synthesis.procedural.hard_wording import HardWording
from synthesis.procedural.worlds import NUMERIC_KINDS, Fact, World
from synthesis.records import Composition, JsonValue, Language, Operation

CHANGED_SHARE: Final = 0.75
"""Share of the questions for one number or one date that ask for a changed value."""
FACTORS: Final = (2, 3, 4, 5, 6, 12)
DAYS: Final = (10, 14, 30, 45, 60, 90)
_MORE: Final = {
    ("en", "which_largest", False): "higher",
    ("en", "which_smallest", False): "lower",
    ("en", "which_largest", True): "later",
    ("en", "which_smallest", True): "earlier",
    ("zh", "which_largest", False): "高",
    ("zh", "which_smallest", False): "低",
    ("zh", "which_largest", True): "晚",
    ("zh", "which_smallest", True): "早",
}


@cache
def frames(language: Language) -> Mapping[str, Any]:
    """Return the `openings`, the `cores` by operation and the `closings` of a language."""
    return tomllib.loads(files(__package__).joinpath("hard_frames.toml").read_text(encoding="utf-8"))[language]


def changed(world: World, fact: Fact, rng: random.Random) -> tuple[Operation, int] | None:
    """Draw the change of one fact: a multiple of a number, or a date some days later; None for the fact itself."""
    kind = world.kind(fact.entity_type, fact.property)
    if rng.random() >= CHANGED_SHARE:
        return None
    if kind in NUMERIC_KINDS:
        return "times", rng.choice(FACTORS)
    return ("days_after", rng.choice(DAYS)) if kind == "date" else None


def hard_question(
    world: World, wording: HardWording, rng: random.Random, composition: Composition, walks: Sequence[Sequence[Fact]]
) -> str:
    """Put a question of one or several walks into words.

    Walks that begin in one place and part at their ends name that place once: "Take the flat Amber Fox. What are …".
    """
    language = world.language
    stems = {walk[:-1] for walk in map(tuple, walks)} if len(walks) > 1 else set()
    roots = {walk[0].entity for walk in walks}
    about = ""
    phrases: list[str]
    if len(stems) == len(roots) == 1 and composition.operation == "list":
        subject = _about(world, wording, rng, walks[0][:-1], walks[0][0])
        about = f"先看{subject}。" if language == "zh" else f"Take {subject}. "
        kind = rng.choice(wording.kinds[walks[0][-1].entity_type])
        phrases = [
            _asked(wording, rng, walk[-1], f"该{kind}" if language == "zh" else f"this {kind}") for walk in walks
        ]
    else:
        phrases = [_asked(wording, rng, walk[-1], _about(world, wording, rng, walk[:-1], walk[0])) for walk in walks]
    last = walks[0][-1]
    is_date = world.kind(last.entity_type, last.property) == "date"
    frame = frames(language)
    links = ("、", "，还有") if language == "zh" else (", ", ", and ")
    core = rng.choice(frame["cores"][composition.operation]).format(
        facts=series(phrases, *links),
        more=_MORE.get((language, composition.operation, is_date)),
        operand=None if composition.operand is None else f"{composition.operand:g}",
    )
    return f"{rng.choice(frame['openings'])}{about}{core[0].upper()}{core[1:]}{rng.choice(frame['closings'])}"


def _about(world: World, wording: HardWording, rng: random.Random, stem: Sequence[Fact], first: Fact) -> str:
    """Name the entity that a walk's last fact is about."""
    kind = rng.choice(wording.kinds[first.entity_type])
    phrase = f"{kind}{first.entity}" if world.language == "zh" else f"the {kind} {first.entity}"
    for fact in stem:
        phrase = _asked(wording, rng, fact, phrase)
    return phrase


def _asked(wording: HardWording, rng: random.Random, fact: Fact, about: str) -> str:
    asked = rng.choice(wording.asks[fact.entity_type, fact.property]).format(x=about, year=fact.year)
    return fact.phrase.format(x=asked)


def series(items: Sequence[JsonValue], between: str, before_last: str) -> str:
    """Join items, the last one with a link of its own.

    >>> series(["a", "b", "c"], ", ", " and "), series([1], ", ", " and ")
    ('a, b and c', '1')
    """
    *first, last = map(str, items)
    return f"{between.join(first)}{before_last}{last}" if first else last
