"""One plain schema of one that is composed: references, `allOf`, forms of a call.

    found schema ─► keywords made plain (schema_repair) ─► parts merged (here) ─► contradictions (schema_contradictions)

A plain schema has no `$ref`, `allOf` and `oneOf`. It accepts each value that the found one accepts, if objects have
their form's names alone. Parts of `allOf` and keywords beside a `$ref` hold at once. Forms of a call at the root
become one object: a parameter takes the values of each form that has it, and is required if each form requires it.
Deeper, `anyOf` stays. `False` stands for a schema that nothing satisfies.

Decided: docs/decisions/tools.md, “A tool whose parameters are unknown is not a tool without parameters”.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
    composer = _Composer(found if document is None else document, account)
    forms = list(_forms(composer.schema(found, (), 0), account))
    if len(forms) > 1:
        account.rules.add("root_alternatives_merged")
    form = one_form(forms)
    if form is False and any(forms):  # a value that is no object
        form = {"type": "null"}
    schema = settled(form, account, dropped="readOnly")
    if schema is False:
        raise SchemaUnconvertible("no call satisfies it")
    if schema.get("type") != "object":
        account.rules.add("root_made_object")
        schema = schema if "object" in as_list(schema.get("type", "object")) else {}
    properties = schema.get("properties", {})
    kept = {key: schema[key] for key in ("required", "description", "additionalProperties") if key in schema}
    if schema.keys() - {"type", "properties", *kept, *ANNOTATIONS}:
        account.rules.add("keyword_dropped")
    if note := _said(forms, properties):
        kept["description"] = f"{schema.get('description', '')} {note}".strip()
    return _finished({"type": "object", "properties": properties, **kept}, account)


def _finished(schema: JsonObject, account: Account) -> tuple[JsonObject, tuple[str, ...]]:
    if fault := schema_error(schema):
        raise SchemaUnconvertible(fault)
    return schema, tuple(sorted(account.rules))


def composed_value(
    found: JsonValue, document: JsonValue = None, *, dropped: str = "writeOnly"
) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a plain schema of any value, and the rules that were needed; `dropped` properties are no part of it.

    Raises:
        SchemaUnconvertible: as `composed_parameters`.
    """
    account = Account()
    composer = _Composer(found if document is None else document, account)
    schema = settled(composer.schema(found, (), 0), account, dropped=dropped)
    if schema is False:
        raise SchemaUnconvertible("no value satisfies it")
    return _finished(schema, account)


def composed_body(found: JsonValue, document: JsonValue) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a plain schema of a request's body, one object if each of its forms is one; raise as above."""
    schema, rules = composed_value(found, document, dropped="readOnly")
    if _is_object(schema):
        whole, needed = composed_parameters(found, document)
        schema, rules = (whole, needed) if whole["properties"] else (schema, rules)
    return schema, rules


def _is_object(schema: JsonObject) -> bool:
    if "type" in schema or "properties" in schema:
        return schema.get("type", "object") == "object"
    return "anyOf" in schema and all(map(_is_object, schema["anyOf"]))


def _said(forms: Sequence[Any], properties: JsonObject) -> str:
    """Return the parameters that each form of a call must have, if they differ, for a model to read.

    >>> a, b = {"properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["b", "c"]}
    >>> _said([a, b], {"a": {}, "b": {}, "c": {}})
    '{a: 1} | {b, c}'
    """
    said: dict[str, None] = {}
    for form in (form for form in forms if form is not False and "object" in as_list(form.get("type", "object"))):
        needed = [
            (name, form.get("properties", {}).get(name)) for name in form.get("required", ()) if name in properties
        ]
        words = [
            f"{name}: {canonical_json(each['const'])}" if each and "const" in each else name for name, each in needed
        ]
        said[f"{{{', '.join(words)}}}"] = None
    return " | ".join(said) if 1 < len(said) <= _MAX_SAID else ""


def _forms(schema: Any, account: Account) -> Iterator[Any]:
    """Yield each form of a value, without alternatives."""
    if schema is False or "anyOf" not in schema:
        yield schema
        return
    base = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
    for alternative in schema["anyOf"]:
        yield from _forms(both(base, alternative, account), account)


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
        types = as_list(schema.get("type", []))
        if "anyOf" in schema and not types:
            self._account.rules.add("nullable_converted")
            return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
        if types and "null" not in types:
            self._account.rules.add("nullable_converted")
            return {**schema, "type": [*types, "null"]}
        return schema

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
