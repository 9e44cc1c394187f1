"""Worlds of given knowledge: generated for a domain that is known, or read from tables.

A table is a type of entity. Its first column of distinct texts names the entities; a column whose every value names an
entity of another table is a relation to it; every other column without gaps is an attribute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from synthesis.procedural.tool_wording import KNOWN, UNSEEN
from synthesis.procedural.worlds import AttributeKind, EntityType, World, domains, world_of
from synthesis.questions.knowledge import Knowledge, Unseen
from synthesis.records import JsonValue, Language
from synthesis.teacher.protocol import BadReply

MIN_ROWS: Final = 5  # a tool's table has the row that is asked for and four others
_ID: Final = re.compile(r"(?:^|[ _])id$", re.IGNORECASE)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")

_CAN_READ: Final = "the embedded teacher can read tables (.csv, .sqlite, .parquet) and the domains that it knows"

Rows: TypeAlias = list[dict[str, Any]]


def world_about(knowledge: Knowledge) -> World:
    """Return the world that knowledge tells of. Worlds are cached, so each question about it finds the same one.

    Raises:
        BadReply: the knowledge is prose, an unknown domain, tables without a world, or hard and no domain.
    """
    if knowledge.difficulty != "plain" and knowledge.kind != "domain":
        raise BadReply(
            "the embedded teacher has other wordings for the domains that it knows alone; set difficulty to plain, or "
            "give a [teacher]"
        )
    if knowledge.kind == "tables":
        return world_of_tables(knowledge.text, knowledge.domain, knowledge.language, knowledge.unseen)
    if knowledge.kind != "domain":
        found = f"a {knowledge.kind} about {knowledge.domain!r}"
        raise BadReply(f"{_CAN_READ}, found {found}; a language model reads it: give the config a [teacher]")
    if knowledge.domain not in domains():
        raise BadReply(f"{_CAN_READ} ({', '.join(sorted(domains()))}), found the domain {knowledge.domain!r}")
    return world_of(
        knowledge.domain,
        knowledge.language,
        knowledge.seed,
        knowledge.name_parts,
        knowledge.unseen,
        knowledge.difficulty,
    )


@lru_cache(maxsize=16)
def world_of_tables(text: str, domain: str, language: Language, unseen: Unseen = "worlds") -> World:
    """Read a world from tables as JSON: table name to rows.

    >>> rows = [{"name": f"Flat {n}", "rent": 900 + n} for n in range(5)]
    >>> world = world_of_tables(json.dumps({"flat": rows}), "homes", "en")
    >>> world.fact("flat", "Flat 3", "rent").value
    903

    Raises:
        BadReply: no table has five rows, a column of names and another column.
    """
    tables = {name: rows for name, rows in json.loads(text).items() if len(rows) >= MIN_ROWS and _key(rows)}
    keys = {name: str(_key(rows)) for name, rows in tables.items()}
    named = {name: {row[keys[name]] for row in rows} for name, rows in tables.items()}
    identifiers = {name: _identifier(name, index, "table") for index, name in enumerate(tables)}
    types: dict[str, EntityType] = {}
    values: dict[tuple[str, str], Mapping[str, JsonValue]] = {}
    for name, rows in tables.items():
        entity_type = identifiers[name]
        relations: list[str] = []
        attributes: dict[str, tuple[str, AttributeKind]] = {}
        for index, column in enumerate(rows[0]):
            by_entity = {row[keys[name]]: row.get(column) for row in rows}
            if column == keys[name] or not all(isinstance(cell, str | int | float) for cell in by_entity.values()):
                continue
            # A second column that leads to the same table is an attribute: a relation is named by its target alone.
            target = next((t for t in tables if t != name and set(by_entity.values()) <= named[t]), None)
            if target is not None and identifiers[target] not in relations:
                relations.append(identifiers[target])
                values[entity_type, identifiers[target]] = by_entity
            else:
                attribute = _identifier(column, index, "column")
                attributes[attribute] = (column, _kind(column, list(by_entity.values())))
                values[entity_type, attribute] = by_entity
        if attributes:  # every walk ends in an attribute
            types[entity_type] = EntityType(zh=name, relations=tuple(relations), attributes=attributes)
    # A relation to a table that is no type of the world is left out.
    for name, fields in types.items():
        relations = [target for target in fields.relations if target in types]
        types[name] = fields.model_copy(update={"relations": tuple(relations)})
    asked = {name: {*fields.relations, *fields.attributes} for name, fields in types.items()}
    values = {key: rows for key, rows in values.items() if key[1] in asked.get(key[0], ())}
    if not types:
        found = ", ".join(f"{name} ({len(rows)} rows)" for name, rows in json.loads(text).items())
        raise BadReply(
            f"the embedded teacher can read a table of at least {MIN_ROWS} rows with a column of distinct texts, which "
            f"names them, and a further column without gaps; of {domain!r} found none such in {found}"
        )
    entities = {identifiers[name]: tuple(sorted(named[name])) for name in tables if identifiers[name] in types}
    return World(domain, language, types, entities, values, KNOWN if unseen == "worlds" else UNSEEN)


def _key(rows: Rows) -> str | None:
    for column in rows[0]:
        cells = [row.get(column) for row in rows]
        if all(isinstance(cell, str) and cell.strip() for cell in cells) and len(set(cells)) == len(cells):
            return column
    return None


def _kind(column: str, cells: list[JsonValue]) -> AttributeKind:
    """Return the kind of a column's values; the numbers of an `id` are names, so no sum of them is asked for.

    >>> _kind("floor_area", [40, 62.5]), _kind("Agent ID", [7, 8]), _kind("since", ["2024-05-01"])
    ('decimal', 'code', 'date')
    """
    if _ID.search(column):
        return "code"
    if all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells):
        return "decimal"
    if all(isinstance(cell, str) and _DATE.fullmatch(cell) for cell in cells):
        return "date"
    return "code"


def _identifier(name: str, index: int, what: str) -> str:
    """Return a name for tools and parameters: the table's own where it can be one."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:24] if name.isascii() else ""
    return plain if plain.isidentifier() else f"{what}_{index + 1}"
