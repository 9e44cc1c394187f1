"""Calls for other rows of a tool's data, which tell a lookup from a constant.

A row is the value under a key, an object of a list, or a name in a list. Only rows are taken whose data differ from
those of the row that is asked for. A tool whose data do not hold an argument, such as one that computes, has none.

Decided: docs/decisions/environments.md, “A tool must answer differently for other rows, and a distractor must answer a
call”.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sandbox.client import ExecuteReply, ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.records import EnvironmentTool, JsonObject, JsonValue

ROWS_PER_ARGUMENT: Final = 3


def calls_for_other_rows(tool: EnvironmentTool, arguments: JsonObject) -> dict[str, list[JsonObject]]:
    """Return by required argument the arguments of calls for other rows, all others as they are.

    An argument that the data do not hold is left out; one whose row has no other beside it has an empty list.

    >>> from synthesis.records import ToolDocument
    >>> document = ToolDocument(name="rent", description="", parameters={"required": ["flat"]})
    >>> tool = EnvironmentTool(document=document, source="", tables={"rents": {"A": 900, "B": 850, "C": 900}})
    >>> calls_for_other_rows(tool, {"flat": "A"}), calls_for_other_rows(tool, {"flat": "Z"})
    ({'flat': [{'flat': 'B'}]}, {})
    """
    found: dict[str, list[JsonObject]] = {}
    for name in tool.document.required:
        rows = [rows for table in tool.tables.values() for rows in _others(table, arguments.get(name))]
        if rows:
            keys = list(dict.fromkeys(key for others in rows for key in others))
            found[name] = [{**arguments, name: key} for key in keys[:ROWS_PER_ARGUMENT]]
    return found


def _others(node: JsonValue, value: JsonValue) -> Iterator[list[JsonValue]]:
    """Yield, for each place where a value names a row, the values that name rows of other data there."""
    if isinstance(node, dict):
        for key, row in node.items():
            if same_answer(key, value):
                yield [other for other, data in node.items() if not same_answer(data, row)]
        for inner in node.values():
            yield from _others(inner, value)
    elif isinstance(node, list) and value is not None:
        if any(same_answer(name, value) for name in node):  # names alone: their data lie elsewhere
            yield [name for name in node if type(name) is type(value) and not same_answer(name, value)]
        rows = [row for row in node if isinstance(row, dict)]
        for field in dict.fromkeys(field for row in rows for field in row if same_answer(row[field], value)):
            yield [row[field] for row in rows if field in row and not same_answer(row[field], value)]
        for row in rows:
            yield from _others(row, value)


def is_constant(calls: Sequence[ExecuteRequest], replies: Sequence[ExecuteReply]) -> bool:
    """Say whether no other call has another reply than the first one, arguments that a reply repeats left out."""
    first, *others = (
        _without(reply.value, call.arguments.values()) for call, reply in zip(calls, replies, strict=True) if reply.ok
    )
    return all(same_answer(first, other) for other in others)


def _without(value: JsonValue, arguments: Iterable[JsonValue]) -> JsonValue:
    if isinstance(value, dict):
        return {key: _without(inner, arguments) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without(inner, arguments) for inner in value]
    return None if any(same_answer(argument, value) for argument in arguments) else value
