"""OpenAPI 3.x specifications: each operation is a tool, with its parameters and JSON body."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final, NamedTuple

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.documents import SourceServer, SourceTool, object_in, objects_in
from synthesis.tools.schema_composer import composed_body, composed_value, pointed_to
from synthesis.tools.schema_repair import SchemaUnconvertible

_METHODS: Final = ("get", "put", "post", "delete", "patch", "head", "options")
_TRANSPORT_HEADERS: Final = frozenset({"accept", "content-type", "authorization", "user-agent"})
_PLACES: Final = ("path", "query", "header")
"""Places of parameters that a model fills, in the order in which they keep their names."""
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}|(?<=/):([A-Za-z_]\w*)")
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
    rules: set[str] = set()
    for path, found in object_in(document.get("paths")).items():
        item = _resolved(found, document)
        if not item and found and not path.startswith("x-"):
            tools.append(SourceTool(path, None, None, fault="path that is no object"))
        for method in (method for method in _METHODS if item.get(method) is not None):
            operation = item[method]
            if isinstance(operation, dict):
                tools.append(_operation(path, method, operation, item, document, rules))
            else:
                tools.append(SourceTool(f"{method} {path}", None, None, fault="operation that is no object"))
    return SourceServer(
        name=str(info.get("title") or name),
        origin="openapi",
        tools=tools,
        domain=str(categories[0]) if isinstance(categories, list) and categories else "General",
        description=str(info.get("description") or ""),
        repairs=tuple(sorted(rules)),
    )


class _Argument(NamedTuple):
    """An argument of an operation, by its place and name in the specification."""

    place: str
    name: str
    schema: Any
    is_required: bool


def _operation(
    path: str, method: str, operation: JsonObject, item: JsonObject, document: JsonObject, rules: set[str]
) -> SourceTool:
    fields, schema = _of_body(operation.get("requestBody"), document, rules)
    arguments = [*_parameters(path, item, operation, document, rules), *fields]
    wanted = [argument.name for argument in arguments]
    original: dict[str, str] = {}
    schema |= {"type": "object", "properties": {}, "required": []}
    for argument in arguments:  # the first of a name in the order path, query, header, body keeps it
        name = argument.name
        while name in schema["properties"] or (name != argument.name and name in wanted):
            name = f"{argument.place}_{name}"
        if name != argument.name:
            rules.add("argument_renamed")
            original[name] = f"{argument.place} {argument.name}"
        schema["properties"][name] = argument.schema
        schema["required"] += [name] if argument.is_required else []
    name = operation.get("operationId") or f"{method}_{re.sub(r'[^A-Za-z0-9]+', '_', path).strip('_')}"
    description, summary = operation.get("description"), operation.get("summary")
    # A summary says more than no description, a bare link, or a page of text.
    if isinstance(summary, str) and summary.strip():
        said = description.strip() if isinstance(description, str) and len(description) <= _LONGEST_DESCRIPTION else ""
        description = description if said and not _LINK.fullmatch(said) else summary
    responses = object_in(operation.get("responses"))
    successes = (_resolved(responses[status], document) for status in responses if str(status).startswith("2"))
    response = _json_content(next(filter(None, successes), {}))
    return SourceTool(name, description, schema, response, document, original)


def _parameters(
    path: str, item: JsonObject, operation: JsonObject, document: JsonObject, rules: set[str]
) -> list[_Argument]:
    """Return the arguments of an operation's address: of its path item, overridden by its own, and of its path."""
    found: dict[tuple[str, str], JsonObject] = {}  # OpenAPI tells parameters apart by place and name
    for entry in [*objects_in(item.get("parameters")), *objects_in(operation.get("parameters"))]:
        parameter = _resolved(entry, document)
        name, place = str(parameter.get("name")), str(parameter.get("in", "query"))
        is_transport = place not in _PLACES or (place == "header" and name.lower() in _TRANSPORT_HEADERS)
        if "name" not in parameter:
            rules.add("reference_unresolved")
        elif not is_transport and not _CREDENTIAL.fullmatch(name):
            found[place, name] = parameter
    declared = {_folded(name) for place, name in found if place == "path"}
    if any(place == "path" and each.get("required") is not True for (place, _), each in found.items()):
        rules.add("required_mended")
    for braces, colon in _PLACEHOLDER.findall(path):
        name = re.sub(r"^[+;?/.#&]|\*$|[:<].*$", "", braces or colon)
        if name and _folded(name) not in declared:
            rules.add("path_parameter_added")
            found["path", name] = {}
    return [
        _Argument(place, name, _parameter_schema(each, document), place == "path" or each.get("required") is True)
        for (place, name), each in sorted(found.items(), key=lambda pair: _PLACES.index(pair[0][0]))
    ]


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold()) or name


def _parameter_schema(parameter: JsonObject, document: JsonObject) -> JsonObject:
    schema = parameter.get("schema")
    schema = _json_content(parameter) if schema is None else schema
    if not isinstance(schema, dict):  # as in the version before, the keywords stand in the parameter itself
        schema = {key: parameter[key] for key in ("type", "enum", "items", "format", "default") if key in parameter}
    schema = schema or {"type": "string"}
    with suppress(SchemaUnconvertible):  # said when the whole tool is composed
        # The address has a place for it, so that `readOnly`, which is about fields, means nothing here.
        schema = composed_value(schema, document, dropped="")[0]
    schema = {key: value for key, value in schema.items() if key not in ("readOnly", "writeOnly")}
    said = parameter.get("description")
    return {**schema, "description": said} if isinstance(said, str) else schema


def _of_body(found: JsonValue, document: JsonObject, rules: set[str]) -> tuple[list[_Argument], JsonObject]:
    """Return the fields of an object body and what is said of all of them; any other body is one argument `body`."""
    body = _resolved(found, document)
    if found and not body:  # a call must be able to send it
        rules.add("reference_unresolved")
    elif not object_in(body.get("content")):
        return [], {}
    schema = _json_content(body)
    needed: tuple[str, ...] = ()
    with suppress(SchemaUnconvertible):  # said when the whole tool is composed
        schema, needed = composed_body({} if schema is None else schema, document)
    rules |= {*needed}
    fields = object_in(schema.get("properties")) if object_in(schema).get("type") == "object" else {}
    if not fields:
        return [_Argument("body", "body", schema, body.get("required") is True)], {}
    # The description of a body that is one thing says little of its fields; that of several lists its forms.
    said = ("additionalProperties", *(["description"] if "root_alternatives_merged" in needed else []))
    of_all = {keyword: schema[keyword] for keyword in said if schema.get(keyword)}
    return [_Argument("body", name, each, name in schema.get("required", ())) for name, each in fields.items()], of_all


def _json_content(holder: JsonObject) -> JsonValue:
    """Return the schema of the JSON media type, else of the first one; None without any."""
    content = object_in(holder.get("content"))
    of_json = [media for name, media in content.items() if "json" in str(name)]
    return object_in(next(iter([*of_json, *content.values()]), None)).get("schema")


def _resolved(node: JsonValue, document: JsonObject) -> JsonObject:
    """Follow at most 16 references inside the document, and add the keywords beside them; empty if there is none."""
    beside: JsonObject = {}
    for _ in range(16):  # references that go round in a circle lead nowhere
        if not isinstance(node, dict):
            break
        beside = {**node, **beside}
        if not isinstance(reference := node.get("$ref"), str):
            return {key: value for key, value in beside.items() if key != "$ref"}
        node = pointed_to(reference, document)
    return {}
