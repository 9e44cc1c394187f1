"""The wording of a hard world: its questions, its tools and their siblings, all from one lexicon.

A property has variants, such as the former landlord beside the current one (`hard_variants.toml`). The world draws the
variant that each property has. The tools of the other variants are its siblings: they take the same parameter, and in
another world one of them is the tool that a question needs. Every document is drawn by one function, so no word tells a
tool that is needed from its siblings. The noun and the variant that a question uses for a property stand in no document
of that property.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from synthesis.procedural.written_words import written_words
from synthesis.records import LOOKUP_VERBS, Language, ToolDocument

Property = tuple[str, str]
"""Entity type and property, as in the lexicon."""

YEARS: Final = ("year", "calendar_year", "for_year", "period")
DESCRIPTIONS: Final[Mapping[Language, tuple[str, ...]]] = {
    "en": ("Returns the {}", "Looks up the {}", "Gives the {}", "Tells the {}"),
    "zh": ("返回{}", "查询{}", "给出{}", "查找{}"),
}
MAX_NAME: Final = 64
"""Maximum number of characters of a tool's name, as for OpenAI's functions."""
VARIANTS: Final[Mapping[str, Mapping[Language, list[list[str]]]]] = written_words("hard_variants")
"""Wordings of each variant of a property, by the kind of its values and by language; {n} is its noun."""
_OF_A_TYPE: Final = frozenset({"parameters", "kinds"})


def lexicon(domain: str) -> Mapping[str, Any]:
    """Return the words of a domain: type to `parameters`, `kinds` by language, and each property's words.

    A property has nouns by language, the common ones first, and `values`, the kind of its values.
    """
    return written_words(f"lexicons/{domain}")[domain]


@dataclass(frozen=True)
class HardWording:
    """The words of one world."""

    language: Language
    year: str
    """Name of the parameter for a property that changes by year."""
    parameters: Mapping[str, str]
    """Name of the parameter that takes an entity's name, by type."""
    kinds: Mapping[str, str]
    """Noun that stands before an entity's name in a question, by type."""
    nouns: Mapping[Property, str]
    """Noun for a property in questions."""
    asks: Mapping[Property, str]
    """Words for a property in questions, which say its variant: "previous permit"."""
    drawn: Mapping[Property, int]
    """Number of the variant that a property has in this world."""
    documents: Mapping[Property, ToolDocument]
    siblings: Mapping[Property, tuple[ToolDocument, ...]]
    """Documents of the other variants, in random order."""


@lru_cache(maxsize=256)
def hard_wording_of(domain: str, language: Language, seed: int, yearly: frozenset[Property]) -> HardWording:
    """Draw the words of a world; the same arguments give the same words, and no two of its tools share a name."""
    rng = random.Random(f"hard wording/{domain}/{language}/{seed}")
    words = lexicon(domain)
    properties = {
        (entity_type, name): property_words
        for entity_type, of_type in words.items()
        for name, property_words in of_type.items()
        if name not in _OF_A_TYPE
    }
    year, taken = rng.choice(YEARS), set[str]()
    parameters = {entity_type: rng.choice(of_type["parameters"]) for entity_type, of_type in words.items()}
    # The first of these is the question's; names of tools are English in each language.
    kinds = {
        entity_type: _apart(rng, of_type["kinds"][language], parameters[entity_type])
        for entity_type, of_type in words.items()
    }
    nouns = {key: {each: _asked_first(rng, found[each]) for each in ("en", "zh")} for key, found in properties.items()}
    worded = {
        kind: {each: [_asked_first(rng, wordings) for wordings in of_kind[each]] for each in ("en", "zh")}
        for kind, of_kind in VARIANTS.items()
    }

    def phrase(key: Property, number: int, said: Language, of: str = "") -> str:
        noun = rng.choice(nouns[key][said][1:])
        wordings: list[str] = worded[properties[key]["values"]][said][number][1:]
        return rng.choice(wordings).format(n=f"{noun}{of}")

    def document(key: Property, number: int) -> ToolDocument:
        # A verb for each tool: one for the world would tell its tools from distractors of other worlds.
        verb = rng.choice(LOOKUP_VERBS)
        stem = re.sub("[^a-z0-9]+", "_", phrase(key, number, "en").lower())
        # Another type's tool may have the same stem: then the type tells them apart, as in real interfaces.
        tried = (f"{verb}_{stem}", f"{verb}_{key[0]}_{stem}", f"{verb}_{key[0]}_{key[1]}_{number}")
        name = next(name for name in tried if name not in taken and len(name) <= MAX_NAME)
        taken.add(name)
        names = [parameters[key[0]], *([year] if key in yearly else [])]
        about = rng.choice(kinds[key[0]][1:])
        if language == "zh":
            told, by_year = f"{about}的{phrase(key, number, language)}", "，按年份"
        else:
            a = "an" if about[0] in "aeiou" else "a"
            told, by_year = phrase(key, number, language, f" of {a} {about}"), ", by calendar year"
        description = rng.choice(DESCRIPTIONS[language]).format(told) + (by_year if key in yearly else "")
        schema = {"type": "object", "properties": {n: {"type": "string"} for n in names}, "required": names}
        return ToolDocument(name=name, description=description, parameters=schema)

    counts = {key: len(VARIANTS[found["values"]][language]) for key, found in properties.items()}
    drawn = {key: rng.randrange(count) for key, count in counts.items()}
    all_keys = [(key, number) for key, count in counts.items() for number in range(count)]
    # In random order: a document that is drawn late has a longer name more often.
    documents = {each: document(*each) for each in _shuffled(rng, all_keys)}
    return HardWording(
        language=language,
        year=year,
        parameters=parameters,
        kinds={entity_type: found[0] for entity_type, found in kinds.items()},
        nouns={key: found[language][0] for key, found in nouns.items()},
        asks={
            key: worded[found["values"]][language][drawn[key]][0].format(n=nouns[key][language][0])
            for key, found in properties.items()
        },
        drawn=drawn,
        documents={key: documents[key, number] for key, number in drawn.items()},
        siblings={
            key: tuple(documents[key, number] for number in _shuffled(rng, [*range(count)]) if number != drawn[key])
            for key, count in counts.items()
        },
    )


def _shuffled(rng: random.Random, items: list[Any]) -> list[Any]:
    return rng.sample(items, len(items))


def _asked_first(rng: random.Random, wordings: list[str]) -> list[str]:
    """Put one of the first two wordings first, which is then the question's."""
    first = rng.choice(wordings[:2])
    return [first, *(wording for wording in wordings if wording != first)]


def _apart(rng: random.Random, kinds: list[str], parameter: str) -> list[str]:
    """Shuffle the nouns of a type; the first one shares no word with the name of the parameter."""
    shuffled: list[str] = _shuffled(rng, kinds)
    first = next(kind for kind in shuffled if not set(kind.split()) & set(parameter.split("_")))
    return [first, *(kind for kind in shuffled if kind != first)]
