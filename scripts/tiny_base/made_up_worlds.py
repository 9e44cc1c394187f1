"""Made-up worlds: types, properties, names and tool wording drawn anew for each.

    words ─► types, properties ─► entities, values ─► tool documents in a wording of their own ─► gold episodes

In a world of `domains` the tiny base could learn by heart which tool belongs to a question. Here a label means nothing
but itself, so the model must read the documents to find the tool. The words are those of the domains, one by one and in
any order, and syllables; the wording of unseen tools is never drawn.

Most worlds are reworded (`synthesis.procedural.reworded`): the base meets every meaning in every wording here, as a
language model has met the words of its language, and is offered siblings of the tools. Two of three speakers there are
in doubt: beside the right tool they call a sibling. So the base knows both ways, and RL has one to choose.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from synthesis.procedural.reworded import DocumentForms, meanings
from synthesis.procedural.tool_wording import KNOWN, UNSEEN, ToolWording
from synthesis.procedural.world_questions import draw_instance, facts_by_question
from synthesis.procedural.worlds import (
    ENTITIES_PER_TYPE,
    AttributeKind,
    EntityType,
    Fact,
    World,
    domains,
    draw_values,
    name_parts,
    with_rewording,
)
from synthesis.questions.decomposition import depths
from synthesis.records import Language, Message, Scenario, ToolCall, ToolDocument, answer_message, reasoning_before
from synthesis.teacher.protocol import BadReply

LOOKUPS: Final[Mapping[Scenario, int]] = {
    "single_hop": 1,
    "parallel_single_hop": 2,
    "multi_hop": 2,
    "parallel_multi_hop": 3,
}
"""Number of lookups of a question, by scenario."""
_EASY: Final[dict[Scenario, float]] = dict(zip(LOOKUPS, (0.55, 0.25, 0.15, 0.05), strict=True))
_ALL: Final[dict[Scenario, float]] = dict(zip(LOOKUPS, (0.25, 0.3, 0.22, 0.23), strict=True))
_CHINESE_SHARE: Final = 0.35
_REWORDED_SHARE: Final = 0.8
_SIBLING_SHARE: Final = 0.85
"""Share of the tools beside those that a reworded world's questions call that are siblings of these."""

_DOUBT_SHARE: Final = 2 / 3
"""Share of dialogues about reworded worlds whose speaker calls a sibling as well, once before each response."""

_KINDS: Final[Sequence[AttributeKind]] = ("amount", "amount", "code", "code", "decimal", "date", "phone", "yearly")
_OR: Final[Mapping[Language, str]] = {"en": " or ", "zh": " 或 "}
_VERBS: Final = (
    "fetch", "find", "read", "show", "lookup", "query", "check", "load", "tell", "see", "obtain", "calendar"
)  # fmt: skip
_CONNECTORS: Final = ("for", "in", "at", "by", "on", "per", "with", "from", "to", "of")
_KEPT_OUT: Final = frozenset({
    "a", "an", "the", "and", "in", "of", "get", "year", "name", "type", "function", "description", "parameters",
    "properties", "required", "object", "string",
})  # fmt: skip
"""Words of the chat format, the questions and every document; none is a label."""
_CONSONANTS: Final = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "st", "tr", "ch")
_SYLLABLES: Final = tuple(first + vowel for first in _CONSONANTS for vowel in "aeiou")
_MADE_UP_SHARE: Final = 0.12
"""Share of the words that are made of syllables; the tokenizer splits them into several pieces."""
_MOST_WORDS: Final = 2
"""Maximum number of words in a property's English label."""


class Dialogue(NamedTuple):
    """Gold episodes about one made-up world, behind one list of tools."""

    tools: tuple[ToolDocument, ...]
    episodes: tuple[tuple[Message, ...], ...]
    """Messages of each episode, from the question to the answer."""


def made_up_dialogue(rng: random.Random, *, easy: bool, num_questions: int | None = None) -> Dialogue:
    """Draw a dialogue about a made-up world; an easy one has short questions, few of them, and few tools."""
    language: Language = "zh" if rng.random() < _CHINESE_SHARE else "en"
    return draw_dialogue(
        rng,
        language,
        scenarios=_EASY if easy else _ALL,
        num_questions=num_questions or rng.choice((1, 2, 3) if easy else (1, 2, 3, 4, 4)),
        most_called=3 if easy else 6,
        num_tools=4 if easy else rng.choice((5, 6, 7, 8)),
    )


def draw_dialogue(
    rng: random.Random,
    language: Language,
    *,
    scenarios: Mapping[Scenario, float],
    num_questions: int,
    most_called: int,
    num_tools: int,
) -> Dialogue:
    """Draw a world, and questions about it until so many are kept, each of a scenario by its weight.

    A question is left out where the tools that the questions call would be more than `most_called`. Others are offered
    beside them, up to `num_tools` and one at least: siblings, tools of the same world, and of another one in the same
    wording.
    """
    world = made_up_world(rng, language)
    in_doubt = world.rewording is not None and rng.random() < _DOUBT_SHARE
    episodes: list[tuple[Message, ...]] = []
    called: dict[str, ToolDocument] = {}
    siblings: dict[str, ToolDocument] = {}
    for _ in range(num_questions):
        messages, documents = _draw_episode(rng, world, scenarios, in_doubt=in_doubt)
        if len(called | documents) <= most_called or not episodes:
            episodes.append(messages)
            called |= documents
    if world.rewording is not None:
        near = [
            sibling
            for key, document in world.rewording.documents.items()
            if document.name in called
            for sibling in world.rewording.siblings[key]
        ]
        siblings = {sibling.name: sibling for sibling in rng.sample(near, len(near))}
    other = replace(made_up_world(rng, language), wording=world.wording)
    properties = [(whose, key) for whose in (world, other) for key in whose.values]
    rng.shuffle(properties)
    others = (whose.lookup_document(*key) for whose, key in properties)
    tools, nearest = dict(called), iter(siblings.values())
    while len(tools) < max(num_tools, len(called) + 1):
        document = next(nearest, None) if rng.random() < _SIBLING_SHARE else None
        document = document or next(others, None)
        if document is None:
            break
        tools.setdefault(document.name, document)
    return Dialogue(tuple(rng.sample(list(tools.values()), len(tools))), tuple(episodes))


def _draw_episode(
    rng: random.Random, world: World, scenarios: Mapping[Scenario, float], *, in_doubt: bool
) -> tuple[tuple[Message, ...], dict[str, ToolDocument]]:
    facts = facts_by_question(world)
    while True:
        (scenario,) = rng.choices(list(scenarios), list(scenarios.values()))
        try:
            instance = draw_instance(world, rng, scenario, LOOKUPS[scenario], with_computation=False, max_hops=2)
        except BadReply:  # not every world has every question
            continue
        break
    depth_of = depths(instance.nodes)
    documents: dict[str, ToolDocument] = {}
    messages = [Message(role="user", content=instance.question)]
    for level in range(1, max(depth_of.values()) + 1):
        questions, calls, responses = [], [], []
        for node in instance.nodes:
            if depth_of[node.id] != level:
                continue
            fact = facts[node.question]
            document = world.lookup_document(fact.entity_type, fact.property)
            documents[document.name] = document
            year = {world.wording.year: fact.year} if fact.year else {}
            questions.append(node.question)
            calls.append(ToolCall(id=node.id, name=document.name, arguments={fact.entity_type: fact.entity, **year}))
            responses.append(json.dumps(fact.value, ensure_ascii=False))
        lines = reasoning_before(questions, calls, world.language, documents).split("\n")
        if in_doubt:
            call, response = _doubtful_call(rng, world, facts, facts[questions[0]], calls[0], documents)
            lines[0] += _OR[world.language] + reasoning_before([""], [call], world.language, documents)
            calls.insert(1, call)
            responses.insert(1, response)
        reasoning = "\n".join(lines)
        messages.append(Message(role="assistant", reasoning_content=reasoning, tool_calls=tuple(calls)))
        messages += [
            Message(role="tool", content=response, tool_call_id=call.id)
            for call, response in zip(calls, responses, strict=True)
        ]
    return (*messages, answer_message(instance.answer, world.language)), documents


def _doubtful_call(
    rng: random.Random,
    world: World,
    facts: Mapping[str, Fact],
    asked: Fact,
    call: ToolCall,
    documents: dict[str, ToolDocument],
) -> tuple[ToolCall, str]:
    """Return a call of a sibling with the same arguments, and its response: the same property of another entity."""
    assert world.rewording is not None
    sibling = rng.choice(world.rewording.siblings[asked.entity_type, asked.property])
    documents[sibling.name] = sibling
    others = [
        fact.value
        for fact in facts.values()
        if (fact.entity_type, fact.property, fact.year) == (asked.entity_type, asked.property, asked.year)
        and fact.value != asked.value
    ]
    response = json.dumps(rng.choice(others or [None]), ensure_ascii=False)
    return ToolCall(id=f"{call.id}_or", name=sibling.name, arguments=call.arguments), response


def made_up_world(rng: random.Random, language: Language) -> World:
    """Draw a world of three or four types with words, names, values and a wording of its own.

    >>> import random
    >>> one, other = (made_up_world(random.Random(seed), "en") for seed in (0, 1))
    >>> set(one.types) & set(other.types), one.wording == other.wording
    (set(), False)
    """
    taken: set[str] = set()
    names = [_label(rng, taken, 1) for _ in range(rng.randint(3, 4))]
    types = {}
    for name in names:
        others = [other for other in names if other != name]
        attributes = {}
        for _ in range(rng.choice((2, 3, 3))):
            label = _label(rng, taken, _MOST_WORDS)
            # Now and then the type's own word stands in it, as in `shipment_weight` of a shipment.
            if rng.random() < 0.12 and label.count("_") + 1 < _MOST_WORDS:
                label = f"{name}_{label}"
            attributes[label] = (_label_zh(rng, taken, 5), rng.choice(_KINDS))
        relations = tuple(rng.sample(others, rng.choice((1, 1, 2))))
        types[name] = EntityType(zh=_label_zh(rng, taken, 4), relations=relations, attributes=attributes)
    called = _entity_names(rng, language, ENTITIES_PER_TYPE * len(types))
    entities = {
        name: tuple(called[index * ENTITIES_PER_TYPE : (index + 1) * ENTITIES_PER_TYPE])
        for index, name in enumerate(types)
    }
    world = World("made_up", language, types, entities, draw_values(rng, types, entities), draw_wording(rng))
    if rng.random() >= _REWORDED_SHARE:
        return world
    return with_rewording(world, rng, [*meanings(), *meanings("tools")], _draw_forms(rng, world.wording.year))


def _draw_forms(rng: random.Random, year: str) -> DocumentForms:
    """Draw forms of documents for a reworded world: several descriptions, as each of its tools has its own."""
    connectors = rng.sample(_CONNECTORS, 3)
    en = [f"{{asked}} {connector} {{entity}}" for connector in connectors] + ["{asked} that {entity} has"]
    zh = ["{entity}的{asked}", "{entity}{asked}"]
    return DocumentForms(["{asked}"], {"en": en, "zh": zh}, {"en": " by year", "zh": "，按年份"}, year)


def draw_wording(rng: random.Random) -> ToolWording:
    """Draw the wording of a world's lookups, in names and documents; that of unseen tools is never drawn.

    >>> import random
    >>> draw_wording(random.Random(0)).lookup_of("flat", "rent")
    'get_rent_to_flat'
    """
    while True:
        wording = _draw_any_wording(rng)
        told, unseen = ({each.lookup_name, each.year, *each.lookup.values()} for each in (wording, UNSEEN))
        if not told & unseen:
            return wording


def _draw_any_wording(rng: random.Random) -> ToolWording:
    verb = rng.choice(("get", rng.choice(_VERBS), _word(rng)))
    connector = rng.choice(_CONNECTORS) if rng.random() < 0.7 else _word(rng)
    name = rng.choice(
        (
            *2 * (f"{verb}_{{entity}}_{{asked}}",),
            f"{verb}_{{asked}}_{{entity}}",
            *2 * (f"{verb}_{{asked}}_{connector}_{{entity}}",),
            f"{{entity}}_{verb}_{{asked}}",
            f"{{asked}}_{connector}_{{entity}}",
        )
    )
    one, another = _word(rng), _word(rng)
    en = rng.choice(
        (
            *2 * ("{asked} of {entity}",),
            "returns the {asked} of {entity}",
            "gives {asked} for {entity}",
            f"{one} the {{asked}} of {{entity}}",
            f"{one} the {{asked}} that {{entity}} has",
            f"the {{asked}} {one} {{entity}}",
            f"{one} {{entity}} and its {{asked}}",
            f"{one} {{asked}} {another} {{entity}}",
        )
    )
    en_year = rng.choice(
        (*2 * (" in a year",), " per year", " for some year", f" by {_word(rng)}", f" {one} {another} year")
    )
    one_zh, another_zh = ("".join(rng.choices(label_characters(), k=2)) for _ in range(2))
    zh = rng.choice(
        (
            *2 * ("{entity}的{asked}",),
            "返回{entity}的{asked}",
            f"{one_zh}{{entity}}的{{asked}}",
            f"{one_zh}{{entity}}{{asked}}",
            f"{one_zh}{{entity}}{another_zh}{{asked}}",
        )
    )
    zh_year = rng.choice(("{entity}某年的{asked}", f"某年{zh}", f"{another_zh}{zh}", f"{zh}，按年"))
    year = rng.choice(("year", "year", "for_year", "which_year", "period", _word(rng), f"{_word(rng)}_year"))
    return replace(
        KNOWN,
        lookup_name=name,
        lookup={"en": en, "zh": zh},
        yearly_lookup={"en": en + en_year, "zh": zh_year},
        year=year,
    )


def _all_types() -> list[tuple[str, EntityType]]:
    return [named for unseen in ("worlds", "tools") for types in domains(unseen).values() for named in types.items()]


@cache
def _words() -> tuple[str, ...]:
    """The words of every domain's types and properties, and of tools' names, one by one."""
    labels = [label for name, entity_type in _all_types() for label in (name, *entity_type.attributes)]
    words = {word for label in labels for word in label.split("_")} | {*_VERBS}
    return tuple(sorted(words - _KEPT_OUT))


@cache
def label_characters() -> tuple[str, ...]:
    """Return the characters of every domain's Chinese labels."""
    labels = [
        label
        for _, entity_type in _all_types()
        for label in (entity_type.zh, *(zh for zh, _ in entity_type.attributes.values()))
    ]
    return tuple(sorted({*"".join(labels), *UNSEEN.lookup["zh"]} - {*"的年某{}"} - {*"entityasked"}))


def _word(rng: random.Random) -> str:
    if rng.random() < _MADE_UP_SHARE:
        return "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))
    return rng.choice(_words())


def _label(rng: random.Random, taken: set[str], most: int) -> str:
    while True:
        words = [_word(rng) for _ in range(rng.randint(1, most))]
        label = "_".join(words)
        if label not in taken and len({*words}) == len(words):
            taken.add(label)
            return label


def _label_zh(rng: random.Random, taken: set[str], most: int) -> str:
    while True:
        label = "".join(rng.choices(label_characters(), k=rng.randint(1, most)))
        if label not in taken:
            taken.add(label)
            return label


def _entity_names(rng: random.Random, language: Language, count: int) -> list[str]:
    first, second = name_parts(language)
    joint = "" if language == "zh" else " "
    names: dict[str, None] = {}
    while len(names) < count:
        known = language == "zh" or rng.random() < 0.85
        parts = (rng.choice(first), rng.choice(second)) if known else (_word(rng).capitalize(), _word(rng).capitalize())
        names[joint.join(parts)] = None
    return list(names)
