# ruff: noqa: E501 - a row of a table is one case
"""A composed schema becomes a plain one that takes every call which the composed one takes."""

import itertools
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from synthesis.tools.schema_composer import composed_body, composed_parameters
from synthesis.tools.schema_repair import SchemaUnconvertible

NAMES = ["a", "b", "ro"]
POOL = ["", "x", "xy", "xyz", 0, 1, 2, 3, 1.5, True, False, None, [], [1], ["x", "xy"], {}]

LEAVES: dict[str, list[Any]] = {
    "type": ["string", "integer", "number", "boolean", ["string", "null"]],
    "minimum": [0, 2, 3], "maximum": [0, 1, 3], "minLength": [0, 2], "maxLength": [1, 3], "multipleOf": [1, 2],
    "nullable": [True], "const": ["x", 1], "enum": [["x", 1], ["x", "xy"], [2, 4]], "description": ["one", "other"],
}  # fmt: skip


def schema_of(rng: Random, depth: int) -> Any:
    """A composed schema, drawn."""
    kind = rng.choice(("leaf", "leaf", "reference", "object", "array", "joined", "both")[: 7 if depth else 3])
    if kind == "leaf":
        return {keyword: rng.choice(LEAVES[keyword]) for keyword in rng.sample(list(LEAVES), rng.randint(0, 2))}
    if kind == "reference":
        return {"$ref": f"#/$defs/{rng.choice(('name', 'tree'))}"}
    drawn: dict[str, Any] = {}
    if kind in ("object", "both"):
        names = rng.sample(NAMES, rng.randint(0, 3))
        drawn = {"type": "object", "properties": {name: schema_of(rng, depth - 1) for name in names}}
        drawn |= {"required": rng.sample(NAMES[:2], rng.randint(0, 2))} if rng.random() < 0.5 else {}
        others = rng.choice((True, False, schema_of(rng, 0)))
        drawn |= {"additionalProperties": others} if rng.random() < 0.4 else {}
        drawn |= {"maxProperties": rng.randint(0, 2)} if rng.random() < 0.1 else {}
        if "ro" in drawn["properties"]:
            drawn["properties"]["ro"] = {"$ref": "#/$defs/ro"}
    if kind == "array":
        drawn = {"type": "array", "items": schema_of(rng, depth - 1)}
        limits = {"minItems": rng.randint(0, 2), "maxItems": rng.randint(0, 2)}
        drawn |= {keyword: limits[keyword] for keyword in rng.sample(list(limits), rng.randint(0, 2))}
    if kind in ("joined", "both"):
        for keyword in rng.sample(("allOf", "anyOf", "oneOf"), rng.randint(1, 2)):
            drawn[keyword] = [schema_of(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return drawn


DEFINITIONS = {
    "name": {"type": "string", "minLength": 1},
    "ro": {"type": "string", "readOnly": True},
    "tree": {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}, "b": {"$ref": "#/$defs/name"}}},
}


def read_as_documents_mean_it(schema: Any, *, is_whole: bool = True) -> Any:
    """The schema as the oracle has it: an object takes the names that its form lists, and nothing that is read-only."""
    if not isinstance(schema, dict):
        return schema
    read = {}
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs"):
            read[keyword] = {name: read_as_documents_mean_it(each) for name, each in value.items() if name != "ro"}
        elif keyword in ("allOf", "anyOf", "oneOf"):
            read[keyword] = [read_as_documents_mean_it(each, is_whole=False) for each in value]
        elif keyword in ("items", "additionalProperties") and isinstance(value, dict):
            read[keyword] = read_as_documents_mean_it(value)
        elif keyword == "required":
            read[keyword] = [name for name in value if name != "ro"]
        elif keyword != "nullable" and (keyword, value) != ("additionalProperties", True):
            read[keyword] = value
    return {**read, **({"unevaluatedProperties": False} if is_whole else {})}


def some_values(schema: Any, rng: Random, definitions: dict, depth: int = 0) -> Any:
    """A value that tries to satisfy a schema."""
    if not isinstance(schema, dict) or depth > 6:
        return rng.choice(POOL)
    if "$ref" in schema:
        return some_values(definitions[schema["$ref"].rpartition("/")[2]], rng, definitions, depth + 1)
    parts = [*schema.get("allOf", ()), *(rng.choice(schema[key]) for key in ("anyOf", "oneOf") if schema.get(key))]
    found = [some_values(part, rng, definitions, depth + 1) for part in parts]
    if ("properties" in schema or schema.get("type") == "object") and not {"const", "enum"} & schema.keys():
        required = schema.get("required", ())
        names = [name for name in schema.get("properties", {}) if name in required or rng.random() < 0.4]
        own = {name: some_values(schema["properties"][name], rng, definitions, depth + 1) for name in names}
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and rng.random() < 0.5:
            own["z"] = some_values(others, rng, definitions, depth + 1)
        return {name: value for each in [*found, own] if isinstance(each, dict) for name, value in each.items()}
    if found:
        are_objects = all(isinstance(each, dict) for each in found)
        return {k: v for each in found for k, v in each.items()} if are_objects else rng.choice(found)
    if schema.get("type") == "array":
        least = schema.get("minItems", 0)
        return [
            some_values(schema.get("items"), rng, definitions, depth + 1) for _ in range(rng.randint(least, least + 1))
        ]
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else POOL)
    return rng.choice([*filter(Draft202012Validator(schema).is_valid, choices)] or POOL)


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_what_the_composed_schema_takes_the_plain_one_takes_and_some_call_satisfies_it(seed):
    rng = Random(seed)
    found = {**schema_of(rng, 3), "$defs": DEFINITIONS}
    oracle = Draft202012Validator(read_as_documents_mean_it(found))
    tried = [some_values(found, rng, DEFINITIONS) for _ in range(25)]
    taken = [value for value in tried if isinstance(value, dict) and oracle.is_valid(value)]
    try:
        plain, rules = composed_parameters(found)
    except SchemaUnconvertible:
        assert not taken
        return
    text = json.dumps(plain)
    assert not [word for word in ('"$ref"', '"allOf"', '"oneOf"', '"readOnly"') if word in text]
    assert composed_parameters(plain) == (plain, ())
    validator = Draft202012Validator(plain)
    # By these two rules a type gives way to what else its schema says, so that other values are meant than are written.
    for value in taken if not {"enum_mended", "number_typed_as_string"} & {*rules} else []:
        assert validator.is_valid(value), (found, value, plain, rules)
        assert value.keys() <= plain["properties"].keys() or plain.get("additionalProperties", False) is not False
    calls = (some_values(plain, rng, {}) for _ in range(400))
    assert any(map(validator.is_valid, itertools.chain(({},), calls))), (found, plain, rules)


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def form(**properties: Any) -> dict:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("found", "properties", "required"),
    [
        # Forms of a call: each stays callable.
        ({"oneOf": [form(do={"const": "add"}, n=NUMBER), form(do={"const": "drop"})]}, {"do": {"enum": ["add", "drop"]}, "n": NUMBER}, ["do"]),
        ({"anyOf": [form(n=NUMBER), form(n=TEXT)]}, {"n": {"type": ["integer", "string"]}}, ["n"]),
        ({"anyOf": [form(n=NUMBER), {"anyOf": [form(m=TEXT), {"type": "null"}]}]}, {"n": NUMBER, "m": TEXT}, None),
        ({"anyOf": [form(n={"enum": [1]}), form(n={"const": 2})], "required": ["n"]}, {"n": {"enum": [1, 2]}}, ["n"]),
        ({**form(a=TEXT), "oneOf": [{"required": ["b"], "properties": {"b": TEXT}}, form(c=TEXT)]}, {"a": TEXT, "b": TEXT, "c": TEXT}, ["a"]),
        ({"anyOf": [form(a=TEXT), {"type": "object", "additionalProperties": NUMBER}]}, {"a": {"type": ["string", "integer"]}}, None),
        # Parts that hold at once.
        ({"allOf": [{"$ref": "#/$defs/base"}, {"allOf": [{"required": ["a"]}, form(c=TEXT)]}]}, {"a": TEXT, "c": TEXT}, ["a", "c"]),
        ({"allOf": [form(n={"type": "number", "minimum": 1}), form(n={**NUMBER, "minimum": 3})]}, {"n": {**NUMBER, "minimum": 3}}, ["n"]),
        ({"allOf": [{**form(a=TEXT), "additionalProperties": False}, form(b=TEXT)]}, {"a": TEXT, "b": TEXT}, ["a", "b"]),
        ({"$ref": "#/$defs/base", "required": ["a"], "properties": {"d": NUMBER}}, {"d": NUMBER, "a": TEXT}, ["a"]),
        (form(x={"$ref": "#/$defs/base", "required": ["a"]}), {"x": {**form(a=TEXT)}}, ["x"]),
        (form(x={"allOf": [{"$ref": "#/$defs/a%20b"}, {"maxLength": 3}], "nullable": True}), {"x": {"maxLength": 3, "type": ["string", "null"]}}, ["x"]),
        (form(x={"$ref": "#/$defs/p~1q"}, y={"$ref": "#/%24defs/a b"}), {"x": NUMBER, "y": TEXT}, ["x", "y"]),
        # Read-only properties, found at any depth and through any part.
        ({"allOf": [form(id=NUMBER, a=TEXT), {"properties": {"id": {"readOnly": True}}}]}, {"a": TEXT}, ["a"]),
        (form(x={"type": "array", "items": {"oneOf": [form(id={"$ref": "#/$defs/id"}, a=TEXT)]}}), {"x": {"type": "array", "items": form(a=TEXT)}}, ["x"]),
        # Keywords one level too deep, and parameters without a schema around them.
        ({"type": "object", "properties": {"a": TEXT, "type": "object", "required": "a", "description": "Says it."}}, {"a": TEXT}, ["a"]),
        ({"properties": {"a": {"type": "string", "required": ["a"]}, "additionalProperties": False}}, {"a": TEXT}, ["a"]),
        ({"properties": {"properties": {"a": TEXT}, "type": "object", "b": NUMBER}}, {"b": NUMBER, "a": TEXT}, None),
        ({"properties": {"properties": {}, "type": "object"}}, {}, None),
        ({"a": {"type": "str"}, "type": {"type": "int, optional"}, "q": {"type": "bool", "default": "true"}}, {"a": TEXT, "type": NUMBER, "q": {"type": "boolean", "default": True}}, ["a"]),
        ({"a": "string", "n": "int?"}, {"a": TEXT, "n": NUMBER}, ["a"]),
        ({"type": "object", "a": TEXT, "required": ["a"]}, {"a": TEXT}, ["a"]),
        ([{"name": "a", "type": "str", "required": True}, {"name": "n", "type": "int"}], {"a": TEXT, "n": NUMBER}, ["a"]),
        ('{"type": "object", "properties": {"a": {"type": "string"}}}', {"a": TEXT}, None),
        # Names that are words of JSON Schema are names.
        (form(type=TEXT, required={"type": "boolean"}, properties={"type": "object"}), {"type": TEXT, "required": {"type": "boolean"}, "properties": {"type": "object"}}, ["type", "required", "properties"]),
        # What no value satisfies leaves, if a call can do without it.
        ({"properties": {"a": TEXT, "b": False, "c": {"allOf": [TEXT, NUMBER]}}}, {"a": TEXT}, None),
        ({"required": ["a"], "additionalProperties": NUMBER}, {"a": NUMBER}, ["a"]),
    ],
)  # fmt: skip
def test_every_form_and_part_of_a_composed_schema_is_in_the_plain_one(found, properties, required):
    if isinstance(found, dict):
        parts = {"base": {"type": "object", "properties": {"a": TEXT}}, "a b": TEXT, "p/q": NUMBER}
        parts |= {"id": {**NUMBER, "readOnly": True}}
        found = found if "a" in found else {**found, "$defs": parts}
    schema, _ = composed_parameters(found)
    assert (schema["properties"], schema.get("required")) == (properties, required)


@pytest.mark.parametrize(
    "found",
    [
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        form(a={"allOf": [TEXT, NUMBER]}),
        {"allOf": [form(a={"const": 1}), form(a={"enum": [2, 3]})]},
        {"anyOf": [form(a={"not": {}}), False]},
        {"type": "object", "not": {}},
    ],
)
def test_a_schema_that_no_call_satisfies_is_refused(found):
    with pytest.raises(SchemaUnconvertible, match="nothing satisfies it"):
        composed_parameters(found)


def test_a_model_reads_which_arguments_each_form_of_a_call_must_have():
    found = {"oneOf": [form(do={"const": "add"}, n=NUMBER), form(do={"const": "list"})], "description": "Change."}
    assert composed_parameters(found)[0]["description"] == 'Change. {do: "add", n} | {do: "list"}'


def test_a_body_of_which_one_form_is_no_object_stays_one_value():
    schema, _ = composed_body({"oneOf": [form(a=TEXT), {"type": "array", "items": form(a=TEXT)}]}, {})
    assert [each["type"] for each in schema["anyOf"]] == ["object", "array"]
    assert composed_body({"oneOf": [form(a=TEXT), form(b=TEXT)]}, {})[0]["type"] == "object"


def test_composing_ends_within_its_budget():
    wide = {"allOf": [{"anyOf": [form(**{f"{n}_{m}": TEXT}) for m in range(9)]} for n in range(9)]}
    with pytest.raises(SchemaUnconvertible, match="more than 160000 steps"):
        composed_parameters(wide)
