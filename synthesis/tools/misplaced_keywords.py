"""Parameters and keywords that stand at another place than JSON Schema has for them, put there.

Parameters stand in a list, in a text of JSON, or in an object without `properties`. A keyword of the object stands
among its properties. A schema lies in its own `properties`, or in `schema` or `type` of a parameter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.schema_repair import OPTIONAL, READ_APART, SILENT, Account, as_list, type_of

_OF_A_SCHEMA: Final = READ_APART | SILENT | {
    "properties", "patternProperties", "propertyNames", "additionalProperties", "items", "prefixItems", "default",
    "const", "description", "not", "if", "then", "else", "contains", "dependentSchemas", "dependencies",
}  # fmt: skip
_SAID_OF_A_PARAMETER: Final[dict[str, Any]] = {
    "type": (str, list), "description": str, "$ref": str, "items": dict,
    **dict.fromkeys(("enum", "const", "default", "anyOf", "oneOf", "allOf"), object),
}  # fmt: skip
"""Keywords by which a parameter is told, and the kinds of their values."""


def parameters_found(found: JsonValue, account: Account) -> JsonValue:
    """Return parameters as a schema if they are none: a text of JSON, a list of named ones, or named ones alone.

    Without a list `required`, a parameter alone is required if neither its type nor a default says that it is optional.

    >>> parameters_found({"city": {"type": "str"}, "days": {"type": "int, optional"}}, Account())["required"]
    ['city']
    """
    wrapped = parsed_text(found)
    if isinstance(wrapped, list):
        wrapped = {"type": "object", "properties": wrapped}
    elif isinstance(wrapped, dict) and ("properties" not in wrapped or _is_parameter(wrapped["properties"])):
        wrapped = _wrapped(wrapped)
    if wrapped != found:
        account.rules.add("parameters_wrapped")
    return wrapped


def _wrapped(found: JsonObject) -> JsonObject:
    """Return an object of parameters as a schema that has them for properties; any other object as it is."""
    says_more = any(
        isinstance(found.get(keyword), str | list | bool) for keyword in ("type", "description", "additionalProperties")
    )
    if not says_more and all(map(_is_parameter, found.values())):
        needed = [name for name, value in found.items() if not _is_optional(value)]
        return {"type": "object", "properties": found, "required": needed} if found else found
    named = {
        key: value
        for key, value in _without(found, _OF_A_SCHEMA).items()
        if isinstance(value, dict) and _is_parameter(value) and not key.startswith("x-")
    }
    if not named or found.get("type", "object") not in ("object", ["object"], "dict"):
        return found
    return {**_without(found, named), "properties": named}


def parsed_text(found: JsonValue) -> JsonValue:
    """Return the object or list that a text spells as JSON; anything else as it is."""
    if isinstance(found, str) and found.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(found)
    return found


def _is_parameter(value: JsonValue) -> bool:
    if isinstance(value, str):
        return bool(type_of(value))
    return isinstance(value, dict) and any(
        isinstance(value[key], kinds) for key, kinds in _SAID_OF_A_PARAMETER.items() if key in value
    )


def _is_optional(value: JsonValue) -> bool:
    says = value if isinstance(value, dict) else {"type": value}
    kind = says["type"].strip() if isinstance(says.get("type"), str) else ""
    says_so = OPTIONAL.search(kind) or kind.lower().startswith("optional[")
    return bool(says_so) or says.get("optional") is True or says.get("required") is False or "default" in says


def hoisted(found: JsonObject, account: Account) -> JsonObject:
    """Return a schema whose properties are an object of parameters, without keywords that stood one level too deep."""
    for wrapper in ("schema", "type"):
        if isinstance(inner := found.get(wrapper), dict) and _is_parameter(inner):
            account.rules.add("nested_schema_unwrapped")
            found = {**_without(found, [wrapper]), **inner}
    names = found.get("properties")
    if isinstance(names, list) and names:
        account.rules.add("parameters_wrapped")
        entries = [entry for entry in names if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        names = {entry["name"]: _without(entry, ["name"]) for entry in entries}
        found = {**found, "properties": names}
    if not isinstance(names, dict) or not (deep := _words_among(names)):
        return found
    account.rules.add("nested_schema_unwrapped" if "properties" in deep else "keyword_hoisted")
    kept, whole = _without(names, deep), deep.pop("properties", {})
    needed = [each for each in (found.get("required"), deep.pop("required", None)) if each and each is not True]
    lifted = {"required": [name for each in needed for name in as_list(each)]} if needed else {}
    return hoisted({**deep, **found, **lifted, "properties": {**kept, **whole}}, account)


def _without(found: JsonObject, keys: Iterable[str]) -> JsonObject:
    return {key: value for key, value in found.items() if key not in keys}


def _words_among(names: JsonObject) -> JsonObject:
    """Return the keywords of an object that stand among its properties, with their values."""
    inner, needed = names.get("properties"), names.get("required")
    is_object = names.get("type") in ("object", ["object"])
    texts = ("$schema", "$id", "title", "description") if any(isinstance(each, dict) for each in names.values()) else ()
    is_deep = {
        "type": is_object,
        "required": isinstance(needed, list | bool) or (isinstance(needed, str) and needed in names),
        "additionalProperties": isinstance(names.get("additionalProperties"), bool),
        "properties": isinstance(inner, dict) and (is_object or isinstance(needed, list)),
        **{key: isinstance(names.get(key), str) and not type_of(names[key]) for key in texts},
    }
    return {keyword: names[keyword] for keyword, is_one in is_deep.items() if is_one}
