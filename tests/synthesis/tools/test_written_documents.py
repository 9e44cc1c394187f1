"""A document that a model wrote has usable schemas, or is rejected in one line that names the fault."""

import pytest
from jsonschema import Draft202012Validator

from synthesis.records import ToolDocument
from synthesis.stage import Rejected
from synthesis.tools.written_documents import check_written


def document(parameters, output_schema=None):
    return ToolDocument(name="get_rent", description="Rent", parameters=parameters, output_schema=output_schema)


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


FAULTS = {
    "a type that is none": ({"properties": {"a": {"type": "str"}}}, "parameters/properties/a/type: expected one of"),
    "one type among several": ({"properties": {"a": {"type": ["string", "str"]}}}, "found 'str'"),
    "a type that is a list in a list": ({"properties": {"a": {"type": [["string"]]}}}, "not valid draft 2020-12"),
    "a reference to a definition": ({"properties": {"a": {"$ref": "#/definitions/Owner"}}}, r"found '\$ref'"),
    "a reference to itself": ({"$ref": "#"}, r"parameters: expected the schema itself written out, found '\$ref'"),
    "a reference to a file": ({"items": {"$ref": "file:///etc/passwd"}}, r"parameters/items: .* found '\$ref'"),
    "a reference that is a number": ({"$ref": 5}, r"found '\$ref'"),
    "a dynamic reference": ({"anyOf": [{"$dynamicRef": "#nope"}]}, r"parameters/anyOf/0: .* found '\$dynamicRef'"),
    "an id": ({"$id": 5}, r"found '\$id'"),
    "another draft within": ({"properties": {"a": {"$schema": "http://json-schema.org/draft-04/schema#"}}}, "schema'"),
    "a draft that is a list": ({"$schema": []}, r"found '\$schema'"),
    "a pattern that Python lacks": ({"properties": {"a": {"pattern": r"^\p{L}+$"}}}, "properties/a: .*'pattern'"),
    "a pattern without end": ({"properties": {"a": {"pattern": "^(x+)+$"}}}, "found 'pattern'"),
    "a pattern that is a number": ({"pattern": 5}, "found 'pattern'"),
    "patterns of names": ({"patternProperties": {"^(x+)+$": {}}}, "found 'patternProperties'"),
    "a pattern of names": ({"propertyNames": {"pattern": "^(x+)+$"}}, "parameters/propertyNames: "),
    "required as a flag": ({"required": True}, "/required: True is not of type 'array'"),
    "required as null": ({"required": None}, "/required: None is not of type 'array'"),
    "required as a number": ({"required": 1}, "/required: 1 is not of type 'array'"),
    "required as lists": ({"required": [["a"]]}, r"/required/0: \['a'\] is not of type 'string'"),
    "required twice": ({"properties": {"a": {}}, "required": ["a", "a"]}, "has non-unique elements"),
    "required, and not there": ({"properties": {"a": {}}, "required": ["b"]}, r"names of \['a'\], found \['b'\]"),
    "required on a property": ({"properties": {"a": {"required": True}}}, "/properties/a/required"),
    "properties as a list": ({"properties": [{"name": "a"}]}, "/properties: .* is not of type 'object'"),
    "properties as null": ({"properties": None}, "/properties: None is not of type 'object'"),
    "a property that is a text": ({"properties": {"a": "string"}}, "/properties/a: 'string' is not of type"),
    "a property that is true": ({"properties": {"a": True}}, "parameters/properties/a: .* found True"),
    "a limit as a text": ({"properties": {"a": {"minLength": "5"}}}, "/minLength: '5' is not of type 'integer'"),
    "an infinite limit": ({"properties": {"a": {"maximum": float("inf")}}}, "not JSON that can be kept"),
    "half of a character": ({"properties": {"a": {"title": "\ud800"}}}, "not JSON that can be kept"),
    "choices as a number": ({"properties": {"a": {"enum": 5}}}, "/enum: 5 is not of type 'array'"),
    "alternatives as an object": ({"anyOf": {}}, r"/anyOf: \{\} is not of type 'array'"),
    "a list for the whole": ({"type": "array"}, "parameters/type: expected 'object', found 'array'"),
    "lists in lists in lists": (nested(500), "expected at most 48 levels"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_schema_that_cannot_be_used_is_rejected_in_one_line_that_names_the_fault(fault):
    parameters, said = FAULTS[fault]
    with pytest.raises(Rejected, match=said) as rejected:
        check_written(document({"type": "object", **parameters}))
    assert rejected.value.reason == "schema cannot be used"
    assert rejected.value.detail.startswith("get_rent: parameters")
    assert "\n" not in rejected.value.detail


def test_an_output_schema_must_be_usable_too():
    check_written(document({}, {"type": "array", "items": {"type": "number"}}))
    with pytest.raises(Rejected, match=r"get_rent: output_schema/type: expected one of .*, found 'float'"):
        check_written(document({}, {"type": "float"}))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}},
        # Names and values, which are no keywords.
        {"properties": {"pattern": {"type": "string"}, "$ref": {"type": "string"}}, "required": ["pattern"]},
        {"properties": {"a": {"default": {"$ref": "#"}, "examples": [{"pattern": "("}], "enum": [{"type": "x"}]}}},
        {"properties": {"a": {"type": ["string", "null"], "anyOf": [{"format": "date"}, {"maxLength": 3}]}}},
        {"properties": {"a": {"type": "object", "properties": {"b": {"type": "array", "items": True}}}}},
        {"dependentRequired": {"pattern": ["a"]}, "additionalProperties": False},
    ],
)
def test_a_usable_schema_is_left_alone(parameters):
    check_written(document(parameters))
    Draft202012Validator.check_schema(parameters)
