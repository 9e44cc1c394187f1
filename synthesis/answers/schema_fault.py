"""Checks a value by a JSON Schema: a call's arguments, or a tool's response."""

from __future__ import annotations

import json
from functools import lru_cache

from jsonschema import Draft202012Validator
from referencing import Registry

from synthesis.records import JsonValue, canonical_json


def schema_fault(schema: JsonValue, value: JsonValue, name: str) -> str | None:
    """Return the first fault of a value by a schema (draft 2020-12); None if the value is valid.

    The fault begins with the place of the wrong part; `name` stands for the whole value there. If the schema itself
    cannot be used, every value has a fault.

    >>> schema_fault({"properties": {"stars": {"type": "integer"}}}, {"stars": "four"}, "response")
    "stars: 'four' is not of type 'integer'"
    >>> schema_fault({"type": "object"}, [], "response")
    "response: [] is not of type 'object'"
    """
    try:
        error = next(_validator(canonical_json(schema)).iter_errors(value), None)
    except Exception as error:  # noqa: BLE001 - errors of unusable schemas have no type in common
        return f"{name}: expected a schema that it can be held against, found one that ends in {type(error).__name__}"
    return None if error is None else f"{'/'.join(map(str, error.path)) or name}: {error.message[:160]}"


@lru_cache(maxsize=8192)  # many calls share the schemas of few tools
def _validator(schema_json: str) -> Draft202012Validator:
    # The registry is empty, since the default one would fetch the addresses in references.
    return Draft202012Validator(json.loads(schema_json), registry=Registry())
