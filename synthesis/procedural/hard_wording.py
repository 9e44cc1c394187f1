"""The wording of a hard world: questions in a lay person's words, tools in words of the trade.

Names of tools and parameters, and the words for each property, are drawn anew for every world, from the lexicons
`lexicons/DOMAIN.toml`. No content word of a question's phrase stands in the document of the tool that answers it (a
test holds that), and some siblings have those words.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

from synthesis.records import Language, ToolDocument

Property = tuple[str, str]
"""Entity type and property, as in the lexicon."""

VERBS: Final = ("get", "fetch", "query", "read", "lookup", "retrieve", "find")
YEARS: Final = ("year", "calendar_year", "for_year", "period")


@cache
def lexicon(domain: str) -> Mapping[str, Any]:
    """Return the wordings of a domain: type to `parameters`, `en.kinds`, `zh.kinds`, and each property's wordings.

    A property has `names` of tools, and in each language `asks` (noun phrases about {x}, in a {year} where it changes
    by year) and `documents`; its `siblings` have a name and a document in each language.
    """
    text = files(__package__).joinpath(f"lexicons/{domain}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)[domain]


@dataclass(frozen=True)
class HardWording:
    """The words of one world."""

    year: str
    """Name of the parameter for a property that changes by year."""
    parameters: Mapping[str, str]
    """Name of the parameter that takes an entity's name, by type."""
    kinds: Mapping[str, tuple[str, ...]]
    """Nouns that stand before an entity's name in a question, by type."""
    asks: Mapping[Property, tuple[str, ...]]
    documents: Mapping[Property, ToolDocument]
    siblings: Mapping[Property, tuple[ToolDocument, ...]]


@lru_cache(maxsize=256)
def hard_wording_of(domain: str, language: Language, seed: int, yearly: frozenset[Property]) -> HardWording:
    """Draw the words of a world; the same arguments give the same words, and no two of its tools share a name."""
    rng = random.Random(f"hard wording/{domain}/{language}/{seed}")
    words = lexicon(domain)
    year = rng.choice(YEARS)
    properties: dict[Property, Mapping[str, Any]] = {
        (entity_type, name): wording
        for entity_type, of_type in words.items()
        for name, wording in of_type.items()
        if name not in ("parameters", *("en", "zh"))
    }
    parameters = {entity_type: rng.choice(of_type["parameters"]) for entity_type, of_type in words.items()}
    taken: set[str] = set()

    def document(key: Property, stem: str, description: str) -> ToolDocument:
        # A verb for each tool: one for the world would tell its tools from distractors of other worlds.
        verb = rng.choice(VERBS)
        # Another type's tool may have the same stem: then the type tells them apart, as in real interfaces.
        name = next(
            name
            for name in (f"{verb}_{stem}", f"{verb}_{key[0]}_{stem}", f"{verb}_{key[0]}_{key[1]}_{stem}")
            if name not in taken
        )
        taken.add(name)
        names = [parameters[key[0]], *([year] if key in yearly else [])]
        schema = {"type": "object", "properties": {n: {"type": "string"} for n in names}, "required": names}
        return ToolDocument(name=name, description=description, parameters=schema)

    documents = {
        key: document(key, rng.choice(wording["names"]), rng.choice(wording[language]["documents"]))
        for key, wording in properties.items()
    }
    siblings = {
        key: tuple(
            document(key, sibling["name"], sibling[language])
            for sibling in rng.sample(wording["siblings"], len(wording["siblings"]))
        )
        for key, wording in properties.items()
    }
    return HardWording(
        year=year,
        parameters=parameters,
        kinds={entity_type: tuple(of_type[language]["kinds"]) for entity_type, of_type in words.items()},
        asks={key: tuple(wording[language]["asks"]) for key, wording in properties.items()},
        documents=documents,
        siblings=siblings,
    )
