"""Questions about a generated world: walks over its relations, in English and Chinese.

A question is one or several walks. Each walk starts at a named entity, follows relations and ends in the property that
is asked for; walks that share a beginning share its lookups. The grammar is fixed: a property is always called by its
label, an entity that the question starts from by its type and name. A hard world's main questions have other words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any, Final, TypeVar

from synthesis.procedural.hard_questions import Walk, changed, hard_question, series
from synthesis.procedural.worlds import NUMERIC_KINDS, YEARS, Fact, World
from synthesis.procedural.written_words import written_words
from synthesis.questions.decomposition import DecompositionNode, QAInstance, compose, depths
from synthesis.records import Composition, JsonValue, Language, Scenario
from synthesis.teacher.protocol import BadReply

MAX_DRAWS: Final = 200
MAX_WALKS: Final = 6
OTHER_SETTINGS: Final = 0.6
"""Share of the facts with an option that ask for another setting than the plain one."""

Option = TypeVar("Option")


_FRAMES: Final[Mapping[Language, Any]] = written_words("plain_frames")
"""Sentence frames of plain questions by language: `main`, `computations`, and the words `more_and_less`."""


def _more_and_less(world: World, fact: Fact) -> tuple[str, str]:
    is_date = world.kind(fact.entity_type, fact.property) == "date"
    more, less = _FRAMES[world.language]["more_and_less"]["dates" if is_date else "numbers"]
    return more, less


def lookup_question(world: World, fact: Fact) -> str:
    """Put the question for one fact into words.

    >>> from synthesis.procedural.worlds import world_of
    >>> world = world_of("library", "en", 0)
    >>> lookup_question(world, world.fact("book", world.entities["book"][0], "author")).endswith("?")
    True
    """
    asked = fact.phrase.format(x=_of(world, _label(world, fact), _root(world, fact)))
    return f"{asked}是什么？" if world.language == "zh" else f"What is {asked}?"


def facts_by_question(world: World) -> Mapping[str, Fact]:
    """Return every fact of a world by the question that asks for it: how the teacher understands a question."""
    facts = {}
    for (entity_type, property_name), rows in world.values.items():
        years = YEARS if world.kind(entity_type, property_name) == "yearly" else (None,)
        for entity in rows:
            for year, setting in product(years, world.settings(entity_type, property_name)):
                fact = world.fact(entity_type, entity, property_name, year, setting)
                facts[lookup_question(world, fact)] = fact
    return facts


def draw_instance(
    world: World, rng: random.Random, scenario: Scenario, num_lookups: int, *, with_computation: bool, max_hops: int
) -> QAInstance:
    """Draw a question of the given shape whose lookups have distinct answers, none of them told by the question.

    Raises:
        BadReply: the world has no such question.
    """
    for _ in range(MAX_DRAWS):
        try:
            walks = _draw_walks(world, rng, scenario, num_lookups, with_computation, max_hops)
        except _DeadEnd:
            continue
        facts = list(dict.fromkeys(fact for walk in walks for fact in walk))
        roots = list(dict.fromkeys(walk[0].entity for walk in walks))
        answers = [fact.value for fact in facts]
        distinct = len({str(answer) for answer in answers}) == len(answers)
        # Walks that meet share lookups and have too few; an answer that is a root would be told by the question.
        if len(facts) == num_lookups and distinct and not set(map(str, answers)) & set(roots):
            return _instance(world, rng, scenario, walks, with_computation)
    raise BadReply(
        f"the {world.domain} world has no {scenario} question of {num_lookups} lookups within {max_hops} hops"
    )


class _DeadEnd(Exception):
    """This draw leads nowhere; another may."""


def _pick(rng: random.Random, options: Sequence[Option]) -> Option:
    if not options:
        raise _DeadEnd
    return rng.choice(options)


def _draw_walks(
    world: World, rng: random.Random, scenario: Scenario, num_lookups: int, with_computation: bool, max_hops: int
) -> list[Walk]:
    if scenario == "single_hop":
        return [_draw_walk_from(world, rng, 1)]
    if scenario == "multi_hop":
        return [_draw_walk_from(world, rng, num_lookups)]
    if not with_computation and rng.random() < 0.5:
        longest_stem = max(1, min(max_hops - 1, num_lookups - 2))
        # The greatest of three draws: long stems come more often.
        stem = 0 if scenario == "parallel_single_hop" else max(rng.randint(1, longest_stem) for _ in range(3))
        return _draw_fan(world, rng, stem, num_lookups - stem)
    if scenario == "parallel_single_hop":
        lengths = [1] * num_lookups
    else:
        # The lesser of two draws: few long walks come more often than many short ones.
        feasible = [k for k in range(2, min(MAX_WALKS, num_lookups - 1) + 1) if -(-num_lookups // k) <= max_hops]
        lengths = _draw_lengths(rng, num_lookups, min(_pick(rng, feasible) for _ in range(2)), max_hops)
    return _draw_alike(world, rng, lengths, with_computation)


def _draw_lengths(rng: random.Random, total: int, count: int, longest: int) -> list[int]:
    """Split `total` lookups over `count` walks: evenly, or one walk after the other as long as may be."""
    lengths = [1] * count
    uneven = rng.random() < 0.7
    for _ in range(total - count):
        open_walks = [index for index in range(count) if lengths[index] < longest]
        lengths[open_walks[0] if uneven else min(open_walks, key=lambda index: lengths[index])] += 1
    rng.shuffle(lengths)
    return lengths


def _draw_walk_from(world: World, rng: random.Random, length: int) -> Walk:
    stem, entity_type, entity = _draw_stem(world, rng, length - 1)
    return (*stem, _draw_fact(world, rng, entity_type, entity, _pick(rng, list(world.types[entity_type].attributes))))


def _draw_fan(world: World, rng: random.Random, stem_length: int, width: int) -> list[Walk]:
    """Draw one stem of relations, then several properties of the entity it leads to."""
    stem, entity_type, entity = _draw_stem(world, rng, stem_length)
    properties = [*world.types[entity_type].attributes, *world.types[entity_type].relations]
    if len(properties) < width:
        raise _DeadEnd
    asked = rng.sample(properties, width)
    return [(*stem, _draw_fact(world, rng, entity_type, entity, name)) for name in asked]


def _draw_alike(world: World, rng: random.Random, lengths: Sequence[int], comparable: bool) -> list[Walk]:
    """Draw several walks that end in one property."""
    properties = [
        (entity_type, name)
        for entity_type in world.types
        for name in world.types[entity_type].attributes
        if not comparable or world.kind(entity_type, name) in {*NUMERIC_KINDS, "date"}
    ]
    entity_type, asked = _pick(rng, properties)
    year, setting = _draw_year_and_setting(world, rng, entity_type, asked)
    walks = []
    for length in lengths:
        # The types are found backwards from the property, for not every way from some entity leads there.
        types = [entity_type]
        for _ in range(length - 1):
            types.append(_pick(rng, [name for name in world.types if types[-1] in world.types[name].relations]))
        types.reverse()
        entity = rng.choice(world.entities[types[0]])
        walk = []
        for here, there in pairwise(types):
            walk.append(world.fact(here, entity, there))
            entity = str(walk[-1].value)
        walks.append((*walk, world.fact(entity_type, entity, asked, year, setting)))
    return walks


def _draw_stem(world: World, rng: random.Random, length: int) -> tuple[Walk, str, str]:
    """Draw relations from any entity on; return them, and the type and name of the entity that they lead to."""
    entity_type = rng.choice(list(world.types))
    entity = rng.choice(world.entities[entity_type])
    facts: list[Fact] = []
    for _ in range(length):
        relation = _pick(rng, world.types[entity_type].relations)
        facts.append(world.fact(entity_type, entity, relation))
        entity_type, entity = relation, str(facts[-1].value)
    return tuple(facts), entity_type, entity


def _draw_fact(world: World, rng: random.Random, entity_type: str, entity: str, name: str) -> Fact:
    year, setting = _draw_year_and_setting(world, rng, entity_type, name)
    return world.fact(entity_type, entity, name, year, setting)


def _draw_year_and_setting(
    world: World, rng: random.Random, entity_type: str, name: str
) -> tuple[str | None, JsonValue]:
    year = rng.choice(YEARS) if world.kind(entity_type, name) == "yearly" else None
    plain, *others = world.settings(entity_type, name)
    return year, rng.choice(others) if others and rng.random() < OTHER_SETTINGS else plain


def _instance(
    world: World, rng: random.Random, scenario: Scenario, walks: list[Walk], with_computation: bool
) -> QAInstance:
    by_depth = sorted({fact: depth for walk in walks for depth, fact in enumerate(walk)}.items(), key=lambda f: f[1])
    ids = {fact: f"q{index + 1}" for index, (fact, _) in enumerate(by_depth)}
    # One parent each: two facts that lead to one entity have equal answers, and such draws are turned away.
    parents = {after: (ids[before],) for walk in walks for before, after in pairwise(walk)}
    nodes = [
        DecompositionNode(
            id=ids[fact], question=lookup_question(world, fact), answer=fact.value, depends_on=parents.get(fact, ())
        )
        for fact in ids
    ]
    asked = [walk[-1] for walk in walks]
    composition = _draw_composition(world, rng, asked, [ids[fact] for fact in asked], with_computation)
    hops = max(depths(nodes).values())
    answer = compose(composition, {node.id: node.answer for node in nodes})
    if with_computation:
        nodes.append(
            DecompositionNode(
                id=f"q{len(nodes) + 1}",
                question=_computation_question(world, composition, asked),
                answer=answer,
                depends_on=composition.inputs,
                kind="computation",
            )
        )
    names = set().union(*world.entities.values())
    mentioned = [value for walk in walks for fact in walk for value in (fact.entity, fact.value) if value in names]
    return QAInstance(
        question=_main_question(world, rng, composition.operation, walks)
        if world.hard is None
        else hard_question(world, world.hard, rng, composition, walks),
        answer=answer,
        scenario=scenario,
        hops=hops,
        nodes=tuple(nodes),
        composition=composition,
        entities=tuple(dict.fromkeys(map(str, mentioned))),
    )


def _draw_composition(
    world: World, rng: random.Random, asked: Sequence[Fact], ids: Sequence[str], with_computation: bool
) -> Composition:
    inputs = tuple(ids)
    if not with_computation:
        # A year or a month alone has no day some days later.
        is_whole = asked[0].setting not in ("month", "year")
        change = changed(world, asked[0], rng) if world.hard is not None and is_whole and len(ids) == 1 else None
        if change is not None:
            return Composition(operation=change[0], inputs=inputs, operand=change[1])
        return Composition(operation="same" if len(ids) == 1 else "list", inputs=inputs)
    operations: list[Any] = ["which_largest", "which_smallest"]
    if world.kind(asked[0].entity_type, asked[0].property) in NUMERIC_KINDS:
        operations += ["sum", "largest", "smallest", *(["difference"] if len(ids) == 2 else [])]
    operation = rng.choice(operations)
    choices = tuple(fact.entity for fact in asked) if operation.startswith("which_") else ()
    return Composition(operation=operation, inputs=inputs, choices=choices)


def _main_question(world: World, rng: random.Random, operation: str, walks: Sequence[Walk]) -> str:
    template = rng.choice(_FRAMES[world.language]["main"][operation])
    asked = [walk[-1] for walk in walks]
    subjects = list(dict.fromkeys(_subject(world, walk) for walk in walks))
    labels = list(dict.fromkeys(_label(world, fact) for fact in asked))
    if world.language == "zh":
        facts = f"{series(subjects, 'zh')}的{series(labels, 'zh')}"
    else:
        facts = f"the {series(labels, 'en')} {series([f'of {subject}' for subject in subjects], 'en')}"
    more, less = _more_and_less(world, asked[0])
    joined = series(subjects, world.language, "and" if "Of {" in template else "or")
    return template.format(facts=facts, subjects=joined, label=labels[0], more=more, less=less)


def _computation_question(world: World, composition: Composition, asked: Sequence[Fact]) -> str:
    values: list[JsonValue] = [fact.value for fact in asked]
    if composition.choices:
        form = "{}（{}）" if world.language == "zh" else "{} ({})"
        values = [form.format(choice, value) for choice, value in zip(composition.choices, values, strict=True)]
    more, less = _more_and_less(world, asked[0])
    template = _FRAMES[world.language]["computations"][composition.operation]
    return template.format(values=series(values, world.language), more=more, less=less)


def _subject(world: World, walk: Walk) -> str:
    """Name the entity of a walk's last fact by the relations that lead there."""
    phrase = _root(world, walk[0])
    for fact in walk[:-1]:
        phrase = _of(world, _label(world, fact), phrase)
    return phrase


def _root(world: World, fact: Fact) -> str:
    return f"{world.type_asked(fact.entity_type)}{'' if world.language == 'zh' else ' '}{fact.entity}"


def _of(world: World, label: str, subject: str) -> str:
    return f"{subject}的{label}" if world.language == "zh" else f"the {label} of {subject}"


def _label(world: World, fact: Fact) -> str:
    label = world.asked(fact.entity_type, fact.property)
    if fact.year is None:
        return label
    return f"{fact.year}年{label}" if world.language == "zh" else f"{label} in {fact.year}"
