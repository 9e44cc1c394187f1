"""The wording of generated tools' names and documents; held-out tools have another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from synthesis.procedural.written_words import written_words
from synthesis.records import Language


@dataclass(frozen=True)
class ToolWording:
    """Names and sentences of documents; `{entity}` is a type's label, `{asked}` a property's."""

    lookup_name: str
    lookup: Mapping[Language, str]
    yearly_lookup: Mapping[Language, str]
    move_name: str
    move: Mapping[Language, str]
    year: str
    """Name of the parameter of a lookup whose value changes by year."""
    source: str
    target: str
    amount: str
    """Name of a move's parameter, like `source` and `target`."""

    def lookup_of(self, entity_type: str, asked: str) -> str:
        """Return the name of the tool that looks a property up."""
        return self.lookup_name.format(entity=entity_type, asked=asked)

    def description_of(self, language: Language, entity: str, asked: str, *, yearly: bool = False) -> str:
        """Return a document's description of a lookup, from the labels of the type and of the property.

        >>> KNOWN.description_of("en", "a flat", "rent", yearly=True), KNOWN.description_of("zh", "公寓", "租金")
        ('Rent of a flat in a year', '公寓的租金')
        """
        described = (self.yearly_lookup if yearly else self.lookup)[language].format(entity=entity, asked=asked)
        return described if language == "zh" else described[0].upper() + described[1:]


_WORDINGS: Final = written_words("tool_wordings")
KNOWN: Final = ToolWording(**_WORDINGS["known"])
UNSEEN: Final = ToolWording(**_WORDINGS["unseen"])
