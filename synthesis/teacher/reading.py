"""Typed replies from a model's text: read leniently, validated strictly, each mending counted.

If a value does not satisfy its type, only its form is changed: keys too many are left out, `null` gives way to the
default of a field, JSON in a text is read, a wrapper is taken off. No score is put on another scale: "8/10" and "80 %"
name theirs, 8 does not.
"""

from __future__ import annotations

import copy
import re
import sys
from collections import Counter
from functools import lru_cache
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from synthesis.records import JsonValue
from synthesis.teacher.lenient_json import json_values

Typed = TypeVar("Typed", bound=BaseModel)

_MAX_CHANGES: Final = 20
_MAX_NESTING: Final = 100
"""Maximum number of levels of lists and objects in a reply; the sandbox takes as many, and pydantic's parser 200."""
_LARGEST: Final = sys.float_info.max
_LIST_TYPES: Final = frozenset({"list_type", "tuple_type", "set_type", "frozen_set_type"})
_OBJECT_TYPES: Final = frozenset({"dict_type", "model_type", "model_attributes_type", "mapping_type"})
_FRACTION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:/\s*(\d+(?:\.\d+)?)|(%))\s*")


class Unreadable(ValueError):
    """A text is no reply of its type, and the reason; the error never leaves the teacher."""


def read_reply(text: str, reply_type: type[Typed]) -> tuple[Typed, Counter[str]]:
    """Return the reply in a text, and the mendings by name.

    Raises:
        Unreadable: it holds none; the message has the fault of its likeliest part.
    """
    problem = ""
    for found in json_values(text):
        try:
            reply, mended = _fitted(found.value, reply_type)
            require_keepable(reply)
        except RecursionError:
            problem = problem or "reply: nested too deep"
        except ValueError as error:
            problem = problem or (_problem(error) if isinstance(error, ValidationError) else str(error))
        else:
            return reply, mended + Counter(found.mended)
    raise Unreadable(problem[:300] or "not JSON: expected one JSON object, found none that is whole")


def require_keepable(reply: BaseModel) -> None:
    """Require that a reply can be kept as JSON, read back from it, and handed to the sandbox.

    Raises:
        ValueError: it has half of a character, nests too deep, or a number in it is larger than a double holds.
    """
    reply.model_dump_json()  # half of a character, such as "\\ud800", can be kept nowhere
    nesting, level = 0, [reply.model_dump()]  # in JSON, an infinity may have become `null` already
    while level:
        # Readers other than Python's take such an integer for an infinity.
        if any(isinstance(value, int | float) and not abs(value) <= _LARGEST for value in level):
            raise Unreadable("reply: a number in it is larger than a double holds (1.8e308)")
        holders = [value for value in level if isinstance(value, dict | list | tuple)]
        nesting += bool(holders)
        if nesting > _MAX_NESTING:
            raise Unreadable(f"reply: more than {_MAX_NESTING} lists and objects within each other")
        level = [inner for each in holders for inner in (each.values() if isinstance(each, dict) else each)]


def _fitted(value: JsonValue, reply_type: type[Typed]) -> tuple[Typed, Counter[str]]:
    """Validate a value, without a wrapper and in another form if its type takes it so; else raise its first fault."""
    first: ValidationError | None = None
    for shape, kind in _shapes(value, reply_type):
        if _is_schema_of(reply_type, shape):
            raise Unreadable("reply: that is the schema itself; give values that satisfy it")
        mended = Counter([kind] if kind else [])
        shape = copy.deepcopy(shape)
        for _ in range(_MAX_CHANGES):
            try:
                reply = reply_type.model_validate(shape)
            except ValidationError as error:
                first = first or error
                changed = [_changed(shape, one, reply_type) for one in error.errors()]
            else:
                _require_no_boolean_read_as_number(shape, reply.model_dump(mode="json"), "reply")
                return reply, mended
            if not any(changed):
                break
            mended += Counter(kind for kind in changed if kind)
    assert first is not None, "the first shape is the value as it came"
    raise first


def _is_schema_of(reply_type: type[BaseModel], value: JsonValue) -> bool:
    """Say whether a value is the JSON schema of a reply, and no reply."""
    fields = value.get("properties") if isinstance(value, dict) else None
    known = reply_type.model_fields.keys()
    return isinstance(fields, dict) and bool(fields.keys() & known) and not value.keys() & known


def _require_no_boolean_read_as_number(given: JsonValue, read: JsonValue, place: str) -> None:
    """Require that `true` was read as itself: pydantic would take it for a score of 1."""
    if isinstance(given, bool) and not isinstance(read, bool):
        raise Unreadable(f"{place}: expected a number, found {str(given).lower()}")
    if isinstance(given, dict) and isinstance(read, dict):
        for name in given.keys() & read.keys():
            _require_no_boolean_read_as_number(given[name], read[name], name)
    elif isinstance(given, list) and isinstance(read, list):
        for part, part_read in zip(given, read, strict=False):
            _require_no_boolean_read_as_number(part, part_read, place)


def _shapes(value: JsonValue, reply_type: type[BaseModel]) -> list[tuple[JsonValue, str]]:
    """Return the readings of a value: itself, and its one part if it has only one; each with the name of the change."""
    shapes: list[tuple[JsonValue, str]] = [(value, "")]
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        inner = _parsed(inner) if isinstance(inner, str) else inner
        if isinstance(inner, dict | list) and _spelling(name) not in map(_spelling, reply_type.model_fields):
            shapes.append((inner, "a wrapper"))
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        shapes.append((value[0], "a wrapper"))
    if isinstance(value, list) and len(reply_type.model_fields) == 1:
        shapes.append(({next(iter(reply_type.model_fields)): value}, "a bare list"))
    return shapes


def _changed(shape: JsonValue, error: Any, reply_type: type[BaseModel]) -> str:
    """Change the form of the value at the place of an error; return the name of the change, empty if none applies."""
    if (place := _place(shape, error["loc"])) is None:
        return ""
    holder, key = place
    kind, given = error["type"], error["input"]
    if kind == "extra_forbidden" and isinstance(holder, dict):
        given = holder.pop(key)
        right = _names(reply_type).get(_spelling(key))
        if right is None or right in holder or right == key:
            return "keys too many"
        holder[right] = given  # toolCalls for tool_calls
        return "another spelling of a key"
    if given is None and kind != "missing":
        # If the field is required, it is missing from now on.
        return "null for an empty field" if isinstance(holder, dict) and holder.pop(key, ...) is None else ""
    if isinstance(given, str) and kind in _LIST_TYPES | _OBJECT_TYPES:
        value = _parsed(given)
        if isinstance(value, dict) or (isinstance(value, list) and kind in _LIST_TYPES):
            holder[key] = value
            return "JSON in a string"
    elif isinstance(given, dict) and kind in _LIST_TYPES:
        holder[key] = [given]
        return "one object for a list"
    elif kind == "float_parsing" and isinstance(given, str) and (found := _FRACTION.fullmatch(given)):
        if whole := 100.0 if found[3] else float(found[2]):
            holder[key] = float(found[1]) / whole
            return "a fraction"
    elif kind == "string_type" and isinstance(given, int) and not isinstance(given, bool):
        holder[key] = str(given)
        return "a number for a text"
    return ""


def _place(shape: JsonValue, location: tuple[int | str, ...]) -> tuple[Any, Any] | None:
    """Return the dict or list that holds the value of an error, and its key there; None without one."""
    holder: tuple[Any, Any] | None = None
    value: Any = shape
    for step in location:
        if (isinstance(value, dict) and step in value) or (
            isinstance(value, list) and isinstance(step, int) and step < len(value)
        ):
            inside: Any = value
            holder, value = (inside, step), inside[step]
        elif isinstance(step, int) or isinstance(value, dict):
            return None
    return holder


def _parsed(text: str) -> JsonValue:
    """Return the value of a text that is JSON; None for prose, even with a value inside, which may mean another."""
    return next((found.value for found in json_values(text) if "prose" not in found.mended), None)


@lru_cache(maxsize=256)
def _names(reply_type: type[BaseModel]) -> dict[str, str]:
    """Return the names of all fields of a type, those of its parts included, by their spelling."""
    schema = reply_type.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return {_spelling(name): name for part in parts for name in part.get("properties", {})}


def _spelling(name: str) -> str:
    """Return a name without the differences of spellings: `toolCalls`, `tool_calls` and `Tool calls` are one."""
    return re.sub(r"[\W_]+", "", name).casefold()


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'/'.join(map(str, first['loc'])) or 'reply'}: {first['msg']}"
