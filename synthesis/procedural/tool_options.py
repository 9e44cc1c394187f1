"""Optional parameters of generated tools: units, pages, precisions and masks.

An option is written into the document, and everything else follows from there: the call sets it where the default
does not give the plain value, the code obeys it, and the tables hold the data that the code needs for it.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final

from synthesis.procedural.hard_options import option_of, paged
from synthesis.procedural.tool_wording import UNSEEN, OptionKind
from synthesis.procedural.worlds import NUMERIC_KINDS, World
from synthesis.records import JsonObject, JsonValue, Language, ToolDocument


@dataclass(frozen=True)
class Option:
    """An optional parameter of a lookup."""

    kind: OptionKind
    plain: JsonValue
    """The setting at which a tool returns a property as it stands in the world."""
    defaults: Sequence[JsonValue]
    """Values that an omitted parameter may have."""
    annotation: str
    schema: JsonObject
    descriptions: Mapping[Language, str]
    code: str
    """Lines that turn the looked-up `value` into the value that the option asks for."""
    tables: JsonObject
    """Data that the code reads."""


_CODE: Final[Mapping[OptionKind, str]] = {
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
_WRITTEN: Final[Mapping[str, Any]] = tomllib.loads(
    files(__package__).joinpath("plain_options.toml").read_text(encoding="utf-8")
)


def _option(kind: OptionKind) -> Option:
    written = {name: value for name, value in _WRITTEN[kind].items() if name != "unseen_descriptions"}
    return Option(kind=kind, annotation=type(written["plain"]).__name__, code=_CODE[kind], **written)


OPTIONS: Final[Mapping[str, Option]] = {kind: _option(kind) for kind in _CODE}


def _reworded(option: Option) -> Option:
    """Return the option of held-out tools that does the same under another name."""
    # Code and tables call the parameter by its kind, so the one word is replaced in both.
    name = UNSEEN.options[option.kind]
    return replace(
        option,
        descriptions=_WRITTEN[option.kind]["unseen_descriptions"],
        code=option.code.replace(option.kind, name),
        tables={table.replace(option.kind, name): rows for table, rows in option.tables.items()},
    )


ALL_OPTIONS: Final[Mapping[str, Option]] = {
    **OPTIONS,
    **{UNSEEN.options[option.kind]: _reworded(option) for option in OPTIONS.values()},
}
"""The options of all tools, by the name that a document gives them."""
_LEAST_PAGED: Final = 100
"""Least number that is paged; a smaller one could be a page number in the code."""


def with_option(document: ToolDocument, world: World, rng: random.Random) -> ToolDocument:
    """Give a document an option that fits its tool; if none fits, the document stays as it is."""
    looked_up = next((key for key in world.values if document.name == world.lookup_name(*key)), None)
    fitting = _fitting(world, *looked_up) if looked_up else []
    properties = document.parameters["properties"]
    if not fitting or {world.wording.options[kind] for kind in fitting} & set(properties):
        return document
    name = world.wording.options[rng.choice(fitting)]
    option = ALL_OPTIONS[name]
    written = {"description": option.descriptions[world.language], "default": rng.choice(option.defaults)}
    parameters = {**document.parameters, "properties": {**properties, name: {**option.schema, **written}}}
    return document.model_copy(update={"parameters": parameters})


def signature_of(option: str, document: ToolDocument) -> str:
    """Return the parameter as a function declares it.

    >>> properties = {"page": {"type": "integer", "default": 1}}
    >>> signature_of("page", ToolDocument(name="get_rent", description="", parameters={"properties": properties}))
    'page: int = 1'
    """
    return f"{option}: {ALL_OPTIONS[option].annotation} = {document.parameters['properties'][option]['default']!r}"


def needed_arguments(document: ToolDocument) -> JsonObject:
    """Return the setting that a call needs to get the plain value: none where the default gives it."""
    option = option_of(document)
    if option is None or document.parameters["properties"][option]["default"] == ALL_OPTIONS[option].plain:
        return {}
    return {option: ALL_OPTIONS[option].plain}


def tables_of(option: str | None, table: JsonObject, seed: int) -> tuple[JsonObject, JsonObject]:
    """Return a property's table as the option needs it, and the further tables that the code reads."""
    if option is None:
        return table, {}
    if ALL_OPTIONS[option].kind == "page":
        return {entity: _paged(cell, f"{seed}/{entity}") for entity, cell in table.items()}, {}
    return table, ALL_OPTIONS[option].tables


def _fitting(world: World, entity_type: str, asked: str) -> list[OptionKind]:
    cells: list[Any] = [
        cell
        for row in world.values[entity_type, asked].values()
        for cell in (row.values() if isinstance(row, dict) else [row])
    ]
    kind = world.kind(entity_type, asked)
    if kind in NUMERIC_KINDS:
        # 0 is 0 in any unit: no other setting could be told from the right one.
        return ["unit", "page"] if min(cells) > _LEAST_PAGED else ["unit"] if all(cells) else []
    if kind == "date":
        return ["precision"]
    return ["masked"] if all(isinstance(cell, str) and len(cell) > 1 for cell in cells) else []


def _paged(cell: JsonValue, key: str) -> JsonValue:
    """Return the pages of a number: the number itself, then earlier and smaller ones; of each year where there are."""
    if isinstance(cell, dict):
        return {year: _paged(number, f"{key}/{year}") for year, number in cell.items()}
    return paged(cell, key)
