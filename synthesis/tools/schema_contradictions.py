"""Contradictions of a plain schema settled, so that some value satisfies it.

One side of a contradiction gives way: limits that nothing is between, or a type of which no choice is. An alternative
is written out together with the keywords beside it. A parameter or an alternative that no value satisfies is left out;
if a parameter is required, nothing satisfies its object, either. Not looked for: a text that has the pattern and the
length that are asked for, and different items (`uniqueItems`) in the number that is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Set
from contextlib import suppress
from typing import Any, Final

from jsonschema import Draft202012Validator

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.tools.schema_merging import ANNOTATIONS, both
from synthesis.tools.schema_repair import BOUNDS, COUNTS, Account, as_list, is_number

_LIMITS: Final = (*sorted(BOUNDS), *sorted(COUNTS), "pattern", "uniqueItems")
_RANGES: Final = (("minLength", "maxLength"), ("minItems", "maxItems"))


def settled(schema: Any, account: Account, *, dropped: str) -> Any:
    """Return a plain schema that some value satisfies, or False if there is none.

    Properties that are `dropped` (`readOnly` of a request, `writeOnly` of a response) leave at every depth.

    >>> settled({"type": "string", "enum": [256, 512]}, Account(), dropped="readOnly")
    {'type': 'integer', 'enum': [256, 512]}
    """
    account.step()
    if schema is False:
        return False

    def inner(each: Any) -> Any:
        return settled(each, account, dropped=dropped) if isinstance(each, dict) else each

    if "anyOf" in schema:  # each alternative, together with the keywords beside it
        notes = {keyword: value for keyword, value in schema.items() if keyword in ANNOTATIONS}
        beside = {keyword: value for keyword, value in schema.items() if keyword not in (*notes, "anyOf")}
        whole = [inner(both(beside, each, account)) for each in schema["anyOf"]]
        possible = [each for each in whole if each is not False]
        if len(possible) < len(whole):
            account.rules.add("impossible_dropped")
        if len(possible) > 1:
            return {**notes, "anyOf": possible}
        return inner({**possible[0], **notes}) if possible else False
    schema = {
        keyword: inner(value) if keyword in ("items", "additionalProperties") else value
        for keyword, value in schema.items()
    }
    if "prefixItems" in schema:
        schema["prefixItems"] = [inner(each) for each in schema["prefixItems"]]
    if schema.get("items") is False:
        schema["items"] = {}
        schema["maxItems"] = min(schema.get("maxItems", math.inf), len(schema.get("prefixItems", ())))
    if "array" in as_list(schema.get("type")) and not schema.keys() & {"items", "prefixItems"}:
        account.rules.add("items_mended")
        schema["items"] = {}
    found = schema.get("properties", {})
    written = {name: each for name, each in found.items() if each is False or not each.get(dropped)}
    if len(written) < len(found):
        account.rules.add("read_only_dropped")
    if not _settle_names(
        schema, found.keys() - written, {name: inner(each) for name, each in written.items()}, account
    ):
        return False
    _settle_values(schema, account)
    _settle_limits(schema, account)
    return schema


def _settle_names(schema: JsonObject, dropped: Set[str], inner: JsonObject, account: Account) -> bool:
    """Write settled properties and their names in `required`; say whether each required one is possible."""
    required = [name for name in schema.pop("required", []) if name not in dropped]
    properties = {name: each for name, each in inner.items() if each is not False}
    if len(properties) < len(inner):
        account.rules.add("impossible_dropped")
    if any(inner.get(name) is False for name in required):
        return False
    if others := schema.get("additionalProperties"):
        properties |= {name: {} if others is True else others for name in required if name not in properties}
    if any(name not in properties for name in required):
        account.rules.add("required_mended")
        required = [name for name in required if name in properties]
    schema |= {"properties": properties} if properties or "properties" in schema else {}
    schema |= {"required": required} if required else {}
    return True


def _settle_values(schema: JsonObject, account: Account) -> None:
    """Bring the choices and the default of a schema to its type; if no choice is of it, the type gives way."""
    if "const" in schema and schema.pop("enum", [schema["const"]]) != [schema["const"]]:
        account.rules.add("enum_mended")
    stated = schema.get("enum") or [schema[key] for key in ("const", "default", *sorted(BOUNDS)) if key in schema]
    if schema.get("type") == "string" and stated and all(map(is_number, stated)):
        account.rules.add("number_typed_as_string")
        schema["type"] = "integer" if all(isinstance(value, int) for value in stated) else "number"
    for keyword in ("enum", "const", "default"):
        if keyword not in schema or "type" not in schema:
            continue
        values = schema[keyword] if keyword == "enum" else [schema[keyword]]
        fitting = {canonical_json(each): each for value in values for each in _read_as(schema["type"], value)}
        if [*fitting] == [*map(canonical_json, values)]:
            continue
        account.rules.add("default_mended" if keyword == "default" else "enum_mended")
        if fitting:
            schema[keyword] = [*fitting.values()] if keyword == "enum" else fitting.popitem()[1]
        else:
            del schema["default" if keyword == "default" else "type"]


def _read_as(kind: JsonValue, value: JsonValue) -> list[Any]:
    """Return a value, or the one that its text spells, as a list of one if that is of a type; else an empty list."""
    readings = [value]
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            spelt = json.loads(value.lower() if value.lower() in ("true", "false") else value)
            readings.append(json.loads(canonical_json(spelt)))  # no infinities
    elif isinstance(value, int | float):
        readings.append(canonical_json(value))
    return [*filter(Draft202012Validator({"type": kind}).is_valid, readings)][:1]


def _settle_limits(schema: JsonObject, account: Account) -> None:
    """Drop limits that nothing is between, and those that none of the choices keeps."""
    limits = {keyword: schema[keyword] for keyword in _LIMITS if keyword in schema}
    is_valid = Draft202012Validator(limits | {key: schema[key] for key in ("type",) if key in schema}).is_valid
    impossible = {
        keyword for low, high in _RANGES if limits.get(low, 0) > limits.get(high, math.inf) for keyword in (low, high)
    }
    low = max((limits[keyword] for keyword in ("minimum", "exclusiveMinimum") if keyword in limits), default=None)
    high = min((limits[keyword] for keyword in ("maximum", "exclusiveMaximum") if keyword in limits), default=None)
    if low is not None and high is not None:
        step = limits.get("multipleOf", 1)
        last = high // step * step
        if not any(map(is_valid, (low, last, last - step, (low + high) / 2))):
            impossible |= BOUNDS
    choices = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if choices and not any(map(is_valid, choices)):
        impossible = {*_LIMITS}
    for keyword in impossible & limits.keys():
        account.rules.add("bounds_mended")
        del schema[keyword]
