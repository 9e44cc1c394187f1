# ruff: noqa: E501 - a row of a table is one case
"""Shapes that real documents have: each keeps every tool and argument, or names the one that it leaves out."""

import json

import pytest

from synthesis.stage import Rejected
from synthesis.tools.documents import SourceServer, SourceTool
from synthesis.tools.sources import read_servers
from synthesis.tools.yaml_documents import parsed_yaml
from tests.synthesis.tools.test_documents import (
    ONE_TOOL_IS_ENOUGH,
    SCHEMA,
    normalise_server,
    normalised,
    read_one,
    tool_in,
)

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
ALBUM = {"type": "object", "properties": {"id": NUMBER, "title": TEXT}, "required": ["title"]}
STAMPED = {**ALBUM, "properties": {"id": {**NUMBER, "readOnly": True}, "title": TEXT}, "required": ["id", "title"]}
TITLED = {"type": "object", "properties": {"title": TEXT}, "required": ["title"]}
ID = {"name": "id", "in": "path", "required": True, "schema": {**NUMBER, "readOnly": True}}
OPEN = {"type": "object", "properties": {"name": TEXT}, "additionalProperties": NUMBER}


def spec_of(operation: dict, path: str = "/a") -> str:
    flag = {"name": "q", "in": "query", "type": "integer", "description": "How many."}
    components = {"schemas": {"Album": ALBUM, "Stamped": STAMPED}, "parameters": {"q": flag}}
    said = {"operationId": "save", "summary": "Save one note.", **operation}
    return json.dumps({"openapi": "3.1.0", "paths": {path: {"post": said}}, "components": components})


def body(schema: dict) -> dict:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def a(kind: str) -> dict:
    return {"$ref": f"#/components/schemas/{kind}"}


@pytest.mark.parametrize(
    ("operation", "path", "properties", "required"),
    [
        # Bodies that are composed, open, or no objects.
        (body({"allOf": [a("Album")], "properties": {"tag": TEXT}}), "/a", {"tag": TEXT, "id": NUMBER, "title": TEXT}, ["title"]),
        (body({"oneOf": [a("Album"), {"type": "object", "properties": {"url": TEXT}}]}), "/a", {"id": NUMBER, "title": TEXT, "url": TEXT}, []),
        (body({"type": "object", "additionalProperties": TEXT}), "/a", {"body": {"type": "object", "additionalProperties": TEXT}}, ["body"]),
        (body({"type": "array", "items": TEXT}), "/a", {"body": {"type": "array", "items": TEXT}}, ["body"]),
        ({"requestBody": {"content": {"application/json": {}}}}, "/a", {"body": {}}, []),
        ({"requestBody": {"$ref": "#/gone"}}, "/a", {"body": {}}, []),
        # Read-only fields are no part of a request; a parameter of the address is, whatever its schema says.
        (body(a("Stamped")), "/a", {"title": TEXT}, ["title"]),
        (body({"properties": {"album": {"allOf": [a("Stamped")]}}}), "/a", {"album": TITLED}, []),
        ({"parameters": [ID]}, "/a/{id}", {"id": NUMBER}, ["id"]),
        # One name in several places.
        ({"parameters": [{"name": "id", "in": "query", "schema": TEXT}, ID], **body(ALBUM)}, "/a/{id}", {"id": NUMBER, "query_id": TEXT, "body_id": NUMBER, "title": TEXT}, ["id", "title"]),
        ({"parameters": [{"name": "x", "in": place, "schema": TEXT} for place in ("header", "query")]}, "/a", {"x": TEXT, "header_x": TEXT}, []),
        # Places in the path.
        ({}, "/users/{userId}/notes/{note-id}", {"userId": TEXT, "note-id": TEXT}, ["userId", "note-id"]),
        ({}, "/users/:user/files/{+path}.{ext}", {"user": TEXT, "path": TEXT, "ext": TEXT}, ["user", "path", "ext"]),
        ({"parameters": [{"name": "user_id", "in": "path", "schema": NUMBER}]}, "/u/{userId}", {"user_id": NUMBER}, ["user_id"]),
        ({"parameters": [{"$ref": "#/components/parameters/q", "required": True}]}, "/a", {"q": {**NUMBER, "description": "How many."}}, ["q"]),
    ],
)  # fmt: skip
def test_an_operation_takes_each_argument_of_its_places(tmp_path, operation, path, properties, required):
    tool = tool_in(tmp_path, "a.json", spec_of(operation, path))
    assert (tool.parameters["properties"], list(tool.required)) == (properties, required)
    assert tool.parameters_status == "stated"
    renamed = {"query_id": "query id", "body_id": "body id", "header_x": "header x"}
    assert tool.original_arguments == {new: renamed[new] for new in properties if new in renamed}


def test_further_fields_of_a_body_and_the_forms_of_a_call_stay(tmp_path):
    assert tool_in(tmp_path, "a.json", spec_of(body(OPEN))).parameters["additionalProperties"] == NUMBER
    forms = {"oneOf": [{"required": ["title"]}, {"required": ["id"]}], "properties": ALBUM["properties"]}
    assert tool_in(tmp_path, "b.json", spec_of(body(forms))).parameters["description"] == "{title} | {id}"


GOOD = {"name": "list_notes", "description": "List all notes.", "parameters": SCHEMA}
BAD = {**GOOD, "name": "bad", "parameters": {"type": "object", "properties": {"x": False}, "required": ["x"]}}
NOW = {"name": "now", "description": "Tell the time."}
PATHS = {"/a": {"get": {"operationId": "f", "summary": "Get one."}, "put": []}, "/b": 3}


@pytest.mark.parametrize(
    ("document", "kept", "left_out"),
    [
        ({"tools": [{"function": NOW}, {"function": GOOD}]}, ["now", "list_notes"], []),
        ({"tools": [None, {**GOOD, "name": ""}, GOOD]}, ["list_notes"], ["number 1 (tool that is no object)", "number 2 (tool without a name)"]),
        ({"tools": json.dumps([json.dumps(GOOD)])}, ["list_notes"], []),
        ([{"tools": json.dumps([GOOD]), "query": "?"}], ["list_notes"], []),
        ({"functions": [GOOD]}, ["list_notes"], []),
        ([{**NOW, "input_schema": SCHEMA}], ["now"], []),
        ([GOOD, BAD], ["list_notes"], ["bad (unconvertible schema, bad: nothing satisfies it)"]),
        ({"tools": [{**GOOD, "inputSchema": SCHEMA}, {"name": "odd", "inputSchema": 3}]}, ["list_notes"], ["odd (missing description)"]),
        ({"tools": [{"function": NOW}, {**NOW, "name": "then", "inputSchema": SCHEMA}]}, ["now", "then"], []),
        ({"openapi": "3.0.0", "paths": PATHS}, ["f"], ["/b (path that is no object)", "put /a (operation that is no object)"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("file", ["a.json", "a.yaml"])
def test_one_odd_tool_is_left_out_by_name_and_the_others_stay(tmp_path, document, kept, left_out, file):
    server = normalise_server(read_one(tmp_path, file, json.dumps(document)), ONE_TOOL_IS_ENOUGH)
    assert [tool.name for tool in server.tools] == kept
    said = [repair.removeprefix("tool left out: ") for repair in server.repairs if repair.startswith("tool left out")]
    assert said == left_out
    assert all(tool.parameters_status == "stated" for tool in server.tools)


def test_a_line_with_a_mark_or_a_fault_hides_no_other(tmp_path):
    line = json.dumps({"tools": [{**GOOD, "inputSchema": SCHEMA}]})
    (tmp_path / "a.jsonl").write_text(f"{line}\n{line[:40]}\n\ufeff{line}\n", encoding="utf-8-sig")
    first, second, third = read_servers(tmp_path / "a.jsonl")
    assert isinstance(first, SourceServer)
    assert isinstance(third, SourceServer)
    assert isinstance(second, Rejected)
    assert "a.jsonl:2" in second.detail


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({}, "stated"), ({"type": "object", "properties": {}}, "stated"), ("nonsense", "unknown"),
        ({"type": "string", "description": "Words"}, "unknown"), ({"$ref": "#/gone"}, "unknown"),
        ({"properties": {"id": {"type": "integer", "readOnly": True}}}, "unknown"),
        ({"type": "object", "required": ["city"]}, "unknown"), (["city"], "unknown"),
    ],
)  # fmt: skip
def test_a_tool_without_parameters_is_stated_only_if_its_source_says_so(parameters, status):
    (tool,) = normalised(SourceTool("look", "Look around here.", parameters)).tools
    assert (tool.parameters_status, tool.parameters) == (status, {"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[no, on, yes, off, y, NO]", ["no", "on", "yes", "off", "y", "NO"]),
        ("[true, False, null, ~, Null]", [True, False, None, None, None]),
        ("[1_000, 22:30, 1:30:00, 0b11, 2024-01-01, =]", ["1_000", "22:30", "1:30:00", "0b11", "2024-01-01", "="]),
        ("[0o17, 0x1F, 017, +1, 1e3, .5, -2.]", [15, 31, 17, 1, 1000.0, 0.5, -2.0]),
        ("{on: 1, 1.10: a, true: b, null: c}", {"on": 1, "1.10": "a", "true": "b", "null": "c"}),
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
        ("!!str 12", "12"),
    ],
)
def test_yaml_is_read_by_the_core_schema_of_version_1_2(text, value):
    assert repr(parsed_yaml(text)[0]) == repr(value)


@pytest.mark.parametrize("part", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_are_written_out_within_a_budget(part):
    levels = [f"x{n}: &a{n} " + part.format(",".join([f"*a{n - 1}"] * 9)) for n in range(1, 9)]
    with pytest.raises(ValueError, match="aliases stand for more than"):
        parsed_yaml("\n".join(["x0: &a0 {k: v}", *levels]))
    with pytest.raises((ValueError, RecursionError)):
        parsed_yaml("a: &a [*a]")
    many = "\n".join(["x: &a {k: v}", *(f"y{n}: *a" for n in range(3000))])
    assert parsed_yaml(many)[0]["y2999"] == {"k": "v"}
