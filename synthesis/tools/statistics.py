"""Statistics of the parameters that the documents of kept servers state or leave open."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from synthesis.records import JsonValue, ServerDocument
from synthesis.tools.names import is_name_of_number


class ToolDocumentStatistics(BaseModel):
    """Counts over the tools of a set of servers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: int = 0
    tools_without_parameters: int = 0
    """Number of tools whose source says that they take no parameters."""
    tools_of_unknown_parameters: int = 0
    parameters: int = 0
    parameters_without_description: int = 0
    numbers_typed_as_strings: int = 0
    """Number of parameters of type `string` whose name is that of a number."""


def tool_document_statistics(servers: Iterable[ServerDocument]) -> ToolDocumentStatistics:
    """Count the parameters of documents; the inner ones of objects are not looked at."""
    counts = dict.fromkeys(ToolDocumentStatistics.model_fields, 0)
    for tool in (tool for server in servers for tool in server.tools):
        properties: dict[str, JsonValue] = tool.parameters.get("properties", {})
        counts["tools"] += 1
        counts["tools_of_unknown_parameters"] += tool.parameters_status == "unknown"
        counts["tools_without_parameters"] += not properties and tool.parameters_status != "unknown"
        counts["parameters"] += len(properties)
        for name, schema in properties.items():
            described = schema if isinstance(schema, dict) else {}
            counts["parameters_without_description"] += not str(described.get("description") or "").strip()
            counts["numbers_typed_as_strings"] += described.get("type") == "string" and is_name_of_number(name)
    return ToolDocumentStatistics(**counts)
