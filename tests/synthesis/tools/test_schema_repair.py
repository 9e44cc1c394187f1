# ruff: noqa: E501 - a row of a table is one case
"""Parameters found in the wild become valid draft 2020-12 schemas, or are refused with a reason."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from synthesis.tools.schema_composer import composed_parameters
from synthesis.tools.schema_repair import SchemaUnconvertible

KEYWORDS = [
    "type", "properties", "required", "items", "enum", "default", "anyOf", "oneOf", "allOf", "$ref", "minimum",
    "exclusiveMinimum", "maxLength", "pattern", "format", "additionalProperties", "description", "nullable", "title",
    "$defs", "const", "not", "prefixItems", "uniqueItems", "multipleOf", "examples", "patternProperties", "if",
]  # fmt: skip
scalars = st.none() | st.booleans() | st.integers(-9, 99) | st.floats(allow_nan=False, allow_infinity=False)
scalars |= st.text(max_size=8) | st.sampled_from(
    ["string", "any", "int", "object", "array", "#/properties/a", "#", "["]
)
schema_like = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYWORDS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(schema_like)
@settings(max_examples=300, deadline=None)
def test_any_value_becomes_a_valid_object_schema_or_is_refused(found):
    try:
        schema, _ = composed_parameters(found)
    except SchemaUnconvertible:
        return
    Draft202012Validator.check_schema(schema)
    assert composed_parameters(schema) == (schema, ())  # mending a mended schema changes nothing
    assert schema["type"] == "object"
    assert set(schema.get("required", ())) <= set(schema["properties"])
    assert "$ref" not in json.dumps(schema["properties"]).replace('"$ref": {', "")


@pytest.mark.parametrize(
    ("found", "property_schema", "rule"),
    [
        ({"type": "any"}, {}, "type_mapped"),
        ({"type": ["str", "null", "string"]}, {"type": ["string", "null"]}, "type_mapped"),
        ({"type": "List[int]"}, {"type": "array", "items": {"type": "integer"}}, "type_mapped"),
        ({"type": "Union[List[int], str]"}, {"type": ["array", "string"], "items": {"type": "integer"}}, "type_mapped"),
        ({"type": "int" + "[]" * 3000}, {}, "type_mapped"),
        ({"type": "int", "default": "3"}, {"type": "integer", "default": 3}, "default_mended"),
        ({"type": "boolean", "default": "maybe"}, {"type": "boolean"}, "default_mended"),
        ({"type": "string", "enum": [256, 512]}, {"type": "integer", "enum": [256, 512]}, "number_typed_as_string"),
        ({"type": "integer", "enum": ["1", "2"]}, {"type": "integer", "enum": [1, 2]}, "enum_mended"),
        ({"type": "object", "const": "x"}, {"const": "x"}, "enum_mended"),
        ({"const": "c", "enum": ["a", "b"]}, {"const": "c"}, "enum_mended"),
        ({"enum": ["ab", "cd"], "maxLength": 1}, {"enum": ["ab", "cd"]}, "bounds_mended"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, {"type": "integer"}, "bounds_mended"),
        ({"type": "integer", "exclusiveMinimum": 4, "maximum": 4.5}, {"type": "integer"}, "bounds_mended"),
        ({"type": "number", "minimum": 1, "maximum": 2, "multipleOf": 5}, {"type": "number"}, "bounds_mended"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, {"type": "string"}, "bounds_mended"),
        ({"type": "object", "properties": {"x": {}}, "required": ["x", "y"], "additionalProperties": False}, {"type": "object", "properties": {"x": {}}, "required": ["x"], "additionalProperties": False}, "required_mended"),
        ({"type": "string", "not": {"const": "x"}}, {"type": "string"}, "keyword_dropped"),
        ({"anyOf": [{"not": {}}, {"type": "string"}]}, {"type": "string"}, "impossible_dropped"),
        ({"patternProperties": {"^x-": {"type": "string"}}}, {"additionalProperties": True}, "keyword_dropped"),
        ({"schema": {"type": "string"}, "description": "d"}, {"type": "string", "description": "d"}, "nested_schema_unwrapped"),
        ({"type": "array"}, {"type": "array", "items": {}}, "items_mended"),
        ({"type": "array", "items": [{"type": "string"}]}, {"type": "array", "prefixItems": [{"type": "string"}]}, "items_mended"),
        ({"type": "array", "prefixItems": [{"type": "string", "enum": [1]}]}, {"type": "array", "prefixItems": [{"type": "integer", "enum": [1]}]}, "number_typed_as_string"),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, {"type": "integer", "minimum": 3, "exclusiveMinimum": 3}, "bounds_mended"),
        ({"type": "string", "default": None}, {"type": "string"}, "default_mended"),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}, "nullable_converted"),
        ({"$ref": "#/nowhere"}, {}, "reference_unresolved"),
        ({"enum": ["a", "a"]}, {"enum": ["a"]}, "enum_mended"),
        ({"type": "string", "x-order": 3}, {"type": "string"}, "keyword_dropped"),
        ("string", {"type": "string"}, "not_a_schema"),
        ({"type": "string", "default": 1000}, {"type": "integer", "default": 1000}, "number_typed_as_string"),
        ({"type": "string", "minimum": 0.5}, {"type": "number", "minimum": 0.5}, "number_typed_as_string"),
        ({"$ref": "#/anyOf/²"}, {}, "reference_unresolved"),
        ({"$ref": f"#/anyOf/{'9' * 5000}"}, {}, "reference_unresolved"),
        ({"type": "string", "minLength": float("inf")}, {"type": "string"}, "keyword_dropped"),
        ({"type": "number", "maximum": float("inf")}, {"type": "number"}, "bounds_mended"),
        ({"const": [float("inf")]}, {}, "keyword_dropped"),
        ({"enum": [1, float("inf"), [float("nan")]]}, {"enum": [1]}, "enum_mended"),
        ({"type": "string", "pattern": "(" * 500 + ")" * 500}, {"type": "string"}, "keyword_dropped"),
        ({"type": "string", "pattern": "a{99999999999}"}, {"type": "string"}, "keyword_dropped"),
    ],
)  # fmt: skip
def test_each_rule_mends_its_fault(found, property_schema, rule):
    schema, rules = composed_parameters({"properties": {"a": found}, "anyOf": [{"properties": {}}]})
    assert rule in rules
    assert schema["properties"]["a"] == property_schema


def test_a_reference_into_itself_is_cut_and_a_shared_one_is_copied():
    found = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}, "leaf": {"$ref": "#/$defs/name"}},
        "$defs": {
            "node": {"type": "object", "properties": {"child": {"$ref": "#/$defs/node"}}},
            "name": {"type": "string"},
        },
    }
    schema, rules = composed_parameters(found)
    assert schema["properties"]["tree"]["properties"]["child"] == {}
    assert schema["properties"]["leaf"] == {"type": "string"}
    assert rules == ("reference_cycle_cut",)


def test_references_that_multiply_are_refused_rather_than_unfolded():
    layers = {
        f"l{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/l{n + 1}"} for k in "abcdefgh"}}
        for n in range(12)
    }
    found = {"type": "object", "properties": {"a": {"$ref": "#/$defs/l0"}}, "$defs": layers}
    with pytest.raises(SchemaUnconvertible, match="more than"):
        composed_parameters(found)


def test_a_whole_schema_nested_as_its_own_properties_is_unwrapped():
    inner = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema, rules = composed_parameters({"type": "object", "properties": inner})
    assert schema == inner
    assert "nested_schema_unwrapped" in rules


def test_a_text_with_half_of_a_character_is_refused():
    found = {"type": "object", "properties": {"a": {"type": "string", "description": "\ud800"}}}
    with pytest.raises(SchemaUnconvertible, match="not JSON that can be kept"):
        composed_parameters(found)


@pytest.mark.parametrize(
    ("pattern", "is_kept"),
    [
        ("^(x+)+$", False), (r"^(\w+\s?)+$", False), (r"^(?:[a-z\]]*-?)*$", False), (r"^([a-z]+){2,}$", False),
        ("^[a-z0-9]+(?:-[a-z0-9]+)*$", True), ("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", True),
        (r"^(\d+,)*\d+$", True), (r"^\(x+\)+$", True), ("^([A-Z][a-z]?)+$", True),
    ],
)  # fmt: skip
def test_a_pattern_that_takes_exponential_time_is_dropped(pattern, is_kept):
    found = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    schema, rules = composed_parameters(found)
    assert ("pattern" in schema["properties"]["a"], rules) == (is_kept, () if is_kept else ("keyword_dropped",))
    assert Draft202012Validator(schema).is_valid({"a": "x" * 60 + "!"}) is not is_kept


def test_to_look_for_such_patterns_takes_no_such_time():
    for text in ("(" * 3000, "(" + "x*" * 3000, "(" + "[a]?" * 3000 + "x+", "([" + "\\]" * 3000, "(x+" + "a?" * 3000):
        composed_parameters({"type": "object", "properties": {"a": {"type": "string", "pattern": text}}})
