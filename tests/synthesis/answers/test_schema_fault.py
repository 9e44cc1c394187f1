"""A value is right by its schema or has a named fault; no reference is fetched."""

from __future__ import annotations

import urllib.request

import pytest

from synthesis.answers.schema_fault import schema_fault


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "str"}}}, {"properties": {"a": {"$ref": "#/definitions/Owner"}}},
        {"properties": {"a": {"type": "string", "pattern": "^\\p{L}+$"}}},
        {"properties": {"a": {"type": "string", "pattern": "(" * 500 + ")" * 500}}},
        {"properties": {"a": {"minLength": "5"}}}, {"properties": {"a": {"pattern": 5}}},
        {"properties": {"a": {"enum": 5}}}, {"properties": {"a": {"maximum": float("inf")}}},
        {"properties": [{"name": "a"}]}, {"properties": {"a": "string"}}, {"required": True}, {"required": None},
        {"required": 1}, {"required": [["a"]]}, {"anyOf": {}}, {"$id": 5}, {"$ref": 5}, {"$ref": "#"},
        {"$dynamicRef": "#nope"},
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_is_a_fault(schema):
    assert (schema_fault(schema, {"a": "x"}, "arguments") or "").startswith("arguments: ")


@pytest.mark.filterwarnings("ignore:Automatically retrieving")  # which jsonschema says, and does it
@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x", "file:///etc/hostname"])
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_nothing_is_fetched_for_a_schema(address, keyword, monkeypatch):
    opened: list[object] = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *asked, **_: opened.append(asked))
    assert schema_fault({"properties": {"a": {keyword: address}}}, {"a": 1}, "arguments") is not None
    assert opened == []
