"""Contradictions of a plain schema settled, so that some value satisfies it.

One side of a contradiction gives way: limits that nothing is between, or choices of another type. A parameter or an
alternative that no value satisfies is left out. If it is required, nothing satisfies its object, either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from jsonschema import Draft202012Validator

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.tools.misplaced_keywords import parsed_text
from synthesis.tools.schema_merging import ANNOTATIONS, both
from synthesis.tools.schema_repair import BOUNDS, COUNTS, Account, as_list, is_number

_LIMITS: Final = (*sorted(BOUNDS), *sorted(COUNTS), "pattern", "uniqueItems")
_CONTRADICTION: Final = "contradiction"
"""Rule of a trial alone: nothing satisfies the schema as it is."""
_NUMBERS, _TEXTS, _LISTS = frozenset({"number", "integer"}), frozenset({"string"}), frozenset({"array"})
_PAIRS: Final[Mapping[tuple[str, ...], frozenset[str]]] = {
    ("minLength", "maxLength"): _TEXTS,
    ("minItems", "maxItems"): _LISTS,
    ("minProperties", "maxProperties"): frozenset({"object"}),
}
_FEW: Final = {"boolean": 2, "null": 1}
_OF_TYPE: Final[Mapping[str, Any]] = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
_LEFT_OUT: Final[Any] = object()


def _gives_way(rule: str, schema: JsonObject, kinds: frozenset[str], account: Account) -> None:
    """Write down that one side gives way; on trial none does, if the schema takes values of these kinds alone."""
    is_final = account.is_trial and "type" in schema and kinds.issuperset(as_list(schema["type"]))
    account.rules.add(_CONTRADICTION if is_final else rule)


def settled(schema: Any, account: Account, *, dropped: str, known: frozenset[str] = frozenset()) -> Any:
    """Return a plain schema that some value satisfies, or False if there is none.

    Properties that are `dropped` (`readOnly` of a request, `writeOnly` of a response) leave at every depth; `known` are
    names of an enclosing schema, which `required` may have.

    >>> settled({"type": "string", "enum": [256, 512]}, Account(), dropped="readOnly")
    {'type': 'integer', 'enum': [256, 512]}
    """
    account.step()
    if schema is False or not schema:
        return schema
    schema = dict(schema)

    def inner(each: Any, names: frozenset[str] = frozenset()) -> Any:
        return settled(each, account, dropped=dropped, known=names)

    outer, known = known, known | _names(schema)
    for keyword in ("items", "propertyNames", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            schema[keyword] = inner(schema[keyword])
    if "properties" in schema:
        left = {name for name, each in schema["properties"].items() if isinstance(each, dict) and each.get(dropped)}
        if left:
            account.rules.add("read_only_dropped")
            known -= left
            schema["required"] = [name for name in schema.get("required", ()) if name not in left]
        schema["properties"] = {name: inner(each) for name, each in schema["properties"].items() if name not in left}
    schema = _with_names(schema, account, known)
    if schema is False:
        return False
    _settle_lists(schema, account)
    _settle_choices(schema, account)
    _settle_limits(schema, account)
    if _CONTRADICTION in account.rules:
        account.rules.remove(_CONTRADICTION)
        return False
    _settle_default(schema, account)
    if "anyOf" in schema:
        schema["anyOf"] = [inner(each, known) for each in schema["anyOf"]]
        return _alternatives(schema, account, dropped, outer)
    return schema


def _names(schema: Any) -> frozenset[str]:
    """Return the names of the properties of a schema and of its alternatives."""
    if not isinstance(schema, dict):
        return frozenset()
    return frozenset(schema.get("properties", {})).union(*map(_names, schema.get("anyOf", ())))


def _with_names(schema: JsonObject, account: Account, known: frozenset[str]) -> Any:
    """Return an object schema whose `required` names what there is, without properties that no value satisfies."""
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    impossible = [name for name, each in properties.items() if each is False]
    required = schema.pop("required", [])
    if set(impossible) & set(required):
        return False
    if impossible:
        account.rules.add("impossible_dropped")
        properties = {name: each for name, each in properties.items() if each is not False}
    is_open = others is True or isinstance(others, dict)
    added: JsonObject = (
        {name: {} if others is True else others for name in required if name not in known} if is_open else {}
    )
    if lost := [name for name in required if name not in known and name not in added]:
        account.rules.add("required_mended")
        required = [name for name in required if name not in lost]
    if properties or added or "properties" in schema:
        schema["properties"] = {**properties, **added}
    if required:
        schema["required"] = required
    if "propertyNames" in schema:
        names = schema["propertyNames"]
        if names is False or not all(map(Draft202012Validator(names).is_valid, schema.get("properties", {}))):
            account.rules.add("keyword_dropped")
            del schema["propertyNames"]
    if schema.get("maxProperties", math.inf) < len(required) or (
        others is False and schema.get("minProperties", 0) > len(schema.get("properties", {}))
    ):
        if account.is_trial and schema.get("type") == "object":
            return False
        account.rules.add("bounds_mended")
        schema.pop("maxProperties", None)
        schema.pop("minProperties", None)
    return schema


def _settle_lists(schema: JsonObject, account: Account) -> None:
    if "array" in as_list(schema.get("type")) and "items" not in schema and "prefixItems" not in schema:
        account.rules.add("items_mended")
        schema["items"] = {}
    first = schema.get("prefixItems", [])
    if False in first:
        account.rules.add("impossible_dropped")
        length = first.index(False)
        schema.pop("items", None)
        schema.pop("prefixItems")
        schema |= {"prefixItems": first[:length]} if length else {"items": {}}
        schema["maxItems"] = min(schema.get("maxItems", length), length)
    elif schema.get("items") is False:
        schema["items"] = {}
        schema["maxItems"] = min(schema.get("maxItems", len(first)), len(first))
    items = schema.get("items")
    if schema.get("uniqueItems") and isinstance(items, dict) and not first:
        few = (
            len(items["enum"])
            if "enum" in items
            else 1
            if "const" in items
            else _FEW.get(str(items.get("type")), math.inf)
        )
        if schema.get("minItems", 0) > few:
            _gives_way("bounds_mended", schema, _LISTS, account)
            del schema["minItems"]


def _settle_choices(schema: JsonObject, account: Account) -> None:
    """Bring the choices of a schema and its type together; where none fits the other, the type gives way."""
    if "const" in schema and schema.pop("enum", [schema["const"]]) != [schema["const"]]:
        account.rules.add("enum_mended")
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if not values:
        return
    if types := as_list(schema.get("type", [])):
        if account.is_trial:
            if not any(_is_of(value, kind) for value in values for kind in types):
                account.rules.add(_CONTRADICTION)
        elif types == ["string"] and all(map(is_number, values)):
            account.rules.add("number_typed_as_string")
            schema["type"] = "integer" if all(isinstance(value, int) for value in values) else "number"
        else:
            fitting = [found for value in values if (found := _converted(value, types)) is not _LEFT_OUT]
            if not fitting:
                del schema["type"]
            elif "const" in schema:
                schema["const"] = fitting[0]
            else:
                schema["enum"] = list({canonical_json(each): each for each in fitting}.values())
            if not fitting or [*map(canonical_json, fitting)] != [*map(canonical_json, values)]:
                account.rules.add("enum_mended")
    limits = {keyword: schema[keyword] for keyword in _LIMITS if keyword in schema}
    if limits:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        valid = [value for value in values if Draft202012Validator(limits).is_valid(value)]
        if not valid:
            _gives_way("bounds_mended", {"type": []}, _LISTS, account)
            for keyword in limits:
                del schema[keyword]


def _settle_limits(schema: JsonObject, account: Account) -> None:
    """Drop limits that are for another type, or that nothing is between."""
    stated = [schema[keyword] for keyword in sorted(BOUNDS) if keyword in schema]
    if schema.get("type") == "string" and stated and not {"enum", "const"} & schema.keys() and not account.is_trial:
        account.rules.add("number_typed_as_string")
        schema["type"] = "integer" if all(isinstance(value, int) for value in stated) else "number"
    contradicting = [
        (pair, kinds) for pair, kinds in _PAIRS.items() if schema.get(pair[0], 0) > schema.get(pair[1], math.inf)
    ]
    if stated and _NUMBERS & set(as_list(schema.get("type", "number"))) and not _has_number(schema):
        contradicting.append((tuple(sorted(BOUNDS)), _NUMBERS))
    if "pattern" in schema and {"minLength", "maxLength"} & schema.keys():
        shortest, longest = _widths(schema["pattern"])
        if shortest > schema.get("maxLength", math.inf) or longest < schema.get("minLength", 0):
            contradicting.append((("minLength", "maxLength"), _TEXTS))
    for keywords, kinds in contradicting:
        _gives_way("bounds_mended", schema, kinds, account)
        for keyword in keywords:
            schema.pop(keyword, None)


def _has_number(schema: JsonObject) -> bool:
    """Say whether there is a number within the limits of a schema."""
    low, high = (
        [(Fraction(str(schema[name])), name.startswith("exclusive")) for name in names if name in schema]
        for names in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    step = Fraction(str(schema["multipleOf"])) if "multipleOf" in schema else None
    if "number" not in as_list(schema.get("type", "number")):
        step = Fraction((step or Fraction(1)).numerator)
    if not low or not high:
        return True
    (least, is_above), (most, is_below) = max(low), min(high, key=lambda limit: (limit[0], not limit[1]))
    if step is None:
        return least < most or (least == most and not is_above and not is_below)
    first = math.ceil(least / step) * step
    first += step if is_above and first == least else 0
    return first < most or (first == most and not is_below)


def _widths(pattern: str) -> tuple[float, float]:
    """Return the length of the shortest text that a pattern matches, and of the longest if it matches whole texts."""
    parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
    shortest, longest = parsed.getwidth()
    ends = [str(parsed[place]) for place in (0, -1)] if len(parsed) else []
    is_whole = bool(ends) and "AT_BEGINNING" in ends[0] and "AT_END" in ends[1]
    return shortest, longest if is_whole else math.inf


def _settle_default(schema: JsonObject, account: Account) -> None:
    types = as_list(schema.get("type", []))
    if "default" not in schema or not types:
        return
    if types == ["string"] and is_number(schema["default"]) and "enum" not in schema:
        account.rules.add("number_typed_as_string")
        schema["type"] = "integer" if isinstance(schema["default"], int) else "number"
        return
    found = _converted(schema["default"], types)
    if found is _LEFT_OUT:
        del schema["default"]
        account.rules.add("default_dropped")
    elif canonical_json(found) != canonical_json(schema["default"]):
        schema["default"] = found
        account.rules.add("default_mended")


def _converted(value: JsonValue, types: list[JsonValue]) -> Any:
    """Return a value that is of one of some types, or spells one that is; else `_LEFT_OUT`."""
    if any(_is_of(value, kind) for kind in types):
        return value
    for kind in types:
        found: Any = _LEFT_OUT
        if (
            isinstance(value, str)
            and kind in ("integer", "number")
            and re.fullmatch(r"[+-]?\d{1,18}(\.\d{1,18})?", value)
        ):
            found = float(value) if "." in value else int(value)
        elif isinstance(value, str) and kind == "boolean":
            found = {"true": True, "false": False}.get(value.lower(), _LEFT_OUT)
        elif isinstance(value, str) and kind in ("array", "object"):
            found = parsed_text(value)
        elif kind == "string" and (is_number(value) or isinstance(value, bool)):
            found = canonical_json(value)
        if found is not _LEFT_OUT and _is_of(found, kind):
            return found
    return _LEFT_OUT


def _is_of(value: JsonValue, kind: JsonValue) -> bool:
    if kind in ("integer", "number"):
        return is_number(value) and (kind == "number" or float(value) == int(value))
    return isinstance(value, _OF_TYPE[str(kind)])


def _alternatives(schema: JsonObject, account: Account, dropped: str, known: frozenset[str]) -> Any:
    """Return a schema with those of its alternatives that can hold beside it."""
    base = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
    is_bare = not base.keys() - ANNOTATIONS
    possible = [each for each in schema["anyOf"] if each is not False]
    possible = [each for each in possible if is_bare or _is_possible(both(base, each, account), account, dropped)]
    if not possible:
        return False
    if len(possible) == 1:
        return settled(both(base, possible[0], account), account, dropped=dropped, known=known)
    if len(possible) < len(schema["anyOf"]):  # which may have had names that the base requires
        account.rules.add("impossible_dropped")
        return settled({**base, "anyOf": possible}, account, dropped=dropped, known=known)
    # An object that forbids further names forbids those of its alternatives, and the other way round.
    is_closed = "additionalProperties" in base and any(map(_names, possible))
    if is_closed or (_names(base) and any("additionalProperties" in each for each in possible)):
        notes = {keyword: value for keyword, value in base.items() if keyword in ANNOTATIONS}
        held = {keyword: value for keyword, value in base.items() if keyword not in notes}
        whole = [settled(both(held, each, account), account, dropped=dropped) for each in possible]
        return {"anyOf": whole, **notes}
    return {**base, "anyOf": possible}


def _is_possible(schema: Any, account: Account, dropped: str) -> bool:
    """Say whether some value satisfies a schema as it is, and nothing has to give way for it."""
    trial = Account(steps=account.steps, is_trial=True)
    is_possible = settled(schema, trial, dropped=dropped) is not False
    account.steps = trial.steps
    return is_possible
