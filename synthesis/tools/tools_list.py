"""Tools as protocols list them: MCP's `tools/list`, and the `tools` of an OpenAI request."""

from __future__ import annotations

from typing import Final

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.documents import SourceServer, SourceTool, object_in, tools_in
from synthesis.tools.misplaced_keywords import parsed_text

_NONE: Final[JsonObject] = {"type": "object", "properties": {}}


def read_tools_list(document: JsonValue, name: str) -> SourceServer | None:
    """Return the server of a `tools/list` answer, bare or in its JSON-RPC envelope; None if it is something else.

    A document may say more of its server: `name`, `domain`, `language`, `description`, `argumentValues`.
    """
    if not isinstance(document, dict):
        return None
    tools = tools_in((object_in(document.get("result")) or document).get("tools"), mcp_tool)
    # An OpenAI request has `tools` as well; MCP's are told by their input schema.
    if not any(tool.parameters for tool in tools):
        return None
    info = document.get("serverInfo")
    found_name = document.get("name") or (info.get("name") if isinstance(info, dict) else info) or name
    known = object_in(document.get("argumentValues"))
    values = {argument: inner for argument, inner in known.items() if isinstance(inner, list)}
    return SourceServer(
        name=str(found_name),
        origin="mcp_tools_list",
        tools=tools,
        domain=str(document.get("domain") or "General"),
        description=str(document.get("description") or ""),
        language=document["language"] if document.get("language") in ("en", "zh") else None,
        argument_values=values,
    )


def mcp_tool(tool: JsonObject) -> SourceTool:
    """Read one tool of a `tools/list` answer, with the field names of the protocol or of its Python SDK."""
    output = tool.get("outputSchema", tool.get("output_schema"))
    return SourceTool(tool.get("name"), tool.get("description"), _input_schema(tool), output)


def _input_schema(tool: JsonObject) -> JsonValue:
    return tool.get("inputSchema", tool.get("input_schema"))


def read_openai_tools(document: JsonValue, name: str) -> SourceServer | None:
    """Return the tools of an OpenAI request as one server; None if the document is something else.

    Accepted: a list of `{"type": "function", "function": {…}}` or of bare functions, or an object with such `tools`;
    the list and its entries may be texts of JSON. A function without `parameters` takes none.
    """
    described = object_in(document)
    found = described.get("tools", described.get("functions", document))
    kinds: list[bool] = []

    def function(tool: JsonObject) -> SourceTool:
        inner = object_in(parsed_text(tool.get("function"))) or tool
        kinds.append(inner is not tool or bool(tool.keys() & {"parameters", "inputSchema", "input_schema"}))
        parameters = inner.get("parameters", _input_schema(inner))
        return SourceTool(inner.get("name"), inner.get("description"), _NONE if parameters is None else parameters)

    tools = tools_in(found, function)
    if not any(kinds):
        return None
    return SourceServer(
        name=str(described.get("name") or name),
        origin="openai_tools",
        tools=tools,
        domain=str(described.get("domain") or "General"),
        description=str(described.get("description") or ""),
    )
