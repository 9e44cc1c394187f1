"""Shapes of hard worlds' tools: the way their code finds a value, and the record in which it replies.

    lookup    by name, in an object or in a list
    search    the entities whose names begin with a text, as candidates
    filter    the list of rows that meet all criteria
    total     the sum of the parts of a value
    latest    the newest of several entries
    compute   a value from its base, an extra and a rebate

A shape depends on the world's seed, the tool's document and the kind of its values alone. So tools of one property have
one code and can be merged, and a sibling cannot be told from an own tool.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from synthesis.procedural.hard_options import code_of, option_of
from synthesis.procedural.written_words import written_words
from synthesis.records import JsonObject, JsonValue, ToolDocument, canonical_json

Family = Literal["lookup", "search", "filter", "total", "latest", "compute"]
Reply = Literal["value", "flat", "nested", "list", "page"]
Miss = Literal["raise", "error", "empty"]
Stranger = Callable[[random.Random, str], JsonValue]
"""Function that draws a value of a kind (`relation`, `date`, `phone`, or else the tool's own) that is no answer."""

_VALUE_SHARE: Final = 0.2
"""Share of the lookups and computations that reply with the bare value."""
_NAMES: Final[Mapping[str, Any]] = written_words("tool_fields")


@dataclass(frozen=True)
class Shape:
    """The code and the reply of one tool."""

    family: Family
    is_listed: bool
    """Whether the rows are a list, and not an object by name."""
    is_reversed: bool
    """Whether a search lists its candidates from the last name to the first."""
    reply: Reply
    around: str
    """Name of the field that holds the record, or the list of records."""
    miss: Miss
    """Reply where nothing is found: an exception, an object with `error`, or an empty list."""
    is_copied: bool
    """Whether a record is a copy of the row, and not built field by field."""
    field: str
    """Name of the field with the answer."""
    fields: tuple[str, ...]
    """Names of a record's fields in order, that one among them."""
    entity: str
    year: str | None
    option: str | None

    @property
    def path(self) -> tuple[str | int, ...]:
        """Keys and list indices that lead from a reply to the answer."""
        # A search finds the name and its twin, which stands behind it in the order of names.
        index = int(self.is_reversed) if self.family == "search" else 0
        around: dict[str, tuple[str | int, ...]]
        around = {"nested": (self.around,), "list": (index,), "page": (self.around, index)}
        return () if self.reply == "value" else (*around.get(self.reply, ()), self.field)


def shape_of(seed: int, document: ToolDocument, kind: str, unit: str) -> Shape:
    """Draw the shape of a tool; its required parameters are the entity and, for a yearly value, the year."""
    rng = random.Random(f"shape/{seed}/{document.name}")
    entity, year = document.required[0], document.required[1] if len(document.required) > 1 else None
    option = option_of(document)
    named = kind if kind in _NAMES["answer"] else "number"
    families: list[Family] = ["lookup", "lookup", "filter", *(["search"] if year is None else [])]  # type: ignore[list-item]
    if option != "page":
        families += ["latest"] if year is None else []
    if option is None and named == "number":  # an option would change the value, and not its parts beside it
        families += ["total", "compute"] if year is None else ["total"]
    family = rng.choice(families)
    replies: list[Reply] = ["list", "page"] if family in ("search", "filter") else ["flat", "nested", "nested", "page"]
    reply: Reply = rng.choice(replies)
    if family not in ("search", "filter") and rng.random() < _VALUE_SHARE:
        reply = "value"
    names = [
        name
        for name in (*_NAMES["further"][named], *_NAMES["common"])
        if name != "unit" or (unit and option in (None, "page"))
    ]
    further = [name for name in rng.sample(names, rng.randint(2, 4)) if name not in document.required]
    stem = document.name.partition("_")[2]
    taken = {*document.required, *further, "base", "extra", "rebate", "page", "pages", "since"}
    field = rng.choice([name for name in (stem, stem, *_NAMES["answer"][named]) if name not in taken] or ["value"])
    misses: list[Miss] = ["raise"] if reply in ("value", "list") else ["raise", "error"]
    return Shape(
        family=family,
        is_listed=family != "compute" and (family != "lookup" or rng.random() < 0.5),
        is_reversed=rng.random() < 0.5,
        reply=reply,
        around=rng.choice(_NAMES["around"]["page" if reply == "page" else "nested"]),
        miss=rng.choice(misses) if reply not in ("list", "page") or rng.random() < 0.5 else "empty",
        is_copied=rng.random() < 0.5,
        field=field,
        fields=tuple(rng.sample([*further, field], len(further) + 1)),
        entity=entity,
        year=year,
        option=option,
    )


def source_of(shape: Shape, document: ToolDocument, table: str) -> str:
    """Write the code of a tool that reads `TABLES[table]`; it names types and properties but no entity."""
    parameters = [f"{name}: str" for name in document.required]
    if shape.option:
        default = document.parameters["properties"][shape.option]["default"]
        parameters.append(f"{shape.option}: {type(default).__name__} = {default!r}")
    twins = f' + TABLES["{table}_twins"]' if shape.family == "search" else ""
    body = [f'"""{document.description}."""', f'rows = TABLES["{table}"]{twins}', *_finding(shape)]
    changed = code_of(shape.option)
    is_list = shape.family in ("search", "filter")
    if is_list:
        each = [f'value = row["{shape.field}"]', *changed, f"listed.append({_record(shape)})"]
        body += ["listed = []", "for row in found:", *_indented(each)]
    else:
        body += [*_valued(shape), *changed]
    listed, total = ("listed", "len(listed)") if is_list else (f"[{_record(shape)}]", "1")
    reply = {
        "value": "value",
        "flat": _record(shape),
        "nested": f'{{"status": "ok", "{shape.around}": {_record(shape)}}}',
        "list": listed,
        "page": f'{{"{shape.around}": {listed}, "total": {total}, "next_cursor": None}}',
    }[shape.reply]
    body.append(f"return {reply}")
    return "\n".join([f"def {document.name}({', '.join(parameters)}):", *_indented(body), ""])


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _missing(shape: Shape, condition: str, name: str) -> list[str]:
    reply = {
        "raise": f'raise ValueError(f"unknown {name}: {{{name}}}")',
        "error": f'return {{"error": {{"code": "not_found", "message": f"no entry for {{{name}}}"}}}}',
        "empty": "return []" if shape.reply == "list" else f'return {{"{shape.around}": [], "total": 0}}',
    }[shape.miss]
    return [f"if {condition}:", f"    {reply}"]


def _finding(shape: Shape) -> list[str]:
    """Return the lines that bind `row` to the row asked for, or `found` to the rows."""
    entity = shape.entity
    is_asked = f'each["{entity}"] == {entity}' + (f' and each["{shape.year}"] == {shape.year}' if shape.year else "")
    if shape.family == "search":
        order = ", reverse=True" if shape.is_reversed else ""
        return [
            f"text = {entity}.casefold()",
            f'found = [each for each in rows if text and each["{entity}"].casefold().startswith(text)]',
            f'found = sorted(found, key=lambda each: each["{entity}"]{order})[:5]',
            *_missing(shape, "not found", entity),
        ]
    if shape.family in ("filter", "total", "latest"):
        return [f"found = [each for each in rows if {is_asked}]", *_missing(shape, "not found", entity)]
    if shape.is_listed:
        return [f"row = next((each for each in rows if {is_asked}), None)", *_missing(shape, "row is None", entity)]
    return [*_missing(shape, f"{entity} not in rows", entity), f"row = rows[{entity}]"]


def _valued(shape: Shape) -> list[str]:
    match shape.family:
        case "total":
            return [f'value = round(sum(each["{shape.field}"] for each in found), 2)']
        case "latest":
            return ['row = max(found, key=lambda each: each["since"])', f'value = row["{shape.field}"]']
        case "compute":
            return ['value = round(row["base"] + row["extra"] - row["rebate"], 2)']
    if shape.year and not shape.is_listed:
        missing = _missing(shape, f'{shape.year} not in row["{shape.field}"]', shape.year)
        return [*missing, f'value = row["{shape.field}"][{shape.year}]']
    return [f'value = row["{shape.field}"]']


def _record(shape: Shape) -> str:
    """Return the expression for a record."""
    row = f'row["{shape.entity}"]' if shape.family in ("search", "filter") else shape.entity
    named = f'"{shape.entity}": {row}, ' + (f'"{shape.year}": {shape.year}, ' if shape.year else "")
    if shape.option == "page":
        named += '"page": page, "pages": len(pages), "next_page": page + 1 if page < len(pages) else None, '
    answer = f'"{shape.field}": value'
    if shape.family == "total":
        return f'{{{named}"parts": len(found), {answer}, "largest": max(each["{shape.field}"] for each in found)}}'
    if shape.is_copied:  # the answer stays in its place in the row
        return f"{{{named}**row, {answer}}}"
    fields = ", ".join(answer if name == shape.field else f'"{name}": row["{name}"]' for name in shape.fields)
    return f"{{{named}{fields}}}"


def shaped_tables(
    shape: Shape, table: str, cells: Mapping[str, JsonValue], kind: str, unit: str, stranger: Stranger, *, seed: str
) -> JsonObject:
    """Return the data of a tool: for each entity its cell, an object by year for a yearly value, as the code reads it.

    `seed` names the world and the tool: an entity has the same row in every table of the tool.
    """
    keyed: JsonObject = {}
    listed: list[JsonObject] = []
    twins: list[JsonObject] = []
    for name, cell in sorted(cells.items()):
        rng = random.Random(f"row/{seed}/{name}")
        further, other = (
            {each: _further(rng, each, kind, unit, stranger) for each in shape.fields if each != shape.field}
            for _ in range(2)
        )
        if shape.family == "compute":
            extra, rebate = _part(cell, rng.uniform(0.1, 0.3)), _part(cell, rng.uniform(0.1, 0.3))
            keyed[name] = {**further, "base": _part(cell - extra + rebate), "extra": extra, "rebate": rebate}
        else:
            keyed[name] = {**further, shape.field: cell}
        for year, value in cell.items() if shape.year else [(None, cell)]:
            row = {shape.entity: name, **({shape.year: year} if shape.year else {}), **further}
            listed += [{**row, **rest} for rest in _entries(shape, rng, value, kind, stranger)]
        if shape.family == "search":
            value = [stranger(rng, kind) for _ in cell] if isinstance(cell, list) else stranger(rng, kind)
            twin = name + _NAMES["twin"]["en" if name.isascii() else "zh"]
            twins.append({shape.entity: twin, **other, shape.field: value})
    rows = {table: sorted(listed, key=canonical_json) if shape.is_listed else keyed}
    return {**rows, f"{table}_twins": sorted(twins, key=canonical_json)} if twins else rows


def _entries(shape: Shape, rng: random.Random, value: JsonValue, kind: str, stranger: Stranger) -> list[JsonObject]:
    """Return the entries of a cell in a list: the value, its parts, or itself behind older ones."""
    if shape.family == "total":
        one, two = _part(value, rng.uniform(0.15, 0.4)), _part(value, rng.uniform(0.15, 0.4))
        parts = (one, two, _part(value - one - two))
        return [{"part": number, shape.field: part} for number, part in enumerate(parts, 1)]
    if shape.family == "latest":
        return [
            {"since": f"{year}{_date(rng)[4:]}", shape.field: value if year == 2022 else stranger(rng, kind)}
            for year in (2016, 2019, 2022)
        ]
    return [{shape.field: value}]


def _part(value: float, share: float = 1) -> float:
    return round(value * share, 2) if isinstance(value, float) else int(value * share)


def _further(rng: random.Random, field: str, kind: str, unit: str, stranger: Stranger) -> JsonValue:
    match field:
        case "id":
            return f"{''.join(rng.choices('BCDFGHKLMNPRTVWX', k=3))}-{rng.randrange(10_000, 100_000)}"
        case "since" | "issued_at" | "updated_at":
            return _date(rng)
        case "status":
            return rng.choice(_NAMES["states"])
        case "confirmed":
            return rng.random() < 0.5
        case "unit":
            return unit
        case "extension" | "contact":
            return stranger(rng, "phone")
    return stranger(rng, kind)


def _date(rng: random.Random) -> str:
    return f"{rng.randrange(2010, 2020)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}T08:00"
