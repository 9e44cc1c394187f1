"""Any value at any place of a document of any format gives a server or a reason."""

import copy
import itertools
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from synthesis.records import ServerDocument
from synthesis.stage import Rejected
from synthesis.tools.documents import SourceServer, ToolDocumentFilters, normalise_server
from synthesis.tools.sources import read_servers

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LISTED = {"name": "get_weather", "description": "Get the weather.", "inputSchema": SCHEMA, "outputSchema": SCHEMA}
PARAMETERS = [{"name": "city", "required": True, "type": "string"}, {"name": "Add", "required": False}]
CRAWLED = {
    "name": "get_news", "description": "Get the news.", "input_schema": SCHEMA, "parameters": PARAMETERS,
}  # fmt: skip
CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}
OPERATION = {
    "operationId": "changeOrder", "summary": "Change an order.", "description": "https://example.org/docs",
    "parameters": [{"$ref": "#/components/parameters/id"}],
    "requestBody": {"required": True, "content": CONTENT},
    "responses": {"200": {"description": "ok", "content": CONTENT}},
}  # fmt: skip
VERSION = {"name": "v", "in": "query", "schema": {"type": "string"}}
ORDER = {"type": "object", "required": ["quantity"], "properties": {"quantity": {"type": "integer"}}}
FUNCTION = {"name": "teams_for_league", "description": "teams_for_league of a season.", "parameters": SCHEMA}
DOCUMENTS: dict[str, Any] = {
    "crawled": {
        "labels": {"primary_label": "Weather"},
        "metadata": {"server_name": "W", "server_info_crawled": {"name": "W", "overview": "W.", "tools": [CRAWLED]}},
    },
    "tools_list": {
        "serverInfo": {"name": "W", "version": "1"}, "argumentValues": {"city": ["Oslo"]}, "language": "en",
        "result": {"tools": [LISTED]},
    },
    "openai_tools": [
        {"type": "function", "function": {"name": "f", "description": "Do a thing now.", "parameters": SCHEMA}}
    ],
    "openapi": {
        "openapi": "3.0.0",
        "info": {"title": "Shop", "description": "A shop.", "x-apisguru-categories": ["shopping"]},
        "paths": {"/orders/{id}": {"parameters": [VERSION], "put": OPERATION}},
        "components": {
            "parameters": {"id": {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}},
            "schemas": {"Order": ORDER},
        },
    },
    "rapidapi_endpoints": [
        {
            "api_name": "list teams", "api_description": "List all teams.", "tool_name": "league",
            "category_name": "Sports", "template_response": {"teams": [{"id": "int", "_list_length": 3}]},
            "required_parameters": [{"name": "season", "type": "NUMBER", "description": "year"}],
            "optional_parameters": [{"name": "page", "type": "NUMBER"}],
        }
    ],
    "rapidapi_functions": {"tool": "league", "functions": [FUNCTION]},
}  # fmt: skip

STRANGE: tuple[Any, ...] = (None, True, 3, -0.5, "", " ", "x", [], [None], [3], ["x"], [[]], {}, {"x": 3}, {"$ref": 3})


def places_in(document: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = range(len(document)) if isinstance(document, list) else document if isinstance(document, dict) else ()
    return [place, *(inner for key in keys for inner in places_in(document[key], (*place, key)))]


def with_value_at(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(document)
    node = changed
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    return changed


def outcomes_of(folder, document: Any) -> list[ServerDocument | Rejected]:
    path = folder / "document.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    outcomes: list[ServerDocument | Rejected] = []
    for found in read_servers(path):
        assert isinstance(found, SourceServer | Rejected)
        try:
            if isinstance(found, Rejected):
                raise found
            outcomes.append(normalise_server(found, ToolDocumentFilters(min_tools=1)))
        except Rejected as rejected:
            outcomes.append(rejected)
    return outcomes


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_document_of_each_format_is_kept(tmp_path, kind):
    (server,) = outcomes_of(tmp_path, DOCUMENTS[kind])
    assert isinstance(server, ServerDocument)
    assert server.tools[0].parameters["properties"]


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_any_document_is_kept_with_valid_schemas_or_rejected_with_a_reason(tmp_path, kind):
    schemas = {}
    for place, value in itertools.product(places_in(DOCUMENTS[kind]), STRANGE):
        outcomes = outcomes_of(tmp_path, with_value_at(DOCUMENTS[kind], place, value))
        assert outcomes, (place, value)
        for outcome in outcomes:
            if isinstance(outcome, Rejected):
                assert outcome.reason
                assert outcome.detail
            else:
                schemas |= {json.dumps(tool.parameters): tool.parameters for tool in outcome.tools}
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
