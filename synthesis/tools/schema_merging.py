"""Two plain schemas as one: the values of both (`allOf`), or of either (forms of a call).

`False` stands for a schema that nothing satisfies. A part of `allOf` that forbids further names does not forbid those
of the other parts: its author meant the whole. Of two patterns, formats or other keywords that cannot be joined, the
first stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.tools.schema_repair import Account, as_list, one_type

ANNOTATIONS: Final = frozenset({"description", "default", "deprecated", "readOnly", "writeOnly"})
_JOINED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    **dict.fromkeys(("uniqueItems", "readOnly", "writeOnly", "deprecated"), max),
    "required": lambda first, second: list(dict.fromkeys([*first, *second])),
}
_MERGED_APART: Final = frozenset({"description", "default", "properties", "additionalProperties", "const", "enum"})


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
        merged["additionalProperties"] = both(*({} if each is True else each for each in others), account)
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
