"""One plain schema of one that is composed: references, `allOf`, forms of a call.

    found schema ─► keywords made plain (schema_repair) ─► parts merged, contradictions settled (plain_schemas)

A plain schema has no `$ref`, `allOf` and `oneOf`. It accepts each value that the found one accepts, if objects have
their form's names alone. Parts of `allOf` and keywords beside a `$ref` hold at once. Forms of a call at the root
become one object: a parameter takes the values of each form that has it, and is required if each form requires it.
Deeper, `anyOf` stays. `False` stands for a schema that nothing satisfies.

Decided: docs/decisions/tools.md, “One composer writes every schema of a tool, and names what it changed”.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.tools.misplaced_keywords import hoisted, parameters_found
from synthesis.tools.plain_schemas import ANNOTATIONS, both, one_form, settled
from synthesis.tools.schema_repair import (
    MAX_SCHEMA_DEPTH,
    STEPS_OF_A_SCHEMA,
    Account,
    SchemaUnconvertible,
    as_list,
    plain_keywords,
    schema_error,
    type_of,
)

_MAX_SAID: Final = 12
"""Maximum number of forms of a call that its description lists."""


def composed_parameters(found: JsonValue, document: JsonValue = None) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a plain schema of a tool's parameters and the rules that were needed to get there, sorted.

    `document` is the target of references, if that is not the schema itself (an OpenAPI specification).

    Raises:
        SchemaUnconvertible: it is too large or too deep, no call satisfies it, or it is not valid after every rule.

    >>> composed_parameters({"properties": {"n": {"type": "int"}}, "required": ["n", "gone"]})[0]
    {'type': 'object', 'properties': {'n': {'type': 'integer'}}, 'required': ['n']}
    >>> composed_parameters(None)
    ({'type': 'object', 'properties': {}}, ('not_a_schema',))
    """
    account = Account(document)
    found = parameters_found(found, account)
    if not isinstance(found, dict):
        return {"type": "object", "properties": {}}, ("not_a_schema",)
    return _plain(found, account, "readOnly", lambda forms: True)


def composed_value(
    found: JsonValue, document: JsonValue = None, *, dropped: str = "writeOnly"
) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a plain schema of any value, and the rules that were needed; `dropped` properties are no part of it.

    Raises:
        SchemaUnconvertible: as `composed_parameters`.
    """
    return _plain(found, Account(document), dropped, lambda forms: False)


def composed_body(found: JsonValue, document: JsonValue) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a plain schema of a request's body, one object if each of its forms is one; raise as above."""
    return _plain(found, Account(document), "readOnly", lambda forms: all(form.get("properties") for form in forms))


def _plain(
    found: JsonValue, account: Account, dropped: str, is_call: Callable[[list[JsonObject]], bool]
) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a plain schema, one object if its forms are those of a call, and the rules that were needed."""
    account.document = found if account.document is None else account.document
    schema = settled(_composed(found, account), account, dropped=dropped)
    if schema is False:
        raise SchemaUnconvertible("nothing satisfies it")
    if is_call(_forms(schema)):
        schema = _one_call(schema, account)
    if fault := schema_error(schema):
        raise SchemaUnconvertible(fault)
    return dict(schema), tuple(sorted(account.rules))


def _forms(schema: JsonObject) -> list[JsonObject]:
    """Return each form of a settled value, without alternatives."""
    notes = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
    return [{**form, **notes} for each in schema["anyOf"] for form in _forms(each)] if "anyOf" in schema else [schema]


def _one_call(schema: JsonObject, account: Account) -> JsonObject:
    """Return one object with the parameters of each form of a call; forms that are no objects are no calls."""
    if "anyOf" in schema:
        account.rules.add("root_alternatives_merged")
    elif schema.get("type") != "object":
        account.rules.add("root_made_object")
    forms = [form for form in _forms(schema) if "object" in as_list(form.get("type", "object"))]
    merged = one_form(forms) if forms else {}
    names = ("required", "description", "additionalProperties")
    kept: JsonObject = {name: merged[name] for name in names if name in merged}
    if merged.keys() - {"type", "properties", *kept, *ANNOTATIONS}:
        account.rules.add("keyword_dropped")
    if note := _said(forms):
        kept["description"] = f"{merged.get('description', '')} {note}".strip()
    return {"type": "object", "properties": merged.get("properties", {}), **kept}


def _said(forms: Sequence[JsonObject]) -> str:
    """Return the parameters that each form of a call must have, if they differ, as `{a: 1} | {b}`."""
    said: dict[str, None] = {}
    for form in forms:
        needed = {name: form["properties"][name] for name in form.get("required", ())}
        words = [
            f"{name}: {canonical_json(each['const'])}" if "const" in each else name for name, each in needed.items()
        ]
        said[f"{{{', '.join(words)}}}"] = None
    return " | ".join(said) if 1 < len(said) <= _MAX_SAID else ""


def _composed(found: JsonValue, account: Account, references: tuple[JsonValue, ...] = (), depth: int = 0) -> Any:
    """Compose one schema; `references` are the `$ref`s that led here."""
    account.step(STEPS_OF_A_SCHEMA)
    if depth > MAX_SCHEMA_DEPTH:
        raise SchemaUnconvertible(f"schemas more than {MAX_SCHEMA_DEPTH} deep")
    if isinstance(found, bool):
        return {} if found else False
    if not isinstance(found, dict):
        account.rules.add("not_a_schema")
        return (type_of(found) or {"description": found}) if isinstance(found, str) and found else {}
    if found.get("not") in ({}, True):
        return False

    def inner(each: JsonValue) -> Any:
        return _composed(each, account, references, depth + 1)

    found = hoisted(found, account)
    whole = plain_keywords(found, inner, account)
    parts: list[Any] = []
    if "$ref" in found:
        reference = found["$ref"]
        target = pointed_to(reference, account.document)
        if reference in references:  # a type that contains itself, e.g. a tree's node
            account.rules.add("reference_cycle_cut")
        elif target is None:
            account.rules.add("reference_unresolved")
        else:
            parts.append(_composed(target, account, (*references, reference), depth + 1))
    for keyword in ("allOf", "anyOf", "oneOf"):
        alternatives = found.get(keyword)
        if isinstance(alternatives, list) and alternatives:
            each = [inner(one) for one in alternatives]
            parts += each if keyword == "allOf" else [_one_of(each, keyword, account)]
        elif keyword in found:
            account.rules.add("keyword_dropped")
    for part in parts:
        whole = both(whole, part, account)
    return _nullable(whole, account) if found.get("nullable") is True and whole is not False else whole


def _one_of(alternatives: list[Any], keyword: str, account: Account) -> Any:
    possible = [each for each in alternatives if each is not False]
    if len(possible) < len(alternatives):
        account.rules.add("impossible_dropped")
    if keyword == "oneOf" and len(possible) > 1:
        account.rules.add("alternatives_opened")
    return {"anyOf": possible} if len(possible) > 1 else possible[0] if possible else False


def _nullable(schema: JsonObject, account: Account) -> JsonObject:
    types = as_list(schema["type"]) if "type" in schema else []
    if "null" in types or not (types or "anyOf" in schema):
        return schema
    account.rules.add("nullable_converted")
    return {**schema, **({"type": [*types, "null"]} if types else {"anyOf": [*schema["anyOf"], {"type": "null"}]})}


def pointed_to(reference: JsonValue, document: JsonValue) -> JsonValue:
    """Return the part of a document that a reference such as `#/$defs/city` points to, or None.

    >>> pointed_to("#/$defs/Page%5Bint%5D", {"$defs": {"Page[int]": {"type": "object"}}})
    {'type': 'object'}
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for part in filter(None, reference[1:].split("/")):
        # Percent-encoded by the standard, as it is by many programs.
        names = [spelt.replace("~1", "/").replace("~0", "~") for spelt in (part, unquote(part))]
        holder = {str(place): each for place, each in enumerate(document)} if isinstance(document, list) else document
        document = next((holder[name] for name in names if isinstance(holder, dict) and name in holder), None)
    return document
