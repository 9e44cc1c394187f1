"""Keywords of a schema as they are found in the wild, made plain ones of draft 2020-12.

A server document lists the rules that its schemas needed:

    not_a_schema               something other than an object stood where a schema belongs
    parameters_wrapped         parameters stood in a list, a text or an object without `properties`
    keyword_hoisted            a keyword of the object, as `required`, stood among its properties
    nested_schema_unwrapped    a whole schema lay inside its own `properties`, or in `schema` or `type` of a parameter
    type_mapped                a type that JSON Schema does not know ("str", "any", "List[int]") became one that it does
    required_mended            `required` had an unknown name or a name twice, or was a flag on a property
    items_mended               an array without `items`, or with draft-4 tuple items
    nullable_converted         OpenAPI's `nullable` became the type `null`
    keyword_dropped            a condition (`not`, `if`), a keyword or value that JSON Schema does not have; a pattern
                               that `re` does not know, or takes exponential time for
    root_made_object           the root had no type, or one that is not `object`
    root_alternatives_merged   forms of a call at the root (`anyOf`, `oneOf`) became one set of properties
    alternatives_opened        `oneOf` became `anyOf`
    closed_part_opened         a part of `allOf` forbade the names of another part
    reference_unresolved       a `$ref` that leads nowhere became "anything"
    reference_cycle_cut        a `$ref` inside itself was cut where it starts again
    read_only_dropped          a property that is part of responses alone left a request (or the other way round)
    path_parameter_added       a place in the path of an operation had no parameter
    argument_renamed           arguments of two places of an operation had one name
    bounds_mended              limits that are no numbers, or that nothing can be between
    enum_mended                an empty, repeated or unreadable enumeration, or one of another type than it says
    default_mended             a default of another type: it spells one of the parameter's, or was left out
    number_typed_as_string     a "string" whose default, limits or choices are numbers became a number
    impossible_dropped         a parameter or an alternative that no value satisfies

Dialect marks and titles are left out without a rule.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from synthesis.errors import SynthesisError
from synthesis.records import JsonObject, JsonValue, canonical_json

MAX_SCHEMA_NODES: Final = 4000
"""Maximum number of schemas inside a tool that a model can be offered."""
MAX_SCHEMA_DEPTH: Final = 24
STEPS_OF_A_SCHEMA: Final = 40
"""Cost of a schema of the document: references are written out, so that a short document can make a huge tree."""
_MAX_STEPS: Final = STEPS_OF_A_SCHEMA * MAX_SCHEMA_NODES

TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_TYPE_NAMES: Final = {
    **{name: name for name in TYPES},
    **dict.fromkeys(("str", "text", "char", "file", "uuid", "uri", "url", "enum"), "string"),
    **dict.fromkeys(("date", "datetime", "date-time", "time"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal", "numeric"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("list", "tuple", "set", "sequence"), "array"),
    **dict.fromkeys(("dict", "map", "json", "hash", "mapping"), "object"),
    **dict.fromkeys(("none", "nil"), "null"),
}
"""The types of JSON Schema by the names that documents give them."""
COUNTS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
READ_APART: Final = frozenset({"type", "required", "nullable", "optional", "$ref", "allOf", "anyOf", "oneOf"})
SILENT: Final = frozenset(
    {"$schema", "$id", "id", "title", "$defs", "definitions", "$comment", "example", "examples", "strict"}
)
_LEFT_OUT: Final[Any] = object()
OPTIONAL: Final = re.compile(r"[,(]\s*optional\)?$|^optional\s+|\?$", re.IGNORECASE)
_LONGEST_TYPE: Final = 200
_GENERIC: Final = re.compile(r"(?:typing\.)?(\w+)\s*\[(.*)\]")

_ATOM: Final = r"(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\()\[\]|*+?{}^$])"
_ENDLESS: Final = re.compile(rf"\((?:\?:)?(?:{_ATOM}[?*])*{_ATOM}[+*](?:{_ATOM}[?*])*\)(?:[*+]|\{{\d+,\}})")
r"""Pattern of a repeated group that may match a text in many ways, as in `^(\w+\s?)+$`. If a text does not match, `re`
tries all of them, and each further character doubles their number."""
_NO_PATTERN: Final = (re.error, OverflowError, RecursionError)
"""Errors of `re` for a text that it cannot compile."""


class SchemaUnconvertible(SynthesisError):
    """No valid schema of type `object` can be made of the found one; the message says why."""


@dataclass
class Account:
    """The document of one schema's references, the rules that the schema needed, and the steps that it took."""

    document: JsonValue = None
    rules: set[str] = field(default_factory=set)
    steps: int = 0

    def step(self, cost: int = 1) -> None:
        """Count a merge of two schemas or a look for contradictions."""
        self.steps += cost
        if self.steps > _MAX_STEPS:
            raise SchemaUnconvertible(f"more than {_MAX_STEPS} steps to compose one tool")


def schema_error(schema: JsonObject) -> str:
    """Return the fault of a schema, as JSON that can be kept and by draft 2020-12; empty if it has none.

    >>> schema_error({"required": True}), schema_error({"type": "object"})
    ("not valid draft 2020-12 at /required: True is not of type 'array'", '')
    """
    try:
        schema_json = canonical_json(schema)
        schema_json.encode()
    except (ValueError, RecursionError) as error:  # an infinity, half of a character, lists in lists in lists
        return f"not JSON that can be kept: {error}"
    return _draft_error(schema_json)


@lru_cache(maxsize=4096)  # many tools share their parameters to the letter
def _draft_error(schema_json: str) -> str:
    try:
        Draft202012Validator.check_schema(json.loads(schema_json))
    except SchemaError as error:
        return f"not valid draft 2020-12 at /{'/'.join(map(str, error.path))}: {error.message[:200]}"
    except _NO_PATTERN as error:  # compiles patterns, and takes only `re.error` for a fault of theirs
        return f"not valid draft 2020-12: {error}"
    return ""


def plain_keywords(found: JsonObject, schema: Callable[[JsonValue], JsonValue], account: Account) -> JsonObject:
    """Return the keywords of one schema that say something of a value by themselves, mended; `schema` mends inner ones.

    `required` may still name what no property has: a part of `allOf` elsewhere may have it.
    """
    mended = type_of(found.get("type"))
    if as_list(mended.get("type", [])) != as_list([] if found.get("type") is None else found["type"]):
        account.rules.add("type_mapped")
    for keyword, value in found.items():
        if keyword == "items" and isinstance(value, list):  # of draft 4
            account.rules.add("items_mended")
            keyword = "prefixItems" if value else "title"
        if keyword not in READ_APART and keyword not in SILENT:
            kept = _kept(keyword, value, found, schema, account)
            mended |= {} if kept is _LEFT_OUT else {keyword: kept}
    if found.get("patternProperties"):
        mended["additionalProperties"] = True  # names that a pattern tells
    if required := _required(found, account):
        mended["required"] = required
    return mended


def _kept(
    keyword: str, value: JsonValue, found: JsonObject, schema: Callable[[JsonValue], JsonValue], account: Account
) -> JsonValue:
    """Return the value of a keyword if JSON Schema has it and allows the value, or mend it; else `_LEFT_OUT`."""
    match keyword, value:
        case "properties", dict():
            return {str(name): schema(inner) for name, inner in value.items()}
        case "prefixItems", [_, *_]:
            return [schema(inner) for inner in value]
        case "items", dict() | bool() | str():
            return schema(value)
        case "additionalProperties", dict():
            return schema(value)
        case "additionalProperties" | "deprecated" | "readOnly" | "writeOnly" | "uniqueItems", bool():
            return value
        case "description" | "format", str():
            return value
        case "pattern", str() if _is_pattern(value):
            return value
        case "const" | "default", _ if _can_be_kept(value):
            return value
        case "enum", list():
            # By their JSON texts: values may be lists, and Python takes 1 and true for equal.
            unique = list({canonical_json(each): each for each in value if _can_be_kept(each)}.values())
            if len(unique) != len(value) or not unique:
                account.rules.add("enum_mended")
            return unique or _LEFT_OUT
        case "exclusiveMinimum" | "exclusiveMaximum", True:  # draft 4: it sharpens `minimum` or `maximum`
            account.rules.add("bounds_mended")
            limit = found.get(keyword.removeprefix("exclusive").lower())
            return limit if is_number(limit) else _LEFT_OUT
    if keyword in COUNTS and is_number(value) and value >= 0 and value == int(value):
        return int(value)
    if keyword in BOUNDS and is_number(value) and (keyword != "multipleOf" or value > 0):
        return value
    account.rules.add("bounds_mended" if keyword in BOUNDS else "keyword_dropped")
    return _LEFT_OUT


def type_of(found: JsonValue) -> JsonObject:
    """Return the type that a name or a list of names means, with `items` if they say them; empty if one is unknown.

    >>> type_of("List[int]"), type_of("int, optional"), type_of("Union[int, str]"), type_of("any")
    ({'type': 'array', 'items': {'type': 'integer'}}, {'type': 'integer'}, {'type': ['integer', 'string']}, {})
    """
    if isinstance(found, list):
        kinds = [type_of(each) if isinstance(each, str) else {} for each in found]
        if not kinds or {} in kinds:
            return {}
        first = next((kind for kind in kinds if "items" in kind), {})
        return {**first, **one_type(each for kind in kinds for each in as_list(kind["type"]))}
    if not isinstance(found, str) or len(found) > _LONGEST_TYPE:
        return {}
    name = OPTIONAL.sub("", found.strip()).strip()
    generic = _GENERIC.fullmatch(name)
    outer, inner = (generic[1].lower(), generic[2]) if generic else (name.lower(), "")
    known = _TYPE_NAMES.get(outer)
    if name.endswith("[]"):
        known, outer, inner = "array", "", name[:-2]
    elif "|" in name or (generic and outer in ("union", "optional")):
        return type_of(re.split("[|,]", inner or name))
    elif known is None or (generic and known not in ("array", "object")):
        return {}
    items = type_of(inner) if known == "array" and outer != "tuple" else {}
    return {"type": known, **({"items": items} if items else {})}


def one_type(kinds: Iterable[JsonValue]) -> JsonObject:
    """Return the keyword `type` for some types."""
    different = list(dict.fromkeys(kinds))
    return {"type": different[0] if len(different) == 1 else different}


def _required(found: JsonObject, account: Account) -> list[str]:
    names = [name for name in as_list(found.get("required", [])) if isinstance(name, str)]
    inner = found.get("properties")
    # Draft 3 said it the other way round: `required: true` on the property itself.
    for name, schema in inner.items() if isinstance(inner, dict) else ():
        flag = schema.get("required") if isinstance(schema, dict) else None
        names += [str(name)] if flag is True or (flag == [name] and "properties" not in schema) else []
    required = list(dict.fromkeys(names))
    if required != found.get("required", []) and not isinstance(found.get("required"), bool):
        account.rules.add("required_mended")
    return required


def as_list(value: JsonValue) -> list[JsonValue]:
    """Return a list as it is, any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def is_number(value: JsonValue) -> bool:
    """Say whether a value is a finite number."""
    is_a = isinstance(value, int | float) and not isinstance(value, bool)
    return is_a and abs(value) <= sys.float_info.max  # `json` reads 1e999 as an infinity


def _can_be_kept(value: JsonValue) -> bool:
    """Say whether a value can be written as JSON: it holds no infinity, and does not nest beyond measure."""
    with suppress(ValueError, RecursionError):
        return bool(canonical_json(value))
    return False


def _is_pattern(value: str) -> bool:
    with suppress(*_NO_PATTERN):
        return not _ENDLESS.search(value) and bool(re.compile(value))
    return False
