"""Questions of hard worlds, in words that no tool's document has, and how naturally they are put.

A walk over few relations is one noun phrase. A longer one is told from its beginning, in sentences of its own:
"Find the main agent of the former landlord of the flat Amber Fox. What is the permit of that agent?"
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from synthesis.procedural.hard_wording import HardWording
from synthesis.procedural.worlds import NUMERIC_KINDS, Fact, World
from synthesis.procedural.written_words import written_words
from synthesis.prompts.decompositions import JudgeNaturalness, Naturalness
from synthesis.records import Composition, JsonValue, Language, Operation

CHANGED_SHARE: Final = 0.75
"""Share of the questions for one number or one date that ask for a changed value."""
FACTORS: Final = (2, 3, 4, 5, 6, 12)
DAYS: Final = (10, 14, 30, 45, 60, 90)
MAX_RELATIONS: Final = 2
"""Maximum number of relations in one noun phrase that names each of them with an "of"."""
START_SHARE: Final = 0.35
"""Share of the shorter walks whose beginning has a sentence of its own as well."""
IN_ONE_SHARE: Final = 0.3
"""Share of the beginnings that are told in one sentence, however long, and are shorter so."""
DRAFTS: Final = 6
"""Number of wordings of a question of which the shortest is taken, if the first one is longer than fair."""
SHORT: Final[Mapping[Language, int]] = {"en": 14, "zh": 26}
"""Words of an English question, characters of a Chinese one, from which on it has neither greeting nor thanks."""
_LINKS: Final = {"en": re.compile(r"\b(?:of|that|which|who|whose|whom)\b"), "zh": re.compile("的")}
_CLAUSE: Final = {"en": re.compile(r"[.?!:;,]| and | or "), "zh": re.compile("[。？！：；，、和]")}
_FAIR: Final[Mapping[Language, tuple[int, int]]] = {"en": (30, 3), "zh": (50, 4)}
"""Length (words or characters) of a question and links of a clause up to which nothing is taken off."""


_FRAMES: Final[Mapping[Language, Any]] = written_words("hard_frames")
Walk = tuple[Fact, ...]
"""A fact that leads to the next one's entity, and so on; the last one is asked for."""


def changed(world: World, fact: Fact, rng: random.Random) -> tuple[Operation, int] | None:
    """Draw the change of one fact: a multiple of a number, or a date some days later; None for the fact itself."""
    kind = world.kind(fact.entity_type, fact.property)
    if rng.random() >= CHANGED_SHARE:
        return None
    if kind in NUMERIC_KINDS:
        return "times", rng.choice(FACTORS)
    return ("days_after", rng.choice(DAYS)) if kind == "date" else None


def hard_question(
    world: World, wording: HardWording, rng: random.Random, composition: Composition, walks: Sequence[Walk]
) -> str:
    """Put a question of one or several walks into words.

    The walks end in one property of several entities, or in several properties of one entity.
    """
    language = wording.language
    drafts = [_draft(world, wording, rng, composition, walks)]
    if length_of(drafts[0], language) > _FAIR[language][0]:
        drafts += [_draft(world, wording, rng, composition, walks) for _ in range(DRAFTS - 1)]
    return min(drafts, key=lambda draft: length_of(draft, language))


def _draft(
    world: World, wording: HardWording, rng: random.Random, composition: Composition, walks: Sequence[Walk]
) -> str:
    language, frame = wording.language, _FRAMES[wording.language]
    starts, subjects = _starts_and_subjects(wording, rng, walks)
    asked = list(dict.fromkeys(walk[-1] for walk in walks))
    last = asked[0]
    if len(subjects) > 1:
        facts = _phrase(wording, last, subjects)
    else:
        told = [_phrase(wording, fact, []) for fact in asked]
        facts = f"{series([f'the {each}' for each in told], language)} of {subjects[0]}"
        if language == "zh":
            facts = f"{subjects[0]}的{series(told, language)}"
    # One property of several entities is asked for as one thing; the one with the most or the least, in the same words.
    asks = "which" if composition.choices else composition.operation
    asks = "same" if asks == "list" and len(asked) == 1 else asks
    is_date = world.kind(last.entity_type, last.property) == "date"
    core = rng.choice(frame["cores"][asks]).format(
        facts=facts,
        property=_phrase(wording, last, []),
        subjects=series(subjects, language, "or"),
        more=frame["more"]["dates" if is_date else "numbers"].get(composition.operation),
        operand=None if composition.operand is None else f"{composition.operand:g}",
    )
    opening, closing = rng.choice(frame["openings"]), rng.choice(frame["closings"])
    if length_of(starts + core, language) > SHORT[language]:
        opening = closing = ""
    return f"{opening}{starts}{core[0].upper()}{core[1:]}{closing}"


def _starts_and_subjects(wording: HardWording, rng: random.Random, walks: Sequence[Walk]) -> tuple[str, list[str]]:
    """Return sentences that tell the beginning of the walks, or none, and the words for each entity asked about."""
    if len({(walk[0].entity, *walk[:-1]) for walk in walks}) == 1:
        relations = walks[0][:-1]
        if len(relations) > MAX_RELATIONS or (relations and rng.random() < START_SHARE):
            return _started(wording, rng, walks[0])
        return "", [_subject(wording, walks[0])]
    subjects = [_subject(wording, walks[0])]
    for before, walk in pairwise(walks):
        # "The flat A, B and C": a kind stands before the first of several names.
        is_alike = len(before) == len(walk) == 1 and before[0].entity_type == walk[0].entity_type
        subjects.append(walk[0].entity if is_alike else _subject(wording, walk))
    return "", subjects


def _started(wording: HardWording, rng: random.Random, walk: Walk) -> tuple[str, list[str]]:
    """Tell the relations of a walk in sentences, some in each; return these, and the words for the entity reached."""
    told, about, frame = "", _root(wording, walk[0]), "starts"
    in_one = rng.random() < IN_ONE_SHARE
    step = len(walk) if in_one else MAX_RELATIONS
    for first in range(0, len(walk) - 1, step):
        part = walk[first : min(first + step, len(walk) - 1)]
        for fact in part:
            about = _phrase(wording, fact, [about])
        x = _subject(wording, walk) if in_one else about
        # "从从…说起": a phrase that begins with the word is not begun with it again.
        fitting = [each for each in _FRAMES[wording.language][frame] if each[0] != "从" or x[0] != "从"]
        told += rng.choice(fitting).format(x=x)
        noun = wording.nouns[part[-1].entity_type, part[-1].property]
        about, frame = (f"该{noun}" if wording.language == "zh" else f"that {noun}"), "onward"
    return told, [about]


def _subject(wording: HardWording, walk: Walk) -> str:
    """Name the entity that a walk's last fact is about."""
    about, relations = _root(wording, walk[0]), walk[:-1]
    if len(relations) > MAX_RELATIONS:
        *by_way, last = [_phrase(wording, fact, []) for fact in relations]
        if wording.language == "zh":
            return f"从{about}经{'、'.join(by_way)}找到的{last}"
        return f"the {last} reached from {about} via the {series(by_way, wording.language)}"
    for fact in relations:
        about = _phrase(wording, fact, [about])
    return about


def _root(wording: HardWording, fact: Fact) -> str:
    kind = wording.kinds[fact.entity_type]
    return f"{kind}{fact.entity}" if wording.language == "zh" else f"the {kind} {fact.entity}"


def _phrase(wording: HardWording, fact: Fact, subjects: Sequence[str]) -> str:
    """Name a property of entities: "the former rent of the flat A in 2023"; without entities "former rent in 2023"."""
    key = fact.entity_type, fact.property
    told = wording.asks[key]
    if wording.language == "zh":
        told = told if fact.year is None else f"{fact.year}年{told}"
        return fact.phrase.format(x=f"{series(subjects, 'zh')}的{told}" if subjects else told)
    if len(subjects) > 1:  # behind the last subject, year and setting would be taken for those of this one alone
        told = fact.phrase.format(x=told if fact.year is None else f"{told} in {fact.year}")
        fact = replace(fact, year=None, phrase="{x}")
    if subjects:
        # "The rent of the owner of A and of B" is not that of the owner of A and B.
        again = "of " if any(" of " in subject or " from " in subject for subject in subjects) else ""
        told = f"the {told} of {series([subjects[0], *(f'{again}{each}' for each in subjects[1:])], 'en')}"
    return fact.phrase.format(x=told if fact.year is None else f"{told} in {fact.year}")


def series(items: Sequence[JsonValue], language: Language, conjunction: str = "and") -> str:
    """Join items, the last one with a link of its own.

    >>> series(["a", "b", "c"], "en", "or"), series([1, 2], "zh"), series([1], "en")
    ('a, b or c', '1和2', '1')
    """
    *first, last = map(str, items)
    between, before_last = ("、", "和") if language == "zh" else (", ", f" {conjunction} ")
    return f"{between.join(first)}{before_last}{last}" if first else last


def judge_naturalness(request: JudgeNaturalness, seed: int) -> Naturalness:
    """Score a question by its length and its nesting; the score is the lesser of the two.

    Each is 1 up to `_FAIR`. At 5/3 of the fair length a question has 0.5; at two links more so has a clause.
    """
    language = request.language
    length, links = length_of(request.question, language), nesting_of(request.question, language)
    fair_length, fair_links = _FAIR[language]
    short = 1 - 0.75 * max(0, length - fair_length) / fair_length
    flat = 1 - 0.25 * max(0, links - fair_links)
    return Naturalness(
        reason=f"{length} words or characters, at most {links} links in one clause",
        naturalness=max(0.0, min(short, flat)),
    )


def length_of(question: str, language: Language) -> int:
    """Return the number of words of an English question, of characters of a Chinese one.

    >>> length_of("What is the rent of the flat Amber Fox?", "en"), length_of("公寓的租金是多少？", "zh")
    (9, 9)
    """
    return len(question) if language == "zh" else len(question.split())


def nesting_of(question: str, language: Language) -> int:
    """Return the greatest number of links in one clause: "of" and relative pronouns, in Chinese 的.

    >>> nesting_of("Take the agent of the owner of the flat A. What is the phone of that agent?", "en")
    2
    """
    return max(len(_LINKS[language].findall(clause)) for clause in _CLAUSE[language].split(question))
