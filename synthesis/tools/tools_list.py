"""Tools as protocols list them: MCP's `tools/list`, and the `tools` of an OpenAI request."""

from __future__ import annotations

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.documents import SourceServer, SourceTool, object_in, objects_in


def read_tools_list(document: JsonValue, name: str) -> SourceServer | None:
    """Return the server of a `tools/list` answer, bare or in its JSON-RPC envelope; None if it is something else.

    A document may say more of its server: `name`, `domain`, `language`, `description`, `argumentValues`.
    """
    if not isinstance(document, dict):
        return None
    tools = objects_in((object_in(document.get("result")) or document).get("tools"))
    # An OpenAI request has `tools` as well; MCP's are told by their input schema.
    if not any(map(_input_schema, tools)):
        return None
    info = document.get("serverInfo")
    found_name = document.get("name") or (info.get("name") if isinstance(info, dict) else info) or name
    known = object_in(document.get("argumentValues"))
    values = {argument: inner for argument, inner in known.items() if isinstance(inner, list)}
    return SourceServer(
        name=str(found_name),
        origin="mcp_tools_list",
        tools=[mcp_tool(tool) for tool in tools],
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

    Accepted: a list of `{"type": "function", "function": {…}}` or of bare functions, or an object with such `tools`.
    """
    described = object_in(document)
    tools = described.get("tools", document)
    if not isinstance(tools, list) or not tools:
        return None
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]
    if not functions or not all(isinstance(f, dict) and "name" in f and "parameters" in f for f in functions):
        return None
    return SourceServer(
        name=str(described.get("name") or name),
        origin="openai_tools",
        tools=[SourceTool(f["name"], f.get("description"), f["parameters"]) for f in functions],
        domain=str(described.get("domain") or "General"),
        description=str(described.get("description") or ""),
    )
