"""Questions and tools of a reworded world: one meaning in two wordings, and siblings of other meanings.

    property            rent
    meaning, drawn      former · previous · earlier
    the question asks   for the previous rent of apartment Amber Fox
    its tool            former_rent, of an apartment
    siblings            planned_rent · official_rent · …

The world draws a meaning for each property, and a wording of it for the question and another for the tool. Tools of
other meanings are its siblings: in another world one of them is the tool that a question needs. All documents are drawn
by one function, so that nothing but the meaning tells a tool from its siblings.

Decided: docs/decisions/tiny.md, “The quickstart's base is in doubt between siblings, and SFT leaves it so”.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from synthesis.procedural.hard_wording import MAX_NAME
from synthesis.procedural.written_words import written_words
from synthesis.questions.knowledge import Unseen
from synthesis.records import Language, ToolDocument

SIBLINGS: Final = 4
"""Number of siblings of a tool."""

Property = tuple[str, str]
"""Entity type and property."""


@dataclass(frozen=True)
class Meaning:
    """A meaning in three wordings, in English, of which tools' names are made, and in Chinese."""

    en: tuple[str, ...]
    zh: tuple[str, ...]

    def wordings(self, language: Language) -> tuple[str, ...]:
        """Return the wordings in a language."""
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True)
class DocumentForms:
    """Forms that tools' names and descriptions are drawn from: {asked}, {entity}."""

    names: Sequence[str]
    descriptions: Mapping[Language, Sequence[str]]
    by_year: Mapping[Language, str]
    year: str
    """Name of the parameter of a property that changes by year."""


@dataclass(frozen=True)
class Rewording:
    """The words of one world, by property."""

    asks: Mapping[Property, str]
    """Wording of the meaning in questions."""
    documents: Mapping[Property, ToolDocument]
    siblings: Mapping[Property, tuple[ToolDocument, ...]]


def meanings(unseen: Unseen = "worlds") -> list[Meaning]:
    """Return the meanings of the worlds that training shows, or those of held-out tools and domains.

    >>> {*meanings()} & {*meanings("tools")}
    set()
    """
    words, kind = written_words("reworded"), "known" if unseen == "worlds" else "unseen"
    return [Meaning(tuple(en), tuple(zh)) for en, zh in zip(words["en"][kind], words["zh"][kind], strict=True)]


def document_forms(year: str) -> DocumentForms:
    """Return the forms of documents in reworded environments."""
    forms = written_words("reworded")["documents"]
    descriptions: dict[Language, Any] = {"en": forms["en"], "zh": forms["zh"]}
    return DocumentForms(forms["names"], descriptions, forms["by_year"], year)


def reworded(
    rng: random.Random,
    language: Language,
    labels: Mapping[Property, tuple[str, str]],
    yearly: Iterable[Property],
    drawn_from: Sequence[Meaning],
    forms: DocumentForms,
) -> Rewording:
    """Draw the words of a world.

    Args:
        rng: source of every draw.
        language: language of questions and descriptions; names are English.
        labels: names of the entity's type and of the property in that language, by property.
        yearly: properties that change by year.
        drawn_from: meanings, more than `SIBLINGS` of them.
        forms: forms of names and descriptions; one of the names is short.

    >>> import random
    >>> labels = {("flat", "rent"): ("flat", "rent")}
    >>> words = reworded(random.Random(0), "en", labels, (), meanings(), document_forms("year"))
    >>> words.asks["flat", "rent"], words.documents["flat", "rent"].name
    ('provisional', 'interim_rent')
    """
    of_year, taken = frozenset(yearly), set[str]()
    asks: dict[Property, str] = {}
    documents: dict[Property, ToolDocument] = {}
    siblings: dict[Property, tuple[ToolDocument, ...]] = {}
    for key, named in labels.items():
        own, *others = rng.sample(list(drawn_from), 1 + SIBLINGS)
        asked, told, *_ = rng.sample(range(len(own.en)), 2)
        asks[key] = own.wordings(language)[asked]
        order = [(own, told), *((other, rng.randrange(len(other.en))) for other in others)]
        written = [_document(rng, language, key, named, key in of_year, each, forms, taken) for each in order]
        documents[key], siblings[key] = written[0], tuple(written[1:])
    return Rewording(asks, documents, siblings)


def _document(
    rng: random.Random,
    language: Language,
    key: Property,
    named: tuple[str, str],
    is_yearly: bool,
    worded: tuple[Meaning, int],
    forms: DocumentForms,
    taken: set[str],
) -> ToolDocument:
    (meaning, wording), (entity_type, property_name) = worded, key
    asked = f"{meaning.en[wording]}_{property_name}"
    name = rng.choice(forms.names).format(asked=asked, entity=entity_type)
    while name in taken or len(name) > MAX_NAME:
        name = rng.choice((*forms.names, "{asked}_of_{entity}")).format(asked=asked, entity=entity_type)
    taken.add(name)
    entity, label = named
    if language == "zh":
        asked = f"{meaning.zh[wording]}{label}"
    else:
        entity, asked = f"an {entity}" if entity[0] in "aeiou" else f"a {entity}", f"{meaning.en[wording]} {label}"
    description = rng.choice(forms.descriptions[language]).format(entity=entity, asked=asked)
    description = description[0].upper() + description[1:] + (forms.by_year[language] if is_yearly else "")
    names = [entity_type, *([forms.year] if is_yearly else [])]
    properties = {each: {"type": "string"} for each in names}
    return ToolDocument(
        name=name,
        description=description,
        parameters={"type": "object", "properties": properties, "required": names},
    )
