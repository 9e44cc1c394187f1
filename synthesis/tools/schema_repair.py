"""Parameters as they are found in the wild, made a valid JSON Schema of type `object`.

The rules by name (a server document lists the rules that were needed):

    not_a_schema               something other than an object stood where a schema belongs
    root_made_object           the root had no type, or one that is not `object`
    root_alternatives_merged   `anyOf`, `oneOf` or `allOf` at the root became one set of properties
    nested_schema_unwrapped    a whole schema lay inside its own `properties`
    type_mapped                a type that JSON Schema does not know ("str", "any", "float") became one that it does
    required_mended            `required` had an unknown name or a name twice, or was a flag on a property
    items_mended               an array without `items`, or with draft-4 tuple items
    bounds_mended              draft-4 boolean bounds, or limits that are not numbers
    default_dropped            a null default on a type that is not nullable
    enum_mended                an empty, repeated or unreadable enumeration
    nullable_converted         OpenAPI's `nullable` became the type `null`
    reference_unresolved       a `$ref` that leads nowhere became "anything"
    reference_cycle_cut        a `$ref` inside itself was cut where it starts again
    number_typed_as_string     a "string" whose default or limits are numbers became a number
    keyword_dropped            a keyword that JSON Schema does not have, or with a value it does not allow; a pattern
                               that `re` does not know, or of the most usual form it takes exponential time for

References inside the document are replaced by their targets. Dialect marks and titles are left out without a rule.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from synthesis.errors import SynthesisError
from synthesis.records import JsonObject, JsonValue, canonical_json

MAX_SCHEMA_NODES: Final = 4000
"""Maximum number of schemas inside a tool that a model can be offered."""
MAX_SCHEMA_DEPTH: Final = 24

TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_TYPE_NAMES: Final = {
    **{name: name for name in TYPES},
    **dict.fromkeys(("str", "text", "char", "file", "uuid", "uri", "url", "enum"), "string"),
    **dict.fromkeys(("date", "datetime", "date-time", "time"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal", "numeric"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("list", "tuple", "set"), "array"),
    **dict.fromkeys(("dict", "map", "json", "hash"), "object"),
    **dict.fromkeys(("none", "nil"), "null"),
}
"""The types of JSON Schema by the names that documents give them."""
_COUNTS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
_READ_APART: Final = frozenset({"type", "required", "nullable", "optional"})
_SILENT: Final = frozenset({"$schema", "$id", "id", "title", "$defs", "definitions", "$comment", "example", "examples"})
_LEFT_OUT: Final[Any] = object()

_ATOM: Final = r"(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\()\[\]|*+?{}^$])"
_ENDLESS: Final = re.compile(rf"\((?:\?:)?(?:{_ATOM}[?*])*{_ATOM}[+*](?:{_ATOM}[?*])*\)(?:[*+]|\{{\d+,\}})")
r"""Pattern of a repeated group that may match a text in many ways, as in `^(\w+\s?)+$`. If a text does not match, `re`
tries all of them, and each further character doubles their number."""
_NO_PATTERN: Final = (re.error, OverflowError, RecursionError)
"""Errors of `re` for a text that it cannot compile."""


class SchemaUnconvertible(SynthesisError):
    """No valid schema of type `object` can be made of the found one; the message says why."""


def repair_parameters(found: JsonValue, document: JsonValue = None) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a valid parameters schema and the rules that were needed to get there, sorted.

    `document` is the target of references, if that is not the schema itself (an OpenAPI specification).

    Raises:
        SchemaUnconvertible: it is too large, too deep, or still not valid after every rule.

    >>> repair_parameters({"properties": {"n": {"type": "int"}}, "required": ["n", "gone"]})[0]
    {'type': 'object', 'properties': {'n': {'type': 'integer'}}, 'required': ['n']}
    >>> repair_parameters(None)
    ({'type': 'object', 'properties': {}}, ('not_a_schema',))
    """
    if not isinstance(found, dict):
        return {"type": "object", "properties": {}}, ("not_a_schema",)
    repair = _Repair(found if document is None else document)
    schema = repair.as_object(repair.schema(found, (), 0))
    if fault := schema_error(schema):
        raise SchemaUnconvertible(fault)
    return schema, tuple(sorted(repair.rules))


def repair_output_schema(found: JsonValue, document: JsonValue = None) -> JsonObject | None:
    """Return a valid schema of a tool's value, or None if the source has none that can be used."""
    if not isinstance(found, dict):
        return None
    try:
        schema = _Repair(found if document is None else document).schema(found, (), 0)
    except SchemaUnconvertible:
        return None
    return None if schema_error(schema) else schema or None


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
    return _draft_error(schema_json)  # as text, which a cache can be keyed by


@lru_cache(maxsize=4096)
def _draft_error(schema_json: str) -> str:
    """Return the fault by draft 2020-12; cached, since many tools share their parameters to the letter."""
    try:
        Draft202012Validator.check_schema(json.loads(schema_json))
    except SchemaError as error:
        return f"not valid draft 2020-12 at /{'/'.join(map(str, error.path))}: {error.message[:200]}"
    except _NO_PATTERN as error:  # compiles patterns, and takes only `re.error` for a fault of theirs
        return f"not valid draft 2020-12: {error}"
    return ""


class _Repair:
    """One pass over one document; `rules` collects the rules that were needed."""

    def __init__(self, document: JsonValue):
        self.rules: set[str] = set()
        self._document = document
        self._nodes = 0

    def as_object(self, schema: JsonObject) -> JsonObject:
        """Return a mended schema as one of named arguments."""
        properties: JsonObject = schema.get("properties", {})
        required: list[str] = schema.get("required", [])
        for keyword in _ALTERNATIVES:
            if keyword in schema:
                self.rules.add("root_alternatives_merged")
                for alternative in schema[keyword]:
                    properties = properties | {**alternative.get("properties", {}), **properties}
                needed = [set(alternative.get("required", ())) for alternative in schema[keyword]]
                # All parts of `allOf` hold at once; of the others one does, so their common names are required.
                common = set.union(*needed) if keyword == "allOf" else set.intersection(*needed)
                required = [name for name in properties if name in common or name in required]
        if schema.get("type") != "object":
            self.rules.add("root_made_object")
        required = [name for name in required if name in properties]
        kept = {keyword: schema[keyword] for keyword in schema if keyword in ("description", "additionalProperties")}
        return {"type": "object", "properties": properties, **({"required": required} if required else {}), **kept}

    def schema(self, found: JsonValue, references: tuple[str, ...], depth: int) -> JsonObject:
        """Mend one schema; `references` are the `$ref`s that led here."""
        # References are written out, so a short document can make a tree without measure.
        self._nodes += 1
        if self._nodes > MAX_SCHEMA_NODES:
            raise SchemaUnconvertible(f"more than {MAX_SCHEMA_NODES} schemas in one tool")
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaUnconvertible(f"schemas more than {MAX_SCHEMA_DEPTH} deep")
        if isinstance(found, bool):  # `true` and `false` are schemas; "anything" is the one that tools mean
            return {}
        if not isinstance(found, dict):
            self.rules.add("not_a_schema")
            return {"type": name} if (name := _type(found)) else {}
        if "$ref" in found:
            return self._reference(found, references, depth)
        found = self._unwrapped(found)
        mended: JsonObject = {}
        if types := self._types(found.get("type")):
            mended["type"] = types if len(types) > 1 else types[0]
        for keyword, value in found.items():
            if keyword == "items" and isinstance(value, list):  # of draft 4
                self.rules.add("items_mended")
                keyword = "prefixItems" if value else "title"
            if keyword not in _READ_APART and keyword not in _SILENT:
                kept = self._kept(keyword, value, found, lambda inner: self.schema(inner, references, depth + 1))
                if kept is not _LEFT_OUT:
                    mended[keyword] = kept
        if found.get("nullable") is True and isinstance(mended.get("type"), str):
            self.rules.add("nullable_converted")
            mended["type"] = [mended["type"], "null"]
        if "array" in as_list(mended.get("type")) and "items" not in mended and "prefixItems" not in mended:
            self.rules.add("items_mended")
            mended["items"] = {}
        if required := self._required(found, mended.get("properties", {})):
            mended["required"] = required
        # No string can have a number as its default, or a limit that is one.
        stated = [mended[keyword] for keyword in ("default", *sorted(_BOUNDS)) if keyword in mended]
        if mended.get("type") == "string" and stated and all(map(_is_number, stated)) and "enum" not in mended:
            self.rules.add("number_typed_as_string")
            mended["type"] = "integer" if all(isinstance(value, int) for value in stated) else "number"
        if mended.get("default", ...) is None and "null" not in as_list(mended.get("type", "null")):
            self.rules.add("default_dropped")
            del mended["default"]
        return mended

    def _kept(
        self, keyword: str, value: JsonValue, found: JsonObject, mended: Callable[[JsonValue], JsonObject]
    ) -> JsonValue:
        """Return the value of a keyword if JSON Schema has it and allows the value, or mend it; else `_LEFT_OUT`."""
        match keyword, value:
            case "properties" | "dependentSchemas", dict():
                return {str(name): mended(inner) for name, inner in value.items()}
            case "patternProperties", dict():
                return {name: mended(inner) for name, inner in value.items() if _is_pattern(name)}
            case "anyOf" | "oneOf" | "allOf" | "prefixItems", [_, *_]:
                return [mended(inner) for inner in value]
            case (
                "items" | "contains" | "not" | "propertyNames" | "additionalProperties" | "if" | "then" | "else",
                dict(),
            ):
                return mended(value)
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
                    self.rules.add("enum_mended")
                return unique or _LEFT_OUT
            case "exclusiveMinimum" | "exclusiveMaximum", True:  # draft 4: it sharpens `minimum` or `maximum`
                self.rules.add("bounds_mended")
                limit = found.get(keyword.removeprefix("exclusive").lower())
                return limit if _is_number(limit) else _LEFT_OUT
        if keyword in _COUNTS and _is_number(value) and value >= 0 and value == int(value):
            return int(value)
        if keyword in _BOUNDS and _is_number(value) and (keyword != "multipleOf" or value > 0):
            return value
        self.rules.add("bounds_mended" if keyword in _BOUNDS else "keyword_dropped")
        return _LEFT_OUT

    def _reference(self, found: JsonObject, references: tuple[str, ...], depth: int) -> JsonObject:
        reference = found["$ref"]
        beside = {keyword: value for keyword, value in found.items() if keyword in ("description", "default")}
        target = pointed_to(reference, self._document) if isinstance(reference, str) else None
        if reference in references:  # a type that contains itself, e.g. a tree's node
            self.rules.add("reference_cycle_cut")
        elif target is None:
            self.rules.add("reference_unresolved")
        else:
            target = {**target, **beside} if isinstance(target, dict) else target
            return self.schema(target, (*references, reference), depth + 1)
        return self.schema(beside, references, depth + 1)

    def _unwrapped(self, found: JsonObject) -> JsonObject:
        inner = found.get("properties")
        if (
            isinstance(inner, dict)
            and isinstance(inner.get("properties"), dict)
            and (inner.get("type") == "object" or isinstance(inner.get("required"), list))
        ):
            self.rules.add("nested_schema_unwrapped")
            return self._unwrapped(inner)
        return found

    def _types(self, found: JsonValue) -> list[str]:
        names = [] if found is None else as_list(found)
        mapped = list(dict.fromkeys(known for name in names if (known := _type(name))))
        if mapped != names:
            self.rules.add("type_mapped")
        return mapped

    def _required(self, found: JsonObject, properties: JsonObject) -> list[str]:
        stated = found.get("required", [])
        names = dict.fromkeys(name for name in stated if isinstance(name, str)) if isinstance(stated, list) else ()
        required = [name for name in names if name in properties]
        if required != stated and not isinstance(stated, bool):
            self.rules.add("required_mended")
        inner = found.get("properties")
        # Draft 3 said it the other way round: `required: true` on the property itself.
        for name, schema in inner.items() if isinstance(inner, dict) else ():
            if isinstance(schema, dict) and schema.get("required") is True:
                self.rules.add("required_mended")
                required += [str(name)] if str(name) in properties and str(name) not in required else []
        return required


def pointed_to(reference: str, document: JsonValue) -> JsonValue:
    """Return the part of a document that a reference such as `#/$defs/city` points to, or None."""
    if not reference.startswith("#"):
        return None
    node = document
    pointer = unquote(reference[1:]).strip("/")
    for part in pointer.split("/") if pointer else ():
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and re.fullmatch("[0-9]{1,9}", part) and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node


def _type(name: JsonValue) -> str | None:
    """Return the type of JSON Schema that a name means."""
    return _TYPE_NAMES.get(name.strip().lower()) if isinstance(name, str) else None


def as_list(value: JsonValue) -> list[JsonValue]:
    """Return a list as it is, any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def _is_number(value: JsonValue) -> bool:
    is_float = isinstance(value, float) and math.isfinite(value)  # `json` reads 1e999 as an infinity
    return is_float or (isinstance(value, int) and not isinstance(value, bool))


def _can_be_kept(value: JsonValue) -> bool:
    """Say whether a value can be written as JSON: it holds no infinity, and does not nest beyond measure."""
    try:
        canonical_json(value)
    except (ValueError, RecursionError):
        return False
    return True


def _is_pattern(value: str) -> bool:
    if _ENDLESS.search(value):
        return False
    try:
        re.compile(value)
    except _NO_PATTERN:
        return False
    return True
