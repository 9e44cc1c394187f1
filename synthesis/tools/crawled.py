"""Crawled MCP servers: documents with `metadata.server_info_crawled`, in two shapes of tool.

Shape A has `input_schema`, a JSON Schema. Shape B was read off web pages: `parameters: [{name, required, type}]`, the
type always "string", with words of the page among the parameters. A page that shows none, or words alone, does not say
that the tool takes none: its parameters are unknown. So are those of a schema that does not speak of properties.

Decided: docs/decisions/tools.md, “A tool whose parameters are unknown is not a tool without parameters”.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.documents import SourceServer, SourceTool, object_in, objects_in, tools_in
from synthesis.tools.names import is_name_of_number

NUMBER_BY_NAME: Final = "number read off a parameter's name"
_NOT_PARAMETERS: Final = frozenset({"true", "false", "none", "null", ""})


def read_crawled(document: JsonValue, name: str) -> SourceServer | None:
    """Return the one server of a crawled document, or None if the document is something else."""
    metadata = object_in(object_in(document).get("metadata"))
    crawled = object_in(metadata.get("server_info_crawled"))
    if "tools" not in crawled:
        return None
    repairs: set[str] = set()
    tools = tools_in(crawled["tools"], lambda tool: _tool(tool, repairs))
    return SourceServer(
        name=str(crawled.get("name") or metadata.get("server_name") or name),
        origin="crawled",
        tools=tools,
        domain=str(object_in(object_in(document).get("labels")).get("primary_label") or "General"),
        description=str(crawled.get("overview") or ""),
        repairs=tuple(sorted(repairs)),
    )


def _tool(found: JsonObject, repairs: set[str]) -> SourceTool:
    parameters, page = found.get("input_schema"), found.get("parameters")
    if isinstance(page, list) and not object_in(parameters).get("properties"):
        said = str(found.get("description") or "")
        from_page = parameters_from_page(page, str(found.get("name")), said, repairs)
        parameters = from_page if from_page["properties"] else None
    elif isinstance(parameters, dict) and not parameters.keys() - {"type", "title", "description", "$schema"}:
        parameters = None
    return SourceTool(found.get("name"), found.get("description"), parameters, found.get("output_schema"))


def parameters_from_page(found: list[JsonValue], tool_name: str, description: str, repairs: set[str]) -> JsonObject:
    """Make a schema of parameters read off a page, without the words of the page.

    Left out: a parameter named like its own tool, Python's `True` and `None`, leading optional "parameters" that are
    words of the description, and the button "Add" "Item", which stands under a list.

    >>> def properties_from(names, description):
    ...     found = [{"name": name.rstrip("*"), "required": name.endswith("*")} for name in names.split()]
    ...     return parameters_from_page(found, "create_note", description, set())["properties"]
    >>> properties_from("create_note Create a new title* limit", "Create a new note.")
    {'title': {'type': 'string'}, 'limit': {'type': 'number'}}
    >>> properties_from("tags Add Item", "Create a note with tags.")
    {'tags': {'type': 'array', 'items': {}}}
    """
    named = [entry for entry in objects_in(found) if isinstance(entry.get("name"), str)]
    entries = [e for e in named if e["name"] != tool_name and e["name"].strip().casefold() not in _NOT_PARAMETERS]
    entries = entries[_length_of_sentence(entries, description) :]
    # The place of "Add" in every optional "Add" "Item".
    buttons = {
        place
        for place, pair in enumerate(itertools.pairwise(entries))
        if [entry["name"] for entry in pair] == ["Add", "Item"] and not any(entry.get("required") for entry in pair)
    }
    properties: JsonObject = {}
    required: dict[str, None] = {}
    for place, entry in enumerate(entries):
        if place in buttons or place - 1 in buttons:
            continue
        name, schema = entry["name"], {"type": entry.get("type") or "string"}
        if place + 1 in buttons:
            schema = {"type": "array", "items": {}}
        elif schema == {"type": "string"} and is_name_of_number(name):  # pages call everything a string
            repairs.add(NUMBER_BY_NAME)
            schema = {"type": "number"}
        properties[name] = schema
        required |= {name: None} if entry.get("required") is True else {}
    if len(entries) - 2 * len(buttons) < len(found):
        repairs.add("page residue removed")
    return {"type": "object", "properties": properties, **({"required": [*required]} if required else {})}


def _length_of_sentence(parameters: list[JsonObject], description: str) -> int:
    """Count the leading optional entries that are words of one sentence of the description, in its order.

    One word alone is taken for the description's if it is the first of a sentence.
    """
    optional = itertools.takewhile(lambda entry: entry.get("required") is not True, parameters)
    words = [entry["name"] for entry in optional]
    longest = 0
    if words and re.fullmatch(r"[A-Z][a-z]+", words[0]):
        for sentence in re.split(r"[.:;!?\n]+", description):
            said = re.findall(r"[\w'-]+", sentence)
            for start in (place for place, word in enumerate(said) if word == words[0]):
                place, count = start, 1
                # The next word, or the one after it: a page loses words, never two in a row.
                while count < len(words) and words[count] in said[place + 1 : place + 3]:
                    place = said.index(words[count], place + 1)
                    count += 1
                longest = max(longest, count if count > 1 or start == 0 else 0)
    return longest
