"""Optional parameters of generated tools: units, pages, precisions and masks, by the kind of what a tool returns.

An option is written into the document, and everything else follows from there: the call sets it where the default
does not give the plain value, the code obeys it, and the tables hold what the code needs for it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue, Language, ToolDocument
from synthesis.teacher.procedural.worlds import NUMERIC_KINDS, World

PLAIN: Final[Mapping[str, JsonValue]] = {"unit": "one", "page": 1, "precision": "day", "masked": False}
"""Option to the setting at which a tool returns a property as it stands in the world."""

TYPES: Final[Mapping[str, str]] = {"unit": "str", "page": "int", "precision": "str", "masked": "bool"}

_SCHEMAS: Final[Mapping[str, JsonObject]] = {
    "unit": {"type": "string", "enum": ["one", "thousand"]},
    "page": {"type": "integer", "minimum": 1},
    "precision": {"type": "string", "enum": ["day", "month", "year"]},
    "masked": {"type": "boolean"},
}
_DEFAULTS: Final[Mapping[str, tuple[JsonValue, ...]]] = {
    "unit": ("one", "thousand"),
    "page": (1,),
    "precision": ("day", "year"),
    "masked": (False, True),
}
_DESCRIPTIONS: Final[Mapping[Language, Mapping[str, str]]] = {
    "en": {
        "unit": "Unit of the number",
        "page": "One value a page, the newest first",
        "precision": "How exact the date is",
        "masked": "Hide all but the first character",
    },
    "zh": {
        "unit": "数字的单位",
        "page": "每页一个值，最新的在前",
        "precision": "日期的精度",
        "masked": "只显示第一个字",
    },
}
_TABLES: Final[Mapping[str, JsonObject]] = {
    "unit": {"unit_sizes": {"one": 1, "thousand": 1000}},
    "page": {},
    "precision": {"precision_lengths": {"day": 10, "month": 7, "year": 4}},
    "masked": {},
}
_CODE: Final[Mapping[str, str]] = {
    "unit": """\
    sizes = TABLES["unit_sizes"]
    if unit not in sizes:
        raise ValueError(f"unknown unit: {unit}")
    return value if unit == "one" else value / sizes[unit]
""",
    "page": """\
    if not 0 < page <= len(value):
        raise ValueError(f"no page {page} of {len(value)}")
    return value[page - 1]
""",
    "precision": """\
    lengths = TABLES["precision_lengths"]
    if precision not in lengths:
        raise ValueError(f"unknown precision: {precision}")
    return value[: lengths[precision]]
""",
    "masked": """\
    if not isinstance(masked, bool):
        raise ValueError(f"no Boolean: {masked}")
    return value[:1] + "***" if masked else value
""",
}
_EARLIER_VALUES: Final = 2
_LEAST_PAGED: Final = 100
"""Smaller numbers could be the page numbers that stand in the code."""


def with_option(document: ToolDocument, world: World, rng: random.Random) -> ToolDocument:
    """Give a lookup's document an option that fits what it returns; none fits, and it stays as it is."""
    entity_type, asked = next(
        (entity_type, asked) for entity_type, asked in world.values if document.name == f"get_{entity_type}_{asked}"
    )
    fitting = _fitting(world, entity_type, asked)
    properties = document.parameters["properties"]
    if not fitting or set(fitting) & set(properties):
        return document
    option = rng.choice(fitting)
    schema = {
        **_SCHEMAS[option],
        "description": _DESCRIPTIONS[world.language][option],
        "default": rng.choice(_DEFAULTS[option]),
    }
    parameters = {**document.parameters, "properties": {**properties, option: schema}}
    return document.model_copy(update={"parameters": parameters})


def option_of(document: ToolDocument) -> str | None:
    """Return a generated document's option."""
    return next((name for name in document.parameters["properties"] if name not in document.required), None)


def signature_of(option: str, document: ToolDocument) -> str:
    """Return the parameter as a function declares it.

    >>> properties = {"page": {"type": "integer", "default": 1}}
    >>> signature_of("page", ToolDocument(name="get_rent", description="", parameters={"properties": properties}))
    'page: int = 1'
    """
    return f"{option}: {TYPES[option]} = {document.parameters['properties'][option]['default']!r}"


def needed_arguments(document: ToolDocument) -> JsonObject:
    """Return the setting that a call needs to get the plain value: none where the default gives it."""
    option = option_of(document)
    if option is None or document.parameters["properties"][option]["default"] == PLAIN[option]:
        return {}
    return {option: PLAIN[option]}


def code_of(option: str) -> str:
    """Return the lines that make of the looked-up `value` what the option asks for."""
    return _CODE[option]


def tables_of(option: str | None, table: JsonObject, seed: int) -> tuple[JsonObject, JsonObject]:
    """Return a property's table as the option needs it, and the further tables that the code reads."""
    if option is None:
        return table, {}
    if option == "page":
        return {entity: _paged(cell, f"{seed}/{entity}") for entity, cell in table.items()}, {}
    return table, dict(_TABLES[option])


def _fitting(world: World, entity_type: str, asked: str) -> list[str]:
    cells: list[Any] = [
        cell
        for row in world.values[entity_type, asked].values()
        for cell in (row.values() if isinstance(row, dict) else [row])
    ]
    kind = world.kind(entity_type, asked)
    if kind in NUMERIC_KINDS:
        return ["unit", "page"] if min(cells) > _LEAST_PAGED else ["unit"] if all(cells) else []
    if kind == "date":
        return ["precision"]
    return ["masked"] if all(isinstance(cell, str) and len(cell) > 1 for cell in cells) else []


def _paged(cell: JsonValue, key: str) -> JsonValue:
    """Return the pages of a number: the number itself, then earlier and smaller ones; of each year where there are."""
    if isinstance(cell, dict):
        return {year: _paged(number, f"{key}/{year}") for year, number in cell.items()}
    rng = random.Random(f"pages/{key}")
    pages = [cell]
    for _ in range(_EARLIER_VALUES):
        pages.append(round(pages[-1] * rng.uniform(0.8, 0.95), 2 if isinstance(cell, float) else None))
    return pages
