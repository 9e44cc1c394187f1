"""Crawled MCP servers: `{"labels": …, "metadata": {"server_info_crawled": {"tools": […]}}}`, two shapes of tool.

Shape A has `input_schema`, a JSON Schema. Shape B was read off web pages: `parameters: [{name, required, type}]`, the
type always "string", with words of the page among the parameters.
"""

from __future__ import annotations

import re
from typing import Final

from synthesis.records import JsonObject, JsonValue
from synthesis.trajectories.tool_documents import SourceServer, SourceTool

ORIGIN: Final = "crawled"
_NOT_PARAMETERS: Final = frozenset({"true", "false", "none", "null", ""})


def read_crawled(document: JsonValue) -> list[SourceServer] | None:
    """Return the one server of a crawled document, or None if the document is something else."""
    if not isinstance(document, dict) or not isinstance(metadata := document.get("metadata"), dict):
        return None
    crawled = metadata.get("server_info_crawled")
    if not isinstance(crawled, dict) or "tools" not in crawled:
        return None
    labels = document.get("labels") if isinstance(document.get("labels"), dict) else {}
    assert isinstance(labels, dict)
    repairs: set[str] = set()
    tools = [_tool(tool, repairs) for tool in crawled["tools"] or () if isinstance(tool, dict)]
    return [
        SourceServer(
            name=str(crawled.get("name") or metadata.get("server_name") or "unnamed"),
            origin=ORIGIN,
            tools=tools,
            domain=str(labels.get("primary_label") or "General"),
            description=str(crawled.get("overview") or ""),
            repairs=tuple(sorted(repairs)),
        )
    ]


def _tool(found: JsonObject, repairs: set[str]) -> SourceTool:
    parameters = found.get("input_schema")
    if isinstance(found.get("parameters"), list):
        parameters = parameters_from_page(found["parameters"], str(found.get("name")), repairs)
    return SourceTool(found.get("name"), found.get("description"), parameters, found.get("output_schema"))


def parameters_from_page(found: list[JsonValue], tool_name: str, repairs: set[str]) -> JsonObject:
    """Make a schema of parameters read off a page, without the words of the page.

    Left out: a parameter named like its own tool, Python's `True` and `None`, and a leading run of optional
    "parameters" that is the beginning of a sentence ("Create", "a", "new").

    >>> names = [{"name": n, "required": r} for n, r in [("Create", False), ("a", False), ("title", True)]]
    >>> parameters_from_page(names, "create_note", set())
    {'type': 'object', 'properties': {'title': {'type': 'string'}}, 'required': ['title']}
    """
    parameters = [entry for entry in found if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
    names = [entry["name"] for entry in parameters]
    sentence = _leading_sentence(parameters)
    properties: JsonObject = {}
    required = []
    for position, (entry, name) in enumerate(zip(parameters, names, strict=True)):
        if name == tool_name or name.strip().casefold() in _NOT_PARAMETERS or position < sentence:
            repairs.add("page residue removed")
            continue
        properties[name] = {"type": entry.get("type") or "string"}
        if entry.get("required") is True and name not in required:
            required.append(name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _leading_sentence(parameters: list[JsonObject]) -> int:
    """Count the leading optional entries that are words of a sentence: a capitalised word, then plain words."""
    count = 0
    for entry in parameters:
        pattern = r"[A-Z][a-z]+" if count == 0 else r"[A-Za-z]+"
        if entry.get("required") is True or not re.fullmatch(pattern, entry["name"]):
            break
        count += 1
    return count if count > 1 else 0
