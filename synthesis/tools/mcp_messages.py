"""Listings and answers of a tool server, read entry by entry: one odd entry hides no other.

The SDK refuses a whole page for one tool that breaks the protocol. It is shown a plain entry for each tool instead, and
tools are read as those of a file are.
"""

from __future__ import annotations

import json
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.backends import compact_json
from synthesis.tools.documents import object_in
from synthesis.tools.misplaced_keywords import parsed_text
from synthesis.tools.schema_repair import schema_error

_KINDS: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})


def shown_page(page: JsonObject, tools: list[JsonObject], left_out: list[str]) -> JsonObject:
    """Return a page of a listing as the SDK takes it; add its tools to `tools`, and its other entries to `left_out`."""
    if not isinstance(page.get("tools"), list):
        return page
    shown: list[JsonObject] = []
    for place, tool in enumerate(page["tools"], 1):
        name = object_in(tool).get("name")
        if not isinstance(name, str) or not name:
            left_out.append(f"tool left out: number {place} of its page (tool without a name)")
            continue
        if tool not in tools:
            tools.append(tool)
        output = object_in(tool.get("outputSchema"))
        is_usable = output.get("type") == "object" and not schema_error(output)
        usable = {"outputSchema": output} if is_usable else {}
        shown.append({"name": name, "inputSchema": {"type": "object"}, **usable})
    return {**page, "tools": shown, "nextCursor": page.get("nextCursor") or None}


def shown_answer(answer: JsonObject) -> JsonObject:
    """Return the answer to a call as the SDK takes it: content of kinds that it does not know becomes text."""
    content, structure = answer.get("content"), answer.get("structuredContent")
    if structure is not None:
        content = [] if content is None else content
        # As servers made with the SDK write a value that is no object.
        structure = structure if isinstance(structure, dict) else {"result": structure}
    if not isinstance(content, list):
        return answer
    known = []
    for block in content:
        said = object_in(block).get("text")
        said = said if isinstance(said, str) else compact_json(sendable(block))
        known.append(block if object_in(block).get("type") in _KINDS else {"type": "text", "text": said})
    return {**answer, "content": known, "structuredContent": structure}


def text_of_answer(content: list[Any], structure: JsonValue) -> str:
    """Return all that a tool says: the text of its content and, unless that is the same value, its structure.

    >>> text_of_answer([], {"result": [1]})
    '[1]'
    """
    texts = [_block_text(block) for block in content]
    said = "\n".join(filter(None, texts))
    if structure is None:
        return said
    structure = sendable(structure)
    value = structure["result"] if isinstance(structure, dict) and set(structure) == {"result"} else structure
    entries = value if isinstance(value, list) else [value]
    spelt = sendable([*map(parsed_text, texts)])
    is_same = (
        said in ("", str(value)) or texts == [*map(compact_json, entries)] or spelt in ([structure], [value], entries)
    )
    return compact_json(value) if is_same else f"{said}\n{compact_json(value)}"


def _block_text(block: Any) -> str:
    if block.type == "resource_link":
        return f"[resource {block.uri}: {', '.join(filter(None, (block.title or block.name, block.description)))}]"
    found = block.resource if block.type == "resource" else block
    if isinstance(text := getattr(found, "text", None), str):
        return text
    what, data = (f"resource {found.uri}", found.blob) if block.type == "resource" else (block.type, found.data)
    return f"[{what}, {found.mime_type or 'binary'}, {len(data)} characters in base64]"


def sendable(value: JsonValue) -> JsonValue:
    """Return a value with null in place of NaN and infinities, and with `?` in place of halves of characters.

    >>> sendable({"a": [float("nan"), 1.5, "\\ud800"]})
    {'a': [None, 1.5, '?']}
    """
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    return json.loads(text, parse_constant=lambda name: None)
