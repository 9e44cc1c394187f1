"""Shapes of hard worlds' tools: the way their code finds a value, and the record in which it replies.

    lookup    by name, in an object or a list, or through an index of ids
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from synthesis.procedural.hard_options import CODE
from synthesis.records import JsonObject, JsonValue, ToolDocument, canonical_json

Family = Literal["lookup", "search", "filter", "total", "latest", "compute"]
Storage = Literal["keyed", "listed", "indexed"]
Reply = Literal["value", "flat", "nested", "list", "page"]
Miss = Literal["raise", "error", "body", "empty"]

_VALUE_SHARE: Final = 0.2
"""Share of the lookups and computations that reply with the bare value."""
_AROUND: Final = {
    "nested": ("data", "result", "record", "entry"),
    "page": ("items", "results", "entries", "records"),
}
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "relation": ("name", "assigned", "linked_to"), "date": ("date", "on", "day"), "code": ("code", "number", "key"),
    "phone": ("phone", "number", "line"),
}  # fmt: skip
"""Names of the field with the answer by kind, beside the words of the tool's own name; a number's are below."""
_NUMBER_FIELDS: Final = ("value", "amount", "figure")
_FURTHER: Final[Mapping[str, tuple[str, ...]]] = {
    "relation": ("previous", "since", "contact"), "date": ("previous", "confirmed"), "code": ("previous", "issued_at"),
    "phone": ("previous", "extension"),
}  # fmt: skip
_NUMBER_FURTHER: Final = ("previous", "average", "unit")
_COMMON: Final = ("id", "updated_at", "status")
_PARTS: Final = 3
_TWIN: Final = {"en": " Annex", "zh": "分部"}


@dataclass(frozen=True)
class Shape:
    """The code and the reply of one tool."""

    family: Family
    storage: Storage
    is_reversed: bool
    """Whether a search lists its candidates from the last name to the first."""
    reply: Reply
    around: str
    """Name of the field that holds the record, or the list of records."""
    miss: Miss
    """Reply where nothing is found: an exception, an error in words or as an object, or an empty list."""
    is_copied: bool
    """Whether a record is a copy of the row, and not built field by field."""
    field: str
    """Name of the field with the answer."""
    fields: tuple[str, ...]
    """Names of a record's fields in order, that one among them."""
    entity: str
    year: str | None
    option: str | None
    is_number: bool

    @property
    def path(self) -> tuple[str | int, ...]:
        """Keys and list indices that lead from a reply to the answer."""
        # A search finds the name and its twin, which stands behind it in the order of names.
        index = int(self.is_reversed) if self.family == "search" else 0
        match self.reply:
            case "value":
                return ()
            case "flat":
                return (self.field,)
            case "nested":
                return (self.around, self.field)
            case "list":
                return (index, self.field)
        return (self.around, index, self.field)


def shape_of(seed: int, document: ToolDocument, kind: str, unit: str) -> Shape:
    """Draw the shape of a tool; its required parameters are the entity and, for a yearly value, the year."""
    rng = random.Random(f"shape/{seed}/{document.name}")
    entity, year = (*document.required, None)[:2]
    assert entity is not None
    option = next((name for name in document.parameters["properties"] if name not in document.required), None)
    is_number, paged = kind not in _FIELDS, option == "page"
    families: list[Family] = ["lookup", "lookup", "filter"]
    families += ["search"] if year is None else []
    families += ["latest"] if year is None and not paged else []
    families += ["total"] if is_number and not paged else []
    families += ["compute"] if is_number and not paged and year is None else []
    family = rng.choice(families)
    replies: list[Reply] = ["list", "page"] if family in ("search", "filter") else ["flat", "nested", "nested", "page"]
    reply: Reply = rng.choice(replies)
    if family not in ("search", "filter") and rng.random() < _VALUE_SHARE:
        reply = "value"
    storages: list[Storage] = ["keyed", "listed", "indexed"]
    misses: Mapping[Reply, Sequence[Miss]] = {
        "value": ("raise",),
        "list": ("empty", "raise"),
        "page": ("empty", "body", "raise"),
    }
    known = _NUMBER_FURTHER[: 3 if unit else 2] if is_number else _FURTHER[kind]
    names = [*known, *_COMMON]
    further = tuple(name for name in rng.sample(names, rng.randint(2, 4)) if name not in document.required)
    stem = document.name.partition("_")[2]
    fields = [stem, stem, *(_NUMBER_FIELDS if is_number else _FIELDS[kind])]
    taken = {*document.required, *further, "base", "extra", "rebate", "page", "pages", "since"}
    field = rng.choice([name for name in fields if name not in taken] or ["value"])
    return Shape(
        family=family,
        storage=rng.choice(storages if family == "lookup" else storages[:1] if family == "compute" else storages[1:2]),
        is_reversed=rng.random() < 0.5,
        reply=reply,
        around=rng.choice(_AROUND["page" if reply == "page" else "nested"]),
        miss=rng.choice(misses.get(reply, ("raise", "error", "body"))),
        is_copied=rng.random() < 0.5,
        field=field,
        fields=tuple(rng.sample([*further, field], len(further) + 1)),
        entity=entity,
        year=year,
        option=option,
        is_number=is_number,
    )


def source_of(shape: Shape, document: ToolDocument, table: str) -> str:
    """Write the code of a tool that reads `TABLES[table]`; it names types and properties but no entity."""
    parameters = [f"{name}: str" for name in document.required]
    if shape.option:
        default = document.parameters["properties"][shape.option]["default"]
        parameters.append(f"{shape.option}: {type(default).__name__} = {default!r}")
    twins = f' + TABLES["{table}_twins"]' if shape.family == "search" else ""
    body = [f'rows = TABLES["{table}"]{twins}', *_finding(shape, table)]
    changed = CODE[shape.option] if shape.option else ()
    if shape.family in ("search", "filter"):
        each = [f'value = row["{shape.field}"]', *changed, f"listed.append({_record(shape)})"]
        body += ["listed = []", "for row in found:", *_indented(each)]
    else:
        body += [*_valued(shape), *changed]
    body += _replying(shape)
    returns = {"value": "float" if shape.is_number else "str", "list": "list"}.get(shape.reply, "dict")
    lines = [f'"""{document.description}."""', *body]
    return "\n".join([f"def {document.name}({', '.join(parameters)}) -> {returns}:", *_indented(lines), ""])


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _miss(shape: Shape, name: str) -> str:
    match shape.miss:
        case "error":
            return f'return {{"error": f"nothing known of {{{name}}}"}}'
        case "body":
            return f'return {{"error": {{"code": "not_found", "message": f"no entry for {{{name}}}"}}}}'
        case "empty" if shape.reply == "list":
            return "return []"
        case "empty":
            return f'return {{"{shape.around}": [], "total": 0, "next_cursor": None}}'
    return f'raise ValueError(f"unknown {name}: {{{name}}}")'


def _finding(shape: Shape, table: str) -> list[str]:
    """Return the lines that bind `row` to the row asked for, or `found` to the rows."""
    entity, miss = shape.entity, _miss(shape, shape.entity)
    is_asked = f'each["{entity}"] == {entity}' + (f' and each["{shape.year}"] == {shape.year}' if shape.year else "")
    match shape.family, shape.storage:
        case "search", _:
            order = ", reverse=True" if shape.is_reversed else ""
            return [
                f"text = {entity}.casefold()",
                f'found = [each for each in rows if text and each["{entity}"].casefold().startswith(text)]',
                f'found = sorted(found, key=lambda each: each["{entity}"]{order})[:5]',
                *([] if shape.miss == "empty" else ["if not found:", f"    {miss}"]),
            ]
        case "filter" | "total" | "latest", _:
            return [f"found = [each for each in rows if {is_asked}]", "if not found:", f"    {miss}"]
        case _, "listed":
            return [f"row = next((each for each in rows if {is_asked}), None)", "if row is None:", f"    {miss}"]
        case _, "indexed":
            key = f'TABLES["{table}_ids"].get({entity})'
            return [f"key = {key}", "if key is None:", f"    {miss}", "row = rows[key]"]
    return [f"if {entity} not in rows:", f"    {miss}", f"row = rows[{entity}]"]


def _valued(shape: Shape) -> list[str]:
    """Return the lines that bind `value`."""
    field = shape.field
    match shape.family:
        case "total":
            return [f'value = round(sum(each["{field}"] for each in found), 2)']
        case "latest":
            return ['row = max(found, key=lambda each: each["since"])', f'value = row["{field}"]']
        case "compute":
            return ['value = round(row["base"] + row["extra"] - row["rebate"], 2)']
    if shape.year and shape.storage != "listed":
        miss = [f'if {shape.year} not in row["{field}"]:', f"    {_miss(shape, shape.year)}"]
        return [*miss, f'value = row["{field}"][{shape.year}]']
    return [f'value = row["{field}"]']


def _record(shape: Shape) -> str:
    """Return the expression for a record."""
    named = f'"{shape.entity}": {shape.entity}, '
    if shape.year:
        named += f'"{shape.year}": {shape.year}, '
    if shape.family in ("search", "filter"):
        named = f'"{shape.entity}": row["{shape.entity}"], '
    following = "page + 1 if page < len(pages) else None"
    page = f'"page": page, "pages": len(pages), "next_page": {following}, ' if shape.option == "page" else ""
    answer = f'"{shape.field}": value'
    if shape.family == "total":
        others = f'"parts": len(found), "largest_part": max(each["{shape.field}"] for each in found)'
        return f"{{{named}{answer}, {others}}}" if shape.is_copied else f"{{{named}{others}, {answer}}}"
    if shape.is_copied:  # the answer stays in its place in the row
        return f"{{{'' if shape.storage == 'listed' else named}**row, {page}{answer}}}"
    fields = ", ".join(answer if name == shape.field else f'"{name}": row["{name}"]' for name in shape.fields)
    return f"{{{named}{page}{fields}}}"


def _replying(shape: Shape) -> list[str]:
    is_list = shape.family in ("search", "filter")
    listed = "listed" if is_list else f"[{_record(shape)}]"
    match shape.reply:
        case "value":
            return ["return value"]
        case "flat":
            return [f"return {_record(shape)}"]
        case "nested":
            return [f"record = {_record(shape)}", f'return {{"status": "ok", "{shape.around}": record}}']
        case "list":
            return [f"return {listed}"]
    total = "len(listed)" if is_list else "1"
    return [f'return {{"{shape.around}": {listed}, "total": {total}, "next_cursor": None}}']


Stranger = Callable[[random.Random, str], JsonValue]
"""Function that draws a value of a kind (`relation`, `date`, `code`, `phone`, or else the tool's number) that is no
answer in the world."""


def tables_of(
    shape: Shape, table: str, cells: Mapping[str, JsonValue], kind: str, unit: str, stranger: Stranger, *, seed: str
) -> JsonObject:
    """Return the data of a tool: for each entity its cell, an object by year for a yearly value, as the code reads it.

    `seed` names the world and the tool: an entity has the same row in every table of the tool.
    """
    ids: JsonObject = {}
    keyed: JsonObject = {}
    listed: list[JsonObject] = []
    twins: list[JsonObject] = []
    for name, cell in sorted(cells.items()):
        rng = random.Random(f"row/{seed}/{name}")
        further = {field: _further(rng, field, kind, unit, stranger) for field in shape.fields if field != shape.field}
        ids[name] = further.get("id") or _identifier(rng)
        if shape.family == "compute":
            extra, rebate = (_part(cell, rng.uniform(0.1, 0.3)) for _ in range(2))
            base = round(cell - extra + rebate, 2) if isinstance(cell, float) else cell - extra + rebate
            keyed[name] = {**further, "base": base, "extra": extra, "rebate": rebate}
            continue
        keyed[ids[name] if shape.storage == "indexed" else name] = {**further, shape.field: cell}
        for year, value in cell.items() if shape.year else [("", cell)]:
            row = {shape.entity: name, **({shape.year: year} if shape.year else {}), **further}
            listed += [{**row, **rest} for rest in _entries(shape, rng, value, kind, stranger)]
        if shape.family == "search":
            twin = name + _TWIN["en" if name.isascii() else "zh"]
            other = {
                field: _further(rng, field, kind, unit, stranger) for field in shape.fields if field != shape.field
            }
            value = [stranger(rng, kind) for _ in cell] if isinstance(cell, list) else stranger(rng, kind)
            twins.append({shape.entity: twin, **other, shape.field: value})
    if shape.storage == "listed":
        rows = {table: sorted(listed, key=canonical_json)}
        return {**rows, f"{table}_twins": sorted(twins, key=canonical_json)} if shape.family == "search" else rows
    return {table: keyed, f"{table}_ids": ids} if shape.storage == "indexed" else {table: keyed}


def _entries(shape: Shape, rng: random.Random, value: JsonValue, kind: str, stranger: Stranger) -> list[JsonObject]:
    """Return the entries of a cell in a list: the value, its parts, or itself behind older ones."""
    if shape.family == "total":
        parts = [_part(value, rng.uniform(0.15, 0.4)) for _ in range(_PARTS - 1)]
        rest = value - sum(parts)
        parts.append(round(rest, 2) if isinstance(value, float) else rest)
        return [{"part": number, shape.field: part} for number, part in enumerate(parts, 1)]
    if shape.family == "latest":
        dates = sorted(_date(rng) for _ in range(_PARTS))
        while len(set(dates)) < _PARTS:
            dates = sorted(_date(rng) for _ in range(_PARTS))
        older = [{"since": date, shape.field: stranger(rng, kind)} for date in dates[:-1]]
        return [*older, {"since": dates[-1], shape.field: value}]
    return [{shape.field: value}]


def _part(value: float, share: float) -> float:
    return round(value * share, 2) if isinstance(value, float) else int(value * share)


def _further(rng: random.Random, field: str, kind: str, unit: str, stranger: Stranger) -> JsonValue:
    match field:
        case "id":
            return _identifier(rng)
        case "updated_at":
            return f"2026-{_date(rng).partition('-')[2]}"
        case "since" | "issued_at":
            return _date(rng)
        case "status":
            return rng.choice(["active", "pending", "archived"])
        case "confirmed":
            return rng.random() < 0.5
        case "unit":
            return unit
        case "extension" | "contact":
            return stranger(rng, "phone")
    return stranger(rng, kind)


def _identifier(rng: random.Random) -> str:
    return f"{''.join(rng.choices('BCDFGHKLMNPRTVWX', k=3))}-{rng.randrange(10_000, 100_000)}"


def _date(rng: random.Random) -> str:
    return f"{rng.randrange(2010, 2020)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}T08:00"
