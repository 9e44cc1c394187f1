"""Tools as protocols list them: MCP's `tools/list`, and the `tools` of an OpenAI request."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.documents import SourceServer, SourceTool, object_in, objects_in, tools_in
from synthesis.tools.misplaced_keywords import parsed_text
from synthesis.tools.schema_repair import as_list

_NONE: Final[JsonObject] = {"type": "object", "properties": {}}


def read_tools_list(document: JsonValue, name: str) -> SourceServer | None:
    """Return the server of a list of tools; None if the document is something else.

    Of MCP: a `tools/list` answer, bare or in its JSON-RPC envelope. Of OpenAI: a list of functions, bare or as
    `{"type": "function", "function": {…}}`, or an object with such `tools` or `functions`; the list and its entries may
    be texts of JSON. A function of OpenAI without `parameters` takes none if another one states its own. A document may
    say more of its server: `name`, `domain`, `language`, `description`, `argumentValues`.
    """
    said = object_in(document)
    found = (object_in(said.get("result")) or said).get("tools", said.get("functions", document))
    tools = tools_in(found, listed_tool)
    if all(tool.parameters is None for tool in tools):
        return None
    listed = objects_in([*map(parsed_text, as_list(parsed_text(found)))]) if said else []
    is_mcp = any(entry.get("inputSchema") or entry.get("input_schema") for entry in listed)
    info = said.get("serverInfo")
    known = object_in(said.get("argumentValues"))
    return SourceServer(
        name=str(said.get("name") or (info.get("name") if isinstance(info, dict) else info) or name),
        origin="mcp_tools_list" if is_mcp else "openai_tools",
        tools=[replace(tool, parameters=_NONE) if tool.parameters is None and not is_mcp else tool for tool in tools],
        domain=str(said.get("domain") or "General"),
        description=str(said.get("description") or ""),
        language=said["language"] if said.get("language") in ("en", "zh") else None,
        argument_values={argument: values for argument, values in known.items() if isinstance(values, list)},
    )


def listed_tool(entry: JsonObject) -> SourceTool:
    """Read one tool of a list, with the field names of MCP, of its Python SDK, or of OpenAI."""
    function = object_in(parsed_text(entry.get("function")))
    tool = function or entry
    stated = [tool[key] for key in ("inputSchema", "input_schema", "parameters") if tool.get(key) is not None]
    parameters = stated[0] if stated else _NONE if function else None
    output = tool.get("outputSchema", tool.get("output_schema"))
    return SourceTool(tool.get("name"), tool.get("description"), parameters, output)
