"""OpenAPI 3.x specifications: each operation is a tool, with its parameters and JSON body."""

from __future__ import annotations

import re
from typing import Final

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.documents import SourceServer, SourceTool, object_in, objects_in
from synthesis.tools.schema_repair import pointed_to

_METHODS: Final = ("get", "put", "post", "delete", "patch", "head", "options")
_TRANSPORT_HEADERS: Final = frozenset({"accept", "content-type", "authorization", "user-agent"})
_LONGEST_DESCRIPTION: Final = 200
_LINK = re.compile(r"<?https?://\S+")
_CREDENTIAL = re.compile(r"(x[-_])?(api[-_]?key|app[-_]?id|access[-_]?token|auth([-_]?token)?|client[-_]?secret)", re.I)


def read_openapi(document: JsonValue, name: str) -> SourceServer | None:
    """Return the server of an OpenAPI 3.x specification; None if the document is something else.

    Credentials and transport headers are the operator's, not the model's: they are no parameters of the tool.
    """
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3"):
        return None
    info = object_in(document.get("info"))
    categories = info.get("x-apisguru-categories")
    tools = []
    for path, item in object_in(document.get("paths")).items():
        item = _resolved(item, document)
        operations = [(method, item[method]) for method in _METHODS if isinstance(item.get(method), dict)]
        tools += [_operation(path, method, operation, item, document) for method, operation in operations]
    return SourceServer(
        name=str(info.get("title") or name),
        origin="openapi",
        tools=tools,
        domain=str(categories[0]) if isinstance(categories, list) and categories else "General",
        description=str(info.get("description") or ""),
    )


def _operation(path: str, method: str, operation: JsonObject, item: JsonObject, document: JsonObject) -> SourceTool:
    parameters = _parameters(item, operation, document)
    properties: JsonObject = {str(parameter["name"]): _parameter_schema(parameter) for parameter in parameters}
    required = [str(parameter["name"]) for parameter in parameters if parameter.get("required") is True]
    body = _resolved(operation.get("requestBody"), document)
    if (schema := _json_content(body)) is not None:
        _add_body(properties, required, schema, body.get("required") is True, document)
    name = operation.get("operationId") or f"{method}_{re.sub(r'[^A-Za-z0-9]+', '_', path).strip('_')}"
    description, summary = operation.get("description"), operation.get("summary")
    # A summary says more than no description, a bare link, or a page of text.
    if isinstance(summary, str) and summary.strip():
        said = description.strip() if isinstance(description, str) and len(description) <= _LONGEST_DESCRIPTION else ""
        description = description if said and not _LINK.fullmatch(said) else summary
    schema = {"type": "object", "properties": properties, "required": required}
    return SourceTool(name, description, schema, _response_schema(operation, document), document)


def _parameters(item: JsonObject, operation: JsonObject, document: JsonObject) -> list[JsonObject]:
    """Return path-level parameters overridden by the operation's own, in order."""
    merged: dict[tuple[str, str], JsonObject] = {}
    for level in (item, operation):
        for entry in objects_in(level.get("parameters")):
            parameter = _resolved(entry, document)
            name, place = str(parameter.get("name")), str(parameter.get("in", "query"))
            is_transport = place == "cookie" or (place == "header" and name.lower() in _TRANSPORT_HEADERS)
            if "name" in parameter and not is_transport and not _CREDENTIAL.fullmatch(name):
                merged[name, place] = parameter  # OpenAPI tells parameters apart by name and place
    return list(merged.values())


def _parameter_schema(parameter: JsonObject) -> JsonObject:
    schema = parameter.get("schema")
    schema = _json_content(parameter) if schema is None else schema
    schema = dict(schema) if isinstance(schema, dict) else {"type": "string"}
    if isinstance(parameter.get("description"), str):
        schema["description"] = parameter["description"]
    return schema


def _add_body(
    properties: JsonObject, required: list[str], schema: JsonValue, is_required: bool, document: JsonObject
) -> None:
    """Put the fields of an object body beside the parameters; any other body is one parameter `body`."""
    target = _resolved(schema, document)
    fields = target.get("properties")
    if not isinstance(fields, dict) or set(fields) & set(properties):  # a field must not hide a parameter of its name
        properties["body"] = schema
        required.extend(["body"] if is_required else [])
        return
    properties.update(fields)
    stated = target.get("required")
    required.extend(name for name in fields if isinstance(stated, list) and name in stated)


def _json_content(holder: JsonObject) -> JsonValue:
    """Return the schema of the JSON media type, else of the first one; None without any."""
    content = object_in(holder.get("content"))
    of_json = [media for name, media in content.items() if "json" in str(name)]
    return object_in(next(iter([*of_json, *content.values()]), None)).get("schema")


def _response_schema(operation: JsonObject, document: JsonObject) -> JsonValue:
    responses = object_in(operation.get("responses"))
    resolved = [_resolved(response, document) for status, response in responses.items() if str(status).startswith("2")]
    return _json_content(next(filter(None, resolved), {}))


def _resolved(node: JsonValue, document: JsonObject) -> JsonObject:
    """Follow references inside the document, at most 16 of them in a row; an empty object if they lead to none."""
    for _ in range(16):  # references that go round in a circle lead nowhere
        if not isinstance(reference := object_in(node).get("$ref"), str):
            return object_in(node)
        node = pointed_to(reference, document)
    return {}
