"""Parameters and keywords that stand at another place than JSON Schema has for them, put there.

Parameters stand in a list, in a text of JSON, or in an object without `properties`. A keyword of the object stands
among its properties. A schema lies in its own `properties`, or in `schema` or `type` of a parameter.
"""

from __future__ import annotations

import json
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.schema_repair import CONDITIONS, READ_APART, SILENT, Account, as_list, says_optional, type_of

_OF_A_SCHEMA: Final = CONDITIONS | READ_APART | SILENT | {
    "properties", "patternProperties", "propertyNames", "items", "prefixItems", "default", "const",
}  # fmt: skip
_SAID_OF_A_PARAMETER: Final = (
    "type",
    "description",
    "enum",
    "const",
    "default",
    "$ref",
    "anyOf",
    "oneOf",
    "allOf",
    "items",
)


def parameters_found(found: JsonValue, account: Account) -> JsonValue:
    """Return parameters as a schema if they are none: a text of JSON, a list of named ones, or named ones alone.

    Without a list `required`, a parameter alone is required if neither its type nor a default says that it is optional.

    >>> parameters_found({"city": {"type": "str"}, "days": {"type": "int, optional"}}, Account())["required"]
    ['city']
    """
    wrapped = parsed_text(found)
    if isinstance(wrapped, dict) and "properties" not in wrapped:  # a function, or the tool of one cloud's API
        inner = (wrapped.get(key) for key in ("json", "schema", "parameters"))
        wrapped = next((each for each in inner if isinstance(each, dict) and each.keys() >= {"properties"}), wrapped)
    if isinstance(wrapped, list):
        wrapped = {"type": "object", "properties": wrapped}
    elif isinstance(wrapped, dict) and ("properties" not in wrapped or _is_parameter(wrapped["properties"])):
        wrapped = _wrapped(wrapped)
    if wrapped != found:
        account.rules.add("parameters_wrapped")
    return wrapped


def _wrapped(found: JsonObject) -> JsonObject:
    """Return an object of parameters as a schema that has them for properties; any other object as it is."""
    keywords: dict[str, Any] = {
        "type": (str, list),
        "required": list,
        "description": str,
        "additionalProperties": (bool, dict),
    }
    beside = {key: found[key] for key, kinds in keywords.items() if key in found and isinstance(found[key], kinds)}
    named = {key: value for key, value in found.items() if key not in beside and _is_parameter(value)}
    if "type" in beside and beside["type"] not in ("object", ["object"], "dict"):
        return found
    is_bare = len(named) == len(found)
    if not is_bare:  # a schema, so words of JSON Schema are meant as such
        named = {key: value for key, value in named.items() if key not in _OF_A_SCHEMA and not key.startswith("x-")}
        named = {key: value for key, value in named.items() if isinstance(value, dict)}
    if not named:
        return found
    needed = [key for key, value in named.items() if not _is_optional(value)] if is_bare else []
    rest = {key: value for key, value in found.items() if key not in named}
    return {**rest, "type": "object", "properties": named, **({"required": needed} if needed else {}), **beside}


def parsed_text(found: JsonValue) -> JsonValue:
    """Return the object or list that a text spells as JSON; anything else as it is."""
    if isinstance(found, str) and found.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            return found
    return found


def _is_parameter(value: JsonValue) -> bool:
    if isinstance(value, str):
        return bool(type_of(value))
    kinds: dict[str, Any] = {"type": (str, list), "description": str, "$ref": str, "items": dict}
    return isinstance(value, dict) and any(
        isinstance(value[key], kinds.get(key, object)) for key in _SAID_OF_A_PARAMETER if key in value
    )


def _is_optional(value: JsonValue) -> bool:
    if isinstance(value, dict) and (
        value.get("optional") is True or value.get("required") is False or "default" in value
    ):
        return True
    said = value.get("type") if isinstance(value, dict) else value
    return isinstance(said, str) and says_optional(said)


def hoisted(found: JsonObject, account: Account) -> JsonObject:
    """Return a schema whose properties are an object of parameters, without keywords that stood one level too deep."""
    for wrapper in ("schema", "type"):
        if isinstance(inner := found.get(wrapper), dict) and _is_parameter(inner):
            account.rules.add("nested_schema_unwrapped")
            found = {**{key: value for key, value in found.items() if key != wrapper}, **inner}
    names = found.get("properties")
    if isinstance(names, list) and names:
        entries = [entry for entry in names if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        account.rules.add("parameters_wrapped")
        names = {each["name"]: {key: value for key, value in each.items() if key != "name"} for each in entries}
        found = {**found, "properties": names}
    if not isinstance(names, dict):
        return found
    has_schemas = any(isinstance(value, dict) for value in names.values())
    inner, needed, kind = names.get("properties"), names.get("required"), names.get("type")
    deep = {"type"} if kind in ("object", ["object"]) else set()
    deep |= {"required"} if isinstance(needed, list | bool) or (isinstance(needed, str) and needed in names) else set()
    deep |= {"additionalProperties"} if isinstance(names.get("additionalProperties"), bool) else set()
    is_whole = isinstance(inner, dict) and ("type" in deep or isinstance(needed, list))
    deep |= {"properties"} if is_whole else set()
    if has_schemas:
        texts = ("$schema", "$id", "title", "description")
        deep |= {key for key in texts if isinstance(names.get(key), str) and not type_of(names[key])}
    if not deep:
        return found
    account.rules.add("nested_schema_unwrapped" if is_whole else "keyword_hoisted")
    kept = {key: value for key, value in names.items() if key not in deep} | (
        inner if isinstance(inner, dict) and is_whole else {}
    )
    stated = found.get("required")
    both = [*(stated if isinstance(stated, list) else []), *(as_list(needed) if not isinstance(needed, bool) else [])]
    lifted = {"required": both} if "required" in deep and both else {}
    lifted |= {key: names[key] for key in ("type", "additionalProperties") if key in deep and key not in found}
    return hoisted({**found, **lifted, "properties": kept}, account)
