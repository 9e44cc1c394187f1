"""Generated relational worlds: the entities of a domain, their attributes and their relations.

A world is a pure function of (domain, language, seed), and of whether its tools are to be unseen. Everything the
procedural teacher says of it is looked up or computed here, so its gold answers are true by construction.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import islice
from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from synthesis.procedural.hard_options import OPTIONS, ValueRange, option_of, set_value, with_drawn_option
from synthesis.procedural.hard_wording import HardWording, Property, hard_wording_of
from synthesis.procedural.hard_worlds import draw_hard_values, draw_value, drawn_series, ranges, sizes_of
from synthesis.procedural.reworded import DocumentForms, Meaning, Rewording, document_forms, meanings, reworded
from synthesis.procedural.tool_wording import KNOWN, UNSEEN, ToolWording
from synthesis.procedural.written_words import written_words
from synthesis.questions.knowledge import Unseen
from synthesis.records import Difficulty, JsonValue, Language, ToolDocument

AttributeKind = Literal["amount", "funds", "decimal", "date", "phone", "code", "yearly"]

ENTITIES_PER_TYPE: Final = 9
NameParts: TypeAlias = tuple[Sequence[str], Sequence[str]]
"""First and second parts of names."""
YEARS: Final = ("2021", "2022", "2023", "2024", "2025")
NUMERIC_KINDS: Final = frozenset({"amount", "funds", "decimal", "yearly"})


class EntityType(BaseModel):
    """Common properties of the entities of one type: attributes, and relations to entities of other types."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    zh: str
    relations: tuple[str, ...]
    attributes: dict[str, tuple[str, AttributeKind]]
    """Chinese name and kind of each attribute, by English name."""


Domain = Mapping[str, EntityType]


@cache
def domains(unseen: Unseen = "worlds") -> Mapping[str, Domain]:
    """Return the domains that worlds can be generated for; where tools are unseen, with other types and attributes."""
    return {
        domain: {name: EntityType.model_validate(fields) for name, fields in types.items()}
        for domain, types in written_words("unseen_tools" if unseen == "tools" else "domains").items()
    }


@cache
def name_parts(language: Language) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the first and the second parts that entity names of a language are made of."""
    parts = written_words("names")[language]
    return tuple(parts["first"].split()), tuple(parts["second"].split())


@dataclass(frozen=True)
class Fact:
    """One property of one entity; with the year if it changes by year."""

    entity: str
    entity_type: str
    property: str
    """An attribute of the type, or the type that the entity leads to."""
    year: str | None
    value: JsonValue
    setting: JsonValue = None
    """The setting of the tool's option that gives the value; None for a tool without one."""
    phrase: str = "{x}"
    """Words around the property {x} that ask for the setting."""


@dataclass(frozen=True)
class World:
    """Entities by type, and the value of each of their properties.

    In a plain world no value stands twice for one property; in a hard one several entities may lead to the same one.
    """

    domain: str
    language: Language
    types: Domain
    entities: Mapping[str, tuple[str, ...]]
    values: Mapping[tuple[str, str], Mapping[str, JsonValue]]
    """(type, property) to entity name to value; a yearly attribute's value maps year to amount."""
    wording: ToolWording = KNOWN
    hard: HardWording | None = None
    """The words of a hard world; of `wording` it has the parameter of the year alone."""
    rewording: Rewording | None = None
    """The words of a reworded world, likewise."""
    seed: int = 0
    options: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Option of the tool for a property, in a hard world: (type, property) to the option's name."""
    name_parts: NameParts = ((), ())
    """Parts that the names of a hard or a reworded world are made of."""

    def parameter(self, entity_type: str) -> str:
        """Return the parameter that takes the name of an entity of a type."""
        return entity_type if self.hard is None else self.hard.parameters[entity_type]

    def lookup_document(self, entity_type: str, property_name: str) -> ToolDocument:
        """Return the document of the tool that looks a property up, in the world's language.

        One in Chinese ends with the English label that the tool's name is made of.
        """
        if self.hard is not None:
            return self.hard.documents[entity_type, property_name]
        if self.rewording is not None:
            return self.rewording.documents[entity_type, property_name]
        entity, asked = self.label(entity_type), self.label(entity_type, property_name)
        if self.language != "zh":
            entity = f"an {entity}" if entity[0] in "aeiou" else f"a {entity}"
        yearly = self.kind(entity_type, property_name) == "yearly"
        description = self.wording.description_of(self.language, entity, asked, yearly=yearly)
        if self.language == "zh":
            description += f" / {entity_type}_{property_name}"
        names = [entity_type, *([self.wording.year] if yearly else [])]
        properties = {name: {"type": "string"} for name in names}
        return ToolDocument(
            name=self.wording.lookup_of(entity_type, property_name),
            description=description,
            parameters={"type": "object", "properties": properties, "required": names},
        )

    def kind(self, entity_type: str, property_name: str) -> AttributeKind | Literal["relation"]:
        """Return the kind of a property's values."""
        if property_name in self.types[entity_type].relations:
            return "relation"
        return self.types[entity_type].attributes[property_name][1]

    def value_range(self, entity_type: str, property_name: str) -> ValueRange | None:
        """Return the range of a hard world's numbers or dates; None for other properties and other worlds."""
        return None if self.hard is None else ranges(self.domain).get(entity_type, {}).get(property_name)

    def settings(self, entity_type: str, property_name: str) -> Sequence[JsonValue]:
        """Return the settings of a tool's option that a question may ask for, the plain one first."""
        option = self.options.get((entity_type, property_name))
        return (None,) if option is None else OPTIONS[option]["settings"]

    def fact(
        self, entity_type: str, entity: str, property_name: str, year: str | None = None, setting: JsonValue = None
    ) -> Fact:
        """Look one fact up: in a year if it changes by year, at the plain setting unless its tool has another one."""
        value = self.values[entity_type, property_name][entity]
        fact = Fact(entity, entity_type, property_name, year, value if year is None else value[year])
        option = self.options.get((entity_type, property_name))
        if option is None:
            return fact
        of = OPTIONS[option]
        setting = of["settings"][0] if setting is None else setting
        phrase = of[self.language]["phrases"][of["settings"].index(setting)]
        return replace(fact, value=set_value(option, setting, fact.value, self.seed), setting=setting, phrase=phrase)

    @cached_property
    def known(self) -> frozenset[str]:
        """Every name and every value of the world, as texts."""
        cells = [cell for rows in self.values.values() for cell in rows.values()]
        texts = {str(value) for cell in cells for value in (cell.values() if isinstance(cell, dict) else [cell])}
        return frozenset(texts.union(*self.entities.values()))

    def stranger(self, rng: random.Random, kind: str, entity_type: str, property_name: str) -> JsonValue:
        """Draw a value like a property's, or of another kind, that does not stand in a hard world."""
        given, key = self.value_range(entity_type, property_name), (entity_type, property_name)
        if kind == "relation":
            return self._unknown(lambda: _names_of(rng, self.language, self.name_parts, 1)[0])
        # Of the other half of years, so that no year is the answer of two tools.
        return self._unknown(lambda: draw_value(rng, kind, given, 1 - _parity(self.seed, key)))

    def strange_series(self, rng: random.Random, entity_type: str, property_name: str) -> JsonValue:
        """Draw values by year like those of a property, none of which stands in a hard world."""
        given = self.value_range(entity_type, property_name)
        if given is None:  # a hard world has a range for each property that changes by year
            return {year: self._unknown(lambda: draw_value(rng, "yearly")) for year in YEARS}
        return drawn_series(rng, given, YEARS, self._unknown)

    def _unknown(self, drawn: Callable[[], JsonValue]) -> JsonValue:
        """Draw until the value does not stand in the world."""
        while str(value := drawn()) in self.known:
            pass
        return value

    def type_asked(self, entity_type: str) -> str:
        """Return the noun that stands before the name of an entity of a type in questions."""
        return self.label(entity_type) if self.hard is None else self.hard.kinds[entity_type]

    def asked(self, entity_type: str, property_name: str) -> str:
        """Return the words for a property in questions."""
        if self.hard is not None:
            return self.hard.asks[entity_type, property_name]
        label = self.label(entity_type, property_name)
        if self.rewording is None:
            return label
        meaning = self.rewording.asks[entity_type, property_name]
        return f"{meaning}{label}" if self.language == "zh" else f"{meaning} {label}"

    def label(self, entity_type: str, property_name: str | None = None) -> str:
        """Return the name of a type, or of a property of it, in the world's language."""
        if property_name is None or property_name in self.types[entity_type].relations:
            named = entity_type if property_name is None else property_name
            return self.types[named].zh if self.language == "zh" else named.replace("_", " ")
        if self.language == "zh":
            return self.types[entity_type].attributes[property_name][0]
        return property_name.replace("_", " ")


@lru_cache(maxsize=256)
def world_of(
    domain: str,
    language: Language,
    seed: int,
    parts: int | None = None,
    unseen: Unseen = "worlds",
    difficulty: Difficulty = "plain",
) -> World:
    """Generate the world of a domain in a language; the same arguments give the same world.

    `parts` bounds how many first and second name parts are used: with few, a small model sees each of them often. A
    hard world has words of its own, and names that are near one another; a reworded one has words of its own.

    >>> world = world_of("library", "en", 0)
    >>> book = world.entities["book"][0]
    >>> author = world.fact("book", book, "author").value
    >>> author in world.entities["author"]
    True
    """
    rng = random.Random(f"world/{domain}/{language}/{seed}")
    types = domains(unseen)[domain]
    first, second = (listed[:parts] for listed in _spread_name_parts(language))
    if difficulty == "hard":
        return _hard_world(rng, domain, language, seed, (first, second), types)
    names = _names_of(rng, language, (first, second), ENTITIES_PER_TYPE * len(types))
    entities = {
        name: tuple(names[index * ENTITIES_PER_TYPE : (index + 1) * ENTITIES_PER_TYPE])
        for index, name in enumerate(types)
    }
    world = World(
        domain, language, types, entities, draw_values(rng, types, entities), KNOWN if unseen == "worlds" else UNSEEN
    )
    if difficulty == "plain":
        return world
    forms = document_forms(world.wording.year)
    return replace(with_rewording(world, rng, meanings(unseen), forms), name_parts=(first, second))


def with_rewording(world: World, rng: random.Random, drawn_from: Sequence[Meaning], forms: DocumentForms) -> World:
    """Return the world with words for its properties that are drawn anew."""
    labels = {key: (world.label(key[0]), world.label(*key)) for key in world.values}
    yearly = [key for key in world.values if world.kind(*key) == "yearly"]
    return replace(world, rewording=reworded(rng, world.language, labels, yearly, drawn_from, forms))


def _hard_world(
    rng: random.Random, domain: str, language: Language, seed: int, parts: NameParts, types: Domain
) -> World:
    sizes, (first, second) = sizes_of(types), parts
    # So few parts that each stands in several names, and that some names are left for strangers.
    few = math.isqrt(sum(sizes.values())) + 2
    near = rng.sample(first, min(few, len(first))), rng.sample(second, min(few, len(second)))
    names = iter(_names_of(rng, language, near, sum(sizes.values())))
    entities = {name: tuple(islice(names, size)) for name, size in sizes.items()}
    values = draw_hard_values(rng, domain, types, entities, YEARS, partial(_parity, seed))
    kinds = {(name, asked): kind for name in types for asked, (_, kind) in types[name].attributes.items()}
    yearly = frozenset(key for key, kind in kinds.items() if kind == "yearly")
    hard = hard_wording_of(domain, language, seed, yearly)
    wording = replace(KNOWN, year=hard.year)
    world = World(domain, language, types, entities, values, wording, hard, seed=seed, name_parts=near)

    def with_option(key: Property, document: ToolDocument) -> ToolDocument:
        return with_drawn_option(document, key, world.kind(*key), world.value_range(*key), seed, language)

    documents = {key: with_option(key, document) for key, document in hard.documents.items()}
    siblings = {key: tuple(with_option(key, each) for each in listed) for key, listed in hard.siblings.items()}
    options = {key: option for key, document in documents.items() if (option := option_of(document)) is not None}
    return replace(world, hard=replace(hard, documents=documents, siblings=siblings), options=options)


def draw_values(
    rng: random.Random, types: Domain, entities: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], Mapping[str, JsonValue]]:
    """Draw the value of every property of every entity, of which there are `ENTITIES_PER_TYPE` of each type."""
    values: dict[tuple[str, str], Mapping[str, JsonValue]] = {}
    for name, entity_type in types.items():
        for target in entity_type.relations:
            # A permutation: no two entities lead to the same one, so answers stay distinct.
            targets = rng.sample(entities[target], ENTITIES_PER_TYPE)
            values[name, target] = dict(zip(entities[name], targets, strict=True))
        for attribute, (_, kind) in entity_type.attributes.items():
            drawn = iter(_distinct_values(rng, kind, ENTITIES_PER_TYPE * (len(YEARS) if kind == "yearly" else 1)))
            values[name, attribute] = {
                entity: {year: next(drawn) for year in YEARS} if kind == "yearly" else next(drawn)
                for entity in entities[name]
            }
    return values


def _parity(seed: int, key: Property) -> int:
    """Return whether the dates of a property lie in even years (0) or in odd ones (1)."""
    return random.Random(f"years/{seed}/{key}").randrange(2)


def _names_of(rng: random.Random, language: Language, parts: NameParts, count: int) -> list[str]:
    """Draw distinct names that are made of first and second parts."""
    first, second = parts
    joint = "" if language == "zh" else " "
    return [
        f"{first[index // len(second)]}{joint}{second[index % len(second)]}"
        for index in rng.sample(range(len(first) * len(second)), count)
    ]


@cache
def _spread_name_parts(language: Language) -> tuple[list[str], ...]:
    """Return the parts in an order that is not the alphabet's, so that the first few of them are as mixed as all."""
    rng = random.Random(f"name parts/{language}")
    return tuple(rng.sample(listed, len(listed)) for listed in name_parts(language))


def _distinct_values(rng: random.Random, kind: AttributeKind, count: int) -> list[JsonValue]:
    values: dict[JsonValue, None] = {}  # a set has no order that two processes share
    while len(values) < count:
        values[draw_value(rng, kind)] = None
    return list(values)
