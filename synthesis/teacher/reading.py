"""Typed replies from a model's text: read leniently, validated strictly, each mending counted.

Of a value that does not satisfy its type only the form is changed: keys too many are left out, `null` gives way to a
field's default, JSON in a text is read, a wrapper is taken off. No score is put on another scale: "8/10" and "80 %" say
theirs, 8 does not.
"""

from __future__ import annotations

import copy
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from synthesis.records import JsonValue
from synthesis.teacher.lenient_json import json_values

Typed = TypeVar("Typed", bound=BaseModel)

_MAX_CHANGES: Final = 20
# The sandbox takes as many lists and objects within each other in arguments, state or value; these stand in a reply,
# and so nest less. A record that holds them stays far below the 200 at which pydantic's parser ends.
_MAX_NESTING: Final = 100
_LARGEST: Final = sys.float_info.max
_LIST_TYPES: Final = frozenset({"list_type", "tuple_type", "set_type", "frozen_set_type"})
_OBJECT_TYPES: Final = frozenset({"dict_type", "model_type", "model_attributes_type", "mapping_type"})
_FRACTION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:/\s*(\d+(?:\.\d+)?)|(%))\s*")


class Unreadable(ValueError):
    """A text that is no reply of its type, and why; never leaves the teacher."""


def read_reply(text: str, reply_type: type[Typed]) -> tuple[Typed, Counter[str]]:
    """Return the reply that a text holds, and what had to be mended to read it.

    Raises:
        Unreadable: it holds none; the message says what is wrong with the likeliest part of it.
    """
    problem = "not JSON: expected one JSON object, found none that is whole"
    is_first = True
    for found in json_values(text):
        try:
            reply, mended = _fitted(found.value, reply_type)
            require_keepable(reply)
        except RecursionError:
            problem, is_first = "reply: nested too deep" if is_first else problem, False
        except ValueError as error:
            if is_first:
                problem = _problem(error) if isinstance(error, ValidationError) else str(error)
            is_first = False
        else:
            return reply, mended + Counter(found.mended)
    raise Unreadable(problem[:300])


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
    """Validate a value, with a wrapper taken off and its form changed where that is all that is wrong.

    Raises:
        ValidationError: it is wrong in another way; what is wrong with it as it came.
        Unreadable: it says yes or no where a number is asked for.
    """
    try:
        return _validated(value, reply_type), Counter()
    except ValidationError as error:
        first = error
    for shape, kind in _unwrapped(value, reply_type):
        mended = Counter([kind] if kind else [])
        shape = copy.deepcopy(shape)
        for _ in range(_MAX_CHANGES):
            try:
                return _validated(shape, reply_type), mended
            except ValidationError as error:
                changed = [change(shape, one, reply_type) for one in error.errors() for change in _CHANGES]
            if not any(changed):
                break
            mended += Counter(kind for kind in changed if kind)
    raise first


def _validated(value: JsonValue, reply_type: type[Typed]) -> Typed:
    reply = reply_type.model_validate(value)
    _require_no_boolean_read_as_number(value, reply.model_dump(mode="json"), "reply")
    return reply


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


def _unwrapped(value: JsonValue, reply_type: type[BaseModel]) -> list[tuple[JsonValue, str]]:
    """Return the readings of a value: itself, and its one part if it has only one; each with the name of the change."""
    shapes: list[tuple[JsonValue, str]] = [(value, "")]
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        if _spelling(name) not in map(_spelling, reply_type.model_fields):
            inner = _parsed(inner) if isinstance(inner, str) else inner
            shapes += [(inner, "a wrapper")] if isinstance(inner, dict | list) else []
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        shapes.append((value[0], "a wrapper"))
    if isinstance(value, list) and len(reply_type.model_fields) == 1:
        shapes.append(({next(iter(reply_type.model_fields)): value}, "a bare list"))
    return shapes


# --- changes of form: each does one to the place of an error, and returns what it is called; empty for none ---


def _without_key_too_many(shape: JsonValue, error: Any, reply_type: type[BaseModel]) -> str:
    if error["type"] != "extra_forbidden" or (place := _place(shape, error["loc"])) is None:
        return ""
    holder, key = place
    if not isinstance(holder, dict):
        return ""
    value = holder.pop(key)
    right = _names(reply_type).get(_spelling(key))
    if right is None or right in holder or right == key:
        return "keys too many"
    holder[right] = value  # toolCalls for tool_calls
    return "another spelling of a key"


def _without_null(shape: JsonValue, error: Any, _: type[BaseModel]) -> str:
    place = _place(shape, error["loc"])
    if place is None or error["type"] == "missing" or error["input"] is not None:
        return ""
    holder, key = place
    # Where the field is required, it is missing from now on.
    return "null for an empty field" if isinstance(holder, dict) and holder.pop(key, ...) is None else ""


def _with_text_read(shape: JsonValue, error: Any, _: type[BaseModel]) -> str:
    place = _place(shape, error["loc"])
    if place is None or not isinstance(error["input"], str) or error["type"] not in _LIST_TYPES | _OBJECT_TYPES:
        return ""
    value = _parsed(error["input"])
    if not isinstance(value, dict | list) or (isinstance(value, list) and error["type"] in _OBJECT_TYPES):
        return ""
    place[0][place[1]] = value
    return "JSON in a string"


def _with_one_in_a_list(shape: JsonValue, error: Any, _: type[BaseModel]) -> str:
    place = _place(shape, error["loc"])
    if place is None or not isinstance(error["input"], dict) or error["type"] not in _LIST_TYPES:
        return ""
    place[0][place[1]] = [error["input"]]
    return "one object for a list"


def _with_fraction_read(shape: JsonValue, error: Any, _: type[BaseModel]) -> str:
    place = _place(shape, error["loc"])
    found = _FRACTION.fullmatch(error["input"]) if isinstance(error["input"], str) else None
    if place is None or found is None or error["type"] != "float_parsing":
        return ""
    whole = 100.0 if found[3] else float(found[2])
    if not whole:
        return ""
    place[0][place[1]] = float(found[1]) / whole
    return "a fraction"


def _with_number_as_text(shape: JsonValue, error: Any, _: type[BaseModel]) -> str:
    place, value = _place(shape, error["loc"]), error["input"]
    if place is None or error["type"] != "string_type" or isinstance(value, bool) or not isinstance(value, int):
        return ""
    place[0][place[1]] = str(value)
    return "a number for a text"


_CHANGES: Final[tuple[Callable[[JsonValue, Any, type[BaseModel]], str], ...]] = (
    _without_key_too_many,
    _without_null,
    _with_text_read,
    _with_one_in_a_list,
    _with_fraction_read,
    _with_number_as_text,
)


def _place(shape: JsonValue, location: tuple[int | str, ...]) -> tuple[Any, Any] | None:
    """Return the dict or list in which the value of an error stands, and its key there; None where there is none."""
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
    """Return the value that a text is; None where it is none, or prose with one inside, which may mean another."""
    return next((found.value for found in json_values(text) if "prose" not in found.mended), None)


@lru_cache(maxsize=256)
def _names(reply_type: type[BaseModel]) -> dict[str, str]:
    """Return the names of all fields of a type, those of its parts included, by their spelling."""
    schema = reply_type.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return {_spelling(name): name for part in parts for name in part.get("properties", {})}


def _spelling(name: str) -> str:
    """Return a name without what spellings differ in.

    >>> _spelling("toolCalls") == _spelling("tool_calls") == _spelling("Tool calls")
    True
    """
    return re.sub(r"[\W_]+", "", name).casefold()


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'/'.join(map(str, first['loc'])) or 'reply'}: {first['msg']}"
