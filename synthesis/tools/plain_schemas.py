"""Plain schemas: two made one, the values of both (`allOf`) or of either (forms of a call), and contradictions settled.

`False` stands for a schema that nothing satisfies. A part of `allOf` that forbids further names does not forbid those
of the other parts: its author meant the whole. Of two patterns, formats or other keywords that cannot be joined, the
first stays.

One side of a contradiction gives way: limits that nothing is between, or a type of which no choice is. An alternative
is written out together with the keywords beside it. A parameter or an alternative that no value satisfies is left out;
if a parameter is required, nothing satisfies its object, either. Not looked for: a text that has the pattern and the
length that are asked for, and different items (`uniqueItems`) in the number that is asked for.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any, Final

from jsonschema import Draft202012Validator

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.tools.schema_repair import BOUNDS, COUNTS, Account, as_list, is_number, one_type

ANNOTATIONS: Final = frozenset({"description", "default", "deprecated", "readOnly", "writeOnly"})
_JOINED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    **dict.fromkeys(("uniqueItems", "readOnly", "writeOnly", "deprecated"), max),
    "required": lambda first, second: list(dict.fromkeys([*first, *second])),
}
_MERGED_APART: Final = frozenset({"description", "default", "properties", "additionalProperties", "const", "enum"})
_LIMITS: Final = (*sorted(BOUNDS), *sorted(COUNTS), "pattern", "uniqueItems")
_RANGES: Final = (("minLength", "maxLength"), ("minItems", "maxItems"))


def both(one: Any, other: Any, account: Account) -> Any:
    """Return the schema of the values that satisfy two plain schemas; annotations are those of the first.

    >>> both({"type": "number", "minimum": 1}, {"type": "integer", "minimum": 3}, Account())
    {'type': 'integer', 'minimum': 3}
    """
    account.step()
    if one is False or other is False:
        return False
    if not one or not other:
        return one or other
    merged = {**one, **other, **one}  # the keywords of the first come first
    for keyword in [keyword for keyword in one if keyword in other]:
        first, second = one[keyword], other[keyword]
        if keyword in _JOINED:
            merged[keyword] = _JOINED[keyword](first, second)
        elif keyword == "type":
            kinds = [*_kinds_in(as_list(first), as_list(second)), *_kinds_in(as_list(second), as_list(first))]
            merged |= one_type(kinds)
            if not kinds:
                return False
        elif keyword == "items":
            merged[keyword] = both(first, second, account)
        elif keyword == "anyOf":
            pairs = [both(*pair, account) for pair in itertools.product(first, second)]
            merged[keyword] = [pair for pair in pairs if pair is not False]
            if not merged[keyword]:
                return False
        elif keyword not in _MERGED_APART and first != second:
            account.rules.add("keyword_dropped")
    if (first := _choices(one)) and (second := _choices(other)):
        taken = set(map(_spelt, second))
        values = [value for value in first if _spelt(value) in taken]
        if not values:
            return False
        merged = {keyword: value for keyword, value in merged.items() if keyword not in ("const", "enum")}
        merged |= {"const": values[0]} if "const" in {*one, *other} else {"enum": values}
    if names := dict.fromkeys([*one.get("properties", {}), *other.get("properties", {})]):
        merged["properties"] = {
            name: both(_of_name(one, name, account), _of_name(other, name, account), account) for name in names
        }
    others = [each.get("additionalProperties", True) for each in (one, other)]
    if others != [True, True]:
        first, second = ({} if each is True else each for each in others)
        merged["additionalProperties"] = both(first, second, account)
    return merged


def _of_name(schema: JsonObject, name: str, account: Account) -> Any:
    """Return what an object schema says of a property that it or another part of `allOf` has."""
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    others = schema.get("additionalProperties")
    if others is False:  # strictly the name could never be given
        account.rules.add("closed_part_opened")
    return others if isinstance(others, dict) else {}


def one_form(forms: Sequence[JsonObject]) -> JsonObject:
    """Return one object schema that takes a call of each form."""
    if len(forms) == 1:
        return forms[0]
    properties: JsonObject = {}
    for name in dict.fromkeys(name for form in forms for name in form.get("properties", {})):
        having = [form.get("properties", {}).get(name, form.get("additionalProperties")) for form in forms]
        properties[name] = either([schema for schema in having if schema is not None and schema is not True])
    merged: JsonObject = {"type": "object", "properties": properties}
    if required := [name for name in properties if all(name in form.get("required", ()) for form in forms)]:
        merged["required"] = required
    others = [form.get("additionalProperties") for form in forms]
    if schemas := [each for each in others if each is True or isinstance(each, dict)]:
        merged["additionalProperties"] = True if True in schemas else either(schemas)
    elif None not in others:
        merged["additionalProperties"] = False
    if "description" in forms[0] and all(form.get("description") == forms[0]["description"] for form in forms):
        merged["description"] = forms[0]["description"]
    return merged


def either(schemas: Sequence[Any]) -> Any:
    """Return a schema of the values that satisfy one of some plain schemas; constants and enumerations are united.

    >>> either([{"type": "string", "const": "a"}, {"type": "string", "enum": ["b", "a"]}])
    {'type': 'string', 'enum': ['a', 'b']}
    """
    possible = [schema for schema in schemas if schema is not False]
    if not possible:
        return False
    said = [{keyword: value for keyword, value in each.items() if keyword not in ANNOTATIONS} for each in possible]
    choices = [each for each in said if _choices(each) and not each.keys() - {"type", "const", "enum"}]
    if len(choices) > 1:
        values = list({_spelt(value): value for each in choices for value in _choices(each)}.values())
        kinds = [each.get("type") for each in choices]
        united = one_type([kind for each in kinds for kind in as_list(each)]) if None not in kinds else {}
        united |= {"enum": values} if len(values) > 1 else {"const": values[0]}
        said = [united, *(each for each in said if each not in choices)]
    distinct = list({canonical_json(each): each for each in said}.values())
    # Each keyword only narrows: a schema with all keywords of another adds no value to it.
    wide = [each for each in distinct if not any(o is not each and o.items() <= each.items() for o in distinct)]
    flat = [inner for each in wide for inner in (each["anyOf"] if each.keys() == {"anyOf"} else [each])]
    if all(each.keys() == {"type"} for each in flat):
        flat = [one_type([kind for each in flat for kind in as_list(each["type"])])]
    united = flat[0] if len(flat) == 1 else {"anyOf": flat}
    # The annotations that hold for any of them.
    texts = dict.fromkeys(schema["description"] for schema in possible if "description" in schema)
    notes: JsonObject = {"description": " | ".join(texts)} if texts else {}
    notes |= next(({"default": schema["default"]} for schema in possible if "default" in schema), {})
    flags = ("deprecated", "readOnly", "writeOnly")
    return united | notes | {flag: True for flag in flags if all(schema.get(flag) is True for schema in possible)}


def _choices(schema: JsonObject) -> list[JsonValue]:
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def _spelt(value: JsonValue) -> str:
    """Return the JSON text of a value; numbers that JSON Schema takes for equal have one text."""
    return canonical_json(int(value) if isinstance(value, float) and value.is_integer() else value)


def _kinds_in(kinds: Sequence[JsonValue], others: Sequence[JsonValue]) -> list[JsonValue]:
    """Return the types whose values are all of one of some other types."""
    return [kind for kind in kinds if kind in others or (kind == "integer" and "number" in others)]


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
    each_of = [keyword for keyword in ("items", "additionalProperties") if keyword in schema]
    schema = {**schema, **{keyword: inner(schema[keyword]) for keyword in each_of}}
    if "prefixItems" in schema:
        schema["prefixItems"] = [inner(each) for each in schema["prefixItems"]]
    if schema.get("items") is False:
        schema["items"] = {}
        schema["maxItems"] = min(schema.get("maxItems", math.inf), len(schema.get("prefixItems", ())))
    if "array" in as_list(schema.get("type")) and not schema.keys() & {"items", "prefixItems"}:
        account.rules.add("items_mended")
        schema["items"] = {}
    found = schema.get("properties", {})
    written = {name: inner(each) for name, each in found.items() if each is False or not each.get(dropped)}
    if len(written) < len(found):
        account.rules.add("read_only_dropped")
    if not _settle_names(schema, found.keys() - written, written, account):
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
