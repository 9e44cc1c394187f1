"""RapidAPI documents: lists of the endpoints of one API, and lines `{"tool", "functions"}`."""

from __future__ import annotations

import re

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.documents import SourceServer, SourceTool, objects_in, tools_in

_BOILERPLATE = re.compile(
    r'This is the subfunction for tool "[^"]*", you can use this tool\.\s*'
    r'(The description of this function is: "(.*)"\s*)?',
    re.DOTALL,
)


def read_endpoints(document: JsonValue, name: str) -> SourceServer | None:
    """Return the server of a list of endpoints (`api_name`, `required_parameters` …); None if it is something else."""
    first = next((each for each in objects_in(document) if "api_name" in each), None)
    if first is None:
        return None
    return SourceServer(
        name=str(first.get("tool_name") or name),
        origin="rapidapi",
        tools=tools_in(document, _endpoint),
        domain=str(first.get("category_name") or "General"),
    )


def _endpoint(endpoint: JsonObject) -> SourceTool:
    properties: JsonObject = {}
    required: list[str] = []
    for key in ("required_parameters", "optional_parameters"):
        for parameter in objects_in(endpoint.get(key)):
            if isinstance(name := parameter.get("name"), str):
                described = {"description": parameter["description"]} if parameter.get("description") else {}
                properties[name] = {"type": str(parameter.get("type") or "string").lower(), **described}
                required += [name] if key == "required_parameters" else []
    schema = {"type": "object", "properties": properties, "required": required}
    returned = _template_schema(endpoint.get("template_response"))
    return SourceTool(endpoint.get("api_name"), endpoint.get("api_description"), schema, returned)


def _template_schema(template: JsonValue) -> JsonObject:
    """Read `{"id": "str", "rows": [{"n": "int"}]}`, a picture of a response, as a schema."""
    if isinstance(template, dict):
        # `_list_length` says how long a list was in the response; it is no field.
        inner = {name: _template_schema(value) for name, value in template.items() if name != "_list_length"}
        return {"type": "object", "properties": inner}
    if isinstance(template, list):
        return {"type": "array", "items": _template_schema(template[0]) if template else {}}
    return {"type": template.split(" ")[0]} if isinstance(template, str) else {}


def read_function_line(document: JsonValue, _: str) -> SourceServer | None:
    """Return the server of one line `{"tool": …, "functions": […]}`; None if it is something else."""
    if not isinstance(document, dict) or "tool" not in document or not isinstance(document.get("functions"), list):
        return None
    server = str(document["tool"])

    def tool(function: JsonObject) -> SourceTool:
        return SourceTool(function.get("name"), _own_words(function, server), function.get("parameters"))

    return SourceServer(name=server, origin="rapidapi", tools=tools_in(document["functions"], tool))


def _own_words(function: JsonObject, server: str) -> JsonValue:
    """Return the words of the API's author, without the additions of the collection.

    It put a sentence around each description, and its own names of functions, `<name>_for_<server>`, in place of words.

    >>> before = 'This is the subfunction for tool "x", you can use this tool.'
    >>> said = 'The description of this function is: "list_for_x teams"'
    >>> _own_words({"name": "list_for_x", "description": before + said}, "x")
    'list teams'
    >>> _own_words({"name": "list_for_x", "description": before}, "x")
    ''
    """
    description, name = function.get("description"), function.get("name")
    if not isinstance(description, str) or not isinstance(name, str):
        return description
    if whole := _BOILERPLATE.fullmatch(description):
        description = whole[2] or ""
    if description.strip(" .") == name:  # left as it is, so that `documents` finds a name said again
        return description
    return description.replace(name, name.removesuffix(f"_for_{server}").replace("_", " "))
