"""Optional parameters of generated tools: units, pages, precisions and masks, by the kind of what a tool returns.

An option is written into the document, and everything else follows from there: the call sets it where the default
does not give the plain value, the code obeys it, and the tables hold what the code needs for it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue, Language, ToolDocument
from synthesis.teacher.procedural.worlds import NUMERIC_KINDS, World


@dataclass(frozen=True)
class Option:
    """An optional parameter of a lookup."""

    plain: JsonValue
    """The setting at which a tool returns a property as it stands in the world."""
    defaults: tuple[JsonValue, ...]
    """What leaving it out may mean."""
    annotation: str
    schema: JsonObject
    descriptions: Mapping[Language, str]
    code: str
    """Lines that make of the looked-up `value` what the option asks for."""
    tables: JsonObject = field(default_factory=dict)
    """Data that the code reads."""


OPTIONS: Final[Mapping[str, Option]] = {
    "unit": Option(
        plain="one",
        defaults=("one", "thousand"),
        annotation="str",
        schema={"type": "string", "enum": ["one", "thousand"]},
        descriptions={"en": "Unit of the number", "zh": "数字的单位"},
        code="""\
    sizes = TABLES["unit_sizes"]
    if unit not in sizes:
        raise ValueError(f"unknown unit: {unit}")
    return value if unit == "one" else value / sizes[unit]
""",
        tables={"unit_sizes": {"one": 1, "thousand": 1000}},
    ),
    "page": Option(
        plain=1,
        defaults=(1,),
        annotation="int",
        schema={"type": "integer", "minimum": 1},
        descriptions={"en": "One value a page, the newest first", "zh": "每页一个值，最新的在前"},
        code="""\
    if not 0 < page <= len(value):
        raise ValueError(f"no page {page} of {len(value)}")
    return value[page - 1]
""",
    ),
    "precision": Option(
        plain="day",
        defaults=("day", "year"),
        annotation="str",
        schema={"type": "string", "enum": ["day", "month", "year"]},
        descriptions={"en": "How exact the date is", "zh": "日期的精度"},
        code="""\
    lengths = TABLES["precision_lengths"]
    if precision not in lengths:
        raise ValueError(f"unknown precision: {precision}")
    return value[: lengths[precision]]
""",
        tables={"precision_lengths": {"day": 10, "month": 7, "year": 4}},
    ),
    "masked": Option(
        plain=False,
        defaults=(False, True),
        annotation="bool",
        schema={"type": "boolean"},
        descriptions={"en": "Hide all but the first character", "zh": "只显示第一个字"},
        code="""\
    if not isinstance(masked, bool):
        raise ValueError(f"no Boolean: {masked}")
    return value[:1] + "***" if masked else value
""",
    ),
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
    name = rng.choice(fitting)
    option = OPTIONS[name]
    written = {"description": option.descriptions[world.language], "default": rng.choice(option.defaults)}
    parameters = {**document.parameters, "properties": {**properties, name: {**option.schema, **written}}}
    return document.model_copy(update={"parameters": parameters})


def option_of(document: ToolDocument) -> str | None:
    """Return the name of a generated document's option."""
    return next((name for name in document.parameters["properties"] if name not in document.required), None)


def signature_of(option: str, document: ToolDocument) -> str:
    """Return the parameter as a function declares it.

    >>> properties = {"page": {"type": "integer", "default": 1}}
    >>> signature_of("page", ToolDocument(name="get_rent", description="", parameters={"properties": properties}))
    'page: int = 1'
    """
    return f"{option}: {OPTIONS[option].annotation} = {document.parameters['properties'][option]['default']!r}"


def needed_arguments(document: ToolDocument) -> JsonObject:
    """Return the setting that a call needs to get the plain value: none where the default gives it."""
    option = option_of(document)
    if option is None or document.parameters["properties"][option]["default"] == OPTIONS[option].plain:
        return {}
    return {option: OPTIONS[option].plain}


def tables_of(option: str | None, table: JsonObject, seed: int) -> tuple[JsonObject, JsonObject]:
    """Return a property's table as the option needs it, and the further tables that the code reads."""
    if option is None:
        return table, {}
    if option == "page":
        return {entity: _paged(cell, f"{seed}/{entity}") for entity, cell in table.items()}, {}
    return table, OPTIONS[option].tables


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
