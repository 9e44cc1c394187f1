"""Two plain schemas as one: the values of both (`allOf`), or of either (forms of a call).

`False` stands for a schema that nothing satisfies. A part of `allOf` that forbids further names does not forbid those
of the other parts: its author meant the whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.tools.schema_repair import Account, as_list

_MAX_ALTERNATIVES: Final = 64
"""Maximum number of alternatives of two `anyOf` that hold at once."""
ANNOTATIONS: Final = frozenset({"description", "default", "deprecated", "readOnly", "writeOnly"})
_LIMITS: Final = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}
_FLAGS: Final = frozenset({"uniqueItems", "readOnly", "writeOnly", "deprecated"})


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
    merged = {**one, **{keyword: value for keyword, value in other.items() if keyword not in one}}
    for keyword in [keyword for keyword in one if keyword in other]:
        first, second = one[keyword], other[keyword]
        if keyword in _LIMITS:
            merged[keyword] = _LIMITS[keyword](first, second)
        elif keyword in _FLAGS:
            merged[keyword] = first or second
        elif keyword == "type":
            kinds = [each for each in as_list(first) if _has(as_list(second), each)]
            kinds += [each for each in as_list(second) if each not in kinds and _has(as_list(first), each)]
            merged["type"] = kinds[0] if len(kinds) == 1 else kinds
            if not kinds:
                return False
        elif keyword == "required":
            merged[keyword] = [*first, *(name for name in second if name not in first)]
        elif keyword in ("items", "propertyNames"):
            merged[keyword] = both(first, second, account)
        elif keyword == "prefixItems" and len(first) == len(second):
            merged[keyword] = [both(*pair, account) for pair in zip(first, second, strict=True)]
        elif keyword == "multipleOf" and isinstance(first, int) and isinstance(second, int):
            merged[keyword] = math.lcm(first, second)
        elif keyword == "anyOf":
            if len(first) * len(second) > _MAX_ALTERNATIVES:
                account.rules.add("alternatives_merged")
                first, second = _folded(first), _folded(second)
            pairs = [both(*pair, account) for pair in itertools.product(first, second)]
            merged[keyword] = [pair for pair in pairs if pair is not False]
            if not merged[keyword]:
                return False
        elif keyword not in (*ANNOTATIONS, "properties", "additionalProperties", "const", "enum") and first != second:
            account.rules.add("keyword_dropped")
    if {"const", "enum"} & one.keys() and {"const", "enum"} & other.keys():
        taken = {_spelt(value) for value in _values(other)}
        values = [value for value in _values(one) if _spelt(value) in taken]
        if not values:
            return False
        merged = {keyword: value for keyword, value in merged.items() if keyword not in ("const", "enum")}
        merged |= {"const": values[0]} if "const" in {*one, *other} else {"enum": values}
    return _objects_merged(merged, one, other, account)


def _objects_merged(merged: JsonObject, one: JsonObject, other: JsonObject, account: Account) -> JsonObject:
    """Add the properties of two schemas that hold at once, and the schema of all further ones, to a merged schema."""
    names = dict.fromkeys([*one.get("properties", {}), *other.get("properties", {})])
    others = [each.get("additionalProperties", True) for each in (one, other)]
    if names:
        merged["properties"] = {}
    for name in names:
        parts = [each.get("properties", {}).get(name) for each in (one, other)]
        for place, part in enumerate(parts):
            if part is None:
                if others[place] is False and "properties" in (one, other)[1 - place]:
                    account.rules.add("closed_part_opened")  # strictly the name could never be given
                parts[place] = others[place] if isinstance(others[place], dict) else {}
        merged["properties"][name] = both(parts[0], parts[1], account)
    if False in others:
        merged["additionalProperties"] = False
    elif all(isinstance(each, dict) for each in others):
        merged["additionalProperties"] = both(others[0], others[1], account)
    elif schemas := [each for each in others if isinstance(each, dict)]:
        merged["additionalProperties"] = schemas[0]
    return merged


def one_form(forms: Sequence[JsonObject]) -> Any:
    """Return one object schema that takes a call of each form; forms that are no objects are no calls."""
    forms = [form for form in forms if form is not False and "object" in as_list(form.get("type", "object"))]
    if len(forms) < 2:
        return forms[0] if forms else False
    others = [form.get("additionalProperties") for form in forms]
    properties: JsonObject = {}
    for name in dict.fromkeys(name for form in forms for name in form.get("properties", {})):
        having = [form.get("properties", {}).get(name, form.get("additionalProperties")) for form in forms]
        properties[name] = either([schema for schema in having if schema is not None and schema is not True])
    required = [name for name in properties if all(name in form.get("required", ()) for form in forms)]
    merged: JsonObject = {"type": "object", "properties": properties, **({"required": required} if required else {})}
    if True in others or any(isinstance(each, dict) for each in others):
        schemas = [each for each in others if isinstance(each, dict)]
        merged["additionalProperties"] = True if True in others else either(schemas)
    elif all(each is False for each in others):
        merged["additionalProperties"] = False
    alike = ("description", "readOnly")
    return {
        **merged,
        **{key: forms[0][key] for key in alike if all(form.get(key) == forms[0].get(key, ...) for form in forms)},
    }


def _folded(alternatives: list[Any]) -> list[Any]:
    """Return many alternatives as one: an object if each is one, else anything."""
    are_objects = all(each.get("type") == "object" for each in alternatives)
    return [one_form(alternatives) if are_objects else {}]


def either(schemas: Sequence[Any]) -> Any:
    """Return a schema of the values that satisfy one of some plain schemas; constants and enumerations are united.

    >>> either([{"type": "string", "const": "a"}, {"type": "string", "enum": ["b", "a"]}])
    {'type': 'string', 'enum': ['a', 'b']}
    """
    possible = [schema for schema in schemas if schema is not False]
    if not possible:
        return False
    notes = _notes(possible)
    said = [{keyword: value for keyword, value in each.items() if keyword not in ANNOTATIONS} for each in possible]
    choices = [each for each in said if {"const", "enum"} & each.keys() and not each.keys() - {"type", "const", "enum"}]
    if len(choices) > 1:
        values = list({_spelt(value): value for each in choices for value in _values(each)}.values())
        types = list(dict.fromkeys(kind for each in choices for kind in as_list(each.get("type", []))))
        kind = (
            {"type": types if len(types) > 1 else types[0]} if types and all("type" in each for each in choices) else {}
        )
        united = {**kind, **({"enum": values} if len(values) > 1 else {"const": values[0]})}
        said = [united, *(each for each in said if each not in choices)]
    distinct = list({canonical_json(each): each for each in said}.values())
    # Each keyword only narrows: a schema with all keywords of another adds no value to it.
    wide = [each for each in distinct if not any(o is not each and o.items() <= each.items() for o in distinct)]
    if len(wide) == 1:
        return {**wide[0], **notes}
    flat = [inner for each in wide for inner in (each["anyOf"] if each.keys() == {"anyOf"} else [each])]
    if all(each.keys() == {"type"} for each in flat):
        return {"type": list(dict.fromkeys(kind for each in flat for kind in as_list(each["type"]))), **notes}
    return {"anyOf": flat, **notes}


def _notes(schemas: Sequence[JsonObject]) -> JsonObject:
    """Return the annotations that hold for any of some schemas."""
    said = dict.fromkeys(schema["description"] for schema in schemas if "description" in schema)
    notes: JsonObject = {"description": " | ".join(said)} if said else {}
    notes |= next(({"default": schema["default"]} for schema in schemas if "default" in schema), {})
    flags = ("deprecated", "readOnly", "writeOnly")
    return notes | {flag: True for flag in flags if all(schema.get(flag) is True for schema in schemas)}


def _values(schema: JsonObject) -> list[JsonValue]:
    """Return the values of `const` or of `enum`."""
    values: list[JsonValue] = [schema["const"]] if "const" in schema else schema["enum"]
    return values


def _spelt(value: JsonValue) -> str:
    """Return the JSON text of a value; numbers that JSON Schema takes for equal have one text."""
    return canonical_json(int(value) if isinstance(value, float) and value.is_integer() else value)


def _has(kinds: Sequence[JsonValue], kind: JsonValue) -> bool:
    return kind in kinds or (kind == "integer" and "number" in kinds)
