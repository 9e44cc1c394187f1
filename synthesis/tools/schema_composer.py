"""One plain schema of one that is composed: references, `allOf`, forms of a call.

    found schema ─► keywords made plain (schema_repair) ─► parts merged (here) ─► contradictions (schema_contradictions)

A plain schema has no `$ref`, `allOf` and `oneOf`. It accepts each value that the found one accepts, if objects have
their form's names alone. Parts of `allOf` and keywords beside a `$ref` hold at once. Forms of a call at the root
become one object: a parameter takes the values of each form that has it, and is required if each form requires it.
Deeper, `anyOf` stays. `False` stands for a schema that nothing satisfies.

Decided: docs/decisions/tools.md, “One composer writes every schema of a tool, and names what it changed”.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.tools.misplaced_keywords import hoisted, parameters_found
from synthesis.tools.schema_contradictions import settled
from synthesis.tools.schema_merging import ANNOTATIONS, both, one_form
from synthesis.tools.schema_repair import Account, SchemaUnconvertible, as_list, plain_keywords, schema_error, type_of

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
    account = Account()
    found = parameters_found(found, account)
    if not isinstance(found, dict):
        return {"type": "object", "properties": {}}, ("not_a_schema",)
    schema = _settled(found, document, account, dropped="readOnly")
    return _finished(_one_call(schema, account), account)


def composed_value(
    found: JsonValue, document: JsonValue = None, *, dropped: str = "writeOnly"
) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a plain schema of any value, and the rules that were needed; `dropped` properties are no part of it.

    Raises:
        SchemaUnconvertible: as `composed_parameters`.
    """
    account = Account()
    return _finished(_settled(found, document, account, dropped=dropped), account)


def composed_body(found: JsonValue, document: JsonValue) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a plain schema of a request's body, one object if each of its forms is one; raise as above."""
    account = Account()
    schema = _settled(found, document, account, dropped="readOnly")
    if all(form.get("properties") for form in _forms(schema)):
        schema = _one_call(schema, account)
    return _finished(schema, account)


def _settled(found: JsonValue, document: JsonValue, account: Account, *, dropped: str) -> JsonObject:
    composer = _Composer(found if document is None else document, account)
    schema = settled(composer.schema(found, (), 0), account, dropped=dropped)
    if schema is False:
        raise SchemaUnconvertible("nothing satisfies it")
    return dict(schema)


def _finished(schema: JsonObject, account: Account) -> tuple[JsonObject, tuple[str, ...]]:
    if fault := schema_error(schema):
        raise SchemaUnconvertible(fault)
    return schema, tuple(sorted(account.rules))


def _forms(schema: JsonObject) -> list[JsonObject]:
    """Return each form of a settled value, without alternatives."""
    notes = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
    return [{**form, **notes} for each in schema["anyOf"] for form in _forms(each)] if "anyOf" in schema else [schema]


def _one_call(schema: JsonObject, account: Account) -> JsonObject:
    """Return one object with the parameters of each form of a call; forms that are no objects are no calls."""
    if "anyOf" in schema:
        account.rules.add("root_alternatives_merged")
    if schema.get("type") != "object" and "anyOf" not in schema:
        account.rules.add("root_made_object")
    forms = [form for form in _forms(schema) if "object" in as_list(form.get("type", "object"))]
    merged = one_form(forms) if forms else {}
    properties = merged.get("properties", {})
    kept: JsonObject = {
        key: merged[key] for key in ("required", "description", "additionalProperties") if key in merged
    }
    if merged.keys() - {"type", "properties", *kept, *ANNOTATIONS}:
        account.rules.add("keyword_dropped")
    if note := _said(forms):
        kept["description"] = f"{merged.get('description', '')} {note}".strip()
    return {"type": "object", "properties": properties, **kept}


def _said(forms: Sequence[JsonObject]) -> str:
    """Return the parameters that each form of a call must have, if they differ, for a model to read.

    >>> _said([{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}])
    '{a: 1} | {b}'
    """
    said: dict[str, None] = {}
    for form in forms:
        needed = {name: form["properties"][name] for name in form.get("required", ())}
        words = [
            f"{name}: {canonical_json(each['const'])}" if "const" in each else name for name, each in needed.items()
        ]
        said[f"{{{', '.join(words)}}}"] = None
    return " | ".join(said) if 1 < len(said) <= _MAX_SAID else ""


class _Composer:
    """One pass over one document."""

    def __init__(self, document: JsonValue, account: Account):
        self._document = document
        self._account = account

    def schema(self, found: JsonValue, references: tuple[str, ...], depth: int) -> Any:
        """Compose one schema; `references` are the `$ref`s that led here."""
        self._account.read(depth)
        if isinstance(found, bool):
            return {} if found else False
        if not isinstance(found, dict):
            self._account.rules.add("not_a_schema")
            return (type_of(found) or {"description": found}) if isinstance(found, str) and found else {}
        if found.get("not") in ({}, True):
            return False

        def inner(each: JsonValue) -> Any:
            return self.schema(each, references, depth + 1)

        found = hoisted(found, self._account)
        whole = plain_keywords(found, inner, self._account)
        parts: list[Any] = []
        if "$ref" in found:
            parts.append(self._target(found["$ref"], references, depth))
        for keyword in ("allOf", "anyOf", "oneOf"):
            alternatives = found.get(keyword)
            if isinstance(alternatives, list) and alternatives:
                each = [inner(one) for one in alternatives]
                parts += each if keyword == "allOf" else [self._one_of(each, keyword)]
            elif keyword in found:
                self._account.rules.add("keyword_dropped")
        for part in parts:
            whole = both(whole, part, self._account)
        return self._nullable(whole) if found.get("nullable") is True and whole is not False else whole

    def _one_of(self, alternatives: list[Any], keyword: str) -> Any:
        possible = [each for each in alternatives if each is not False]
        if len(possible) < len(alternatives):
            self._account.rules.add("impossible_dropped")
        if keyword == "oneOf" and len(possible) > 1:
            self._account.rules.add("alternatives_opened")
        return {"anyOf": possible} if len(possible) > 1 else possible[0] if possible else False

    def _nullable(self, schema: JsonObject) -> JsonObject:
        if "null" in as_list(schema.get("type", "null")) and ("type" in schema or "anyOf" not in schema):
            return schema
        self._account.rules.add("nullable_converted")
        if "type" in schema:
            return {**schema, "type": [*as_list(schema["type"]), "null"]}
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}

    def _target(self, reference: JsonValue, references: tuple[str, ...], depth: int) -> Any:
        target = pointed_to(reference, self._document) if isinstance(reference, str) else None
        if reference in references:  # a type that contains itself, e.g. a tree's node
            self._account.rules.add("reference_cycle_cut")
        elif target is None:
            self._account.rules.add("reference_unresolved")
        else:
            return self.schema(target, (*references, str(reference)), depth + 1)
        return {}


def pointed_to(reference: str, document: JsonValue) -> JsonValue:
    """Return the part of a document that a reference such as `#/$defs/city` points to, or None.

    >>> pointed_to("#/$defs/Page%5Bint%5D", {"$defs": {"Page[int]": {"type": "object"}}})
    {'type': 'object'}
    """
    node = document if reference.startswith("#") else None
    for part in filter(None, reference[1:].split("/")):
        node = _inside(node, part)
    return node


def _inside(node: JsonValue, part: str) -> JsonValue:
    for spelt in (part, unquote(part)):  # percent-encoded by the standard, as it is by many programs
        name = spelt.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            return node[name]
        if isinstance(node, list) and re.fullmatch("[0-9]{1,9}", name) and int(name) < len(node):
            return node[int(name)]
    return None
