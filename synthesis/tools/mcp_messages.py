"""What a tool server lists and answers, read entry by entry: one odd entry hides no other.

The SDK refuses a whole page for one tool that breaks the protocol. It is shown a plain entry for each tool instead, and
tools are read as those of a file are.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue
from synthesis.tools.backends import compact_json
from synthesis.tools.documents import object_in
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
            left_out.append(
                f"tool left out: number {place} of its page ({'tool without a name' if tool else 'no tool'})"
            )
            continue
        if tool in tools:
            left_out.append(f"tool left out: {name} (listed twice)")
        else:
            tools.append(tool)
        output = tool.get("outputSchema")
        is_usable = isinstance(output, dict) and output.get("type") == "object" and not schema_error(output)
        shown.append(
            {"name": name, "inputSchema": {"type": "object"}, **({"outputSchema": output} if is_usable else {})}
        )
    return {**page, "tools": shown, "nextCursor": page.get("nextCursor") or None}


def shown_answer(answer: JsonObject) -> JsonObject:
    """Return the answer to a call as the SDK takes it: content of kinds that it does not know becomes text."""
    content, structure = answer.get("content"), answer.get("structuredContent")
    if structure is not None and not isinstance(structure, dict):  # as servers made with the SDK write it
        answer = {**answer, "structuredContent": {"result": structure}}
    content = [] if content is None and structure is not None else content
    if not isinstance(content, list):
        return answer
    known = [
        block if object_in(block).get("type") in _KINDS else {"type": "text", "text": _as_text(block)}
        for block in content
    ]
    return {**answer, "content": known}


def _as_text(block: JsonValue) -> str:
    found = object_in(block).get("text")
    return found if isinstance(found, str) else compact_json(without_infinities(block))


def text_of_answer(content: list[Any], structure: JsonValue) -> str:
    """Return all that a tool says: the text of its content and, unless that is the same value, its structure.

    >>> text_of_answer([], {"result": [1]})
    '[1]'
    """
    said = "\n".join(filter(None, map(_block_text, content)))
    if structure is None:
        return said
    structure = without_infinities(structure)
    # Servers made with the SDK put a value that is no object under `result`: structured content must be one.
    value = structure["result"] if isinstance(structure, dict) and set(structure) == {"result"} else structure
    entries = value if isinstance(value, list) else [value]
    written = {compact_json(structure), compact_json(value), "\n".join(map(compact_json, entries)), str(value), ""}
    try:
        spelt = [without_infinities(json.loads(block.text)) for block in content if block.type == "text"]
        is_same = said in written or (len(spelt) == len(content) and spelt in ([structure], [value], entries))
    except (ValueError, RecursionError):  # a text, and no structure
        is_same = said in written
    return compact_json(value) if is_same else f"{said}\n{compact_json(value)}"


def _block_text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource" if getattr(block.resource, "text", None) is not None:
            return str(block.resource.text)
        case "resource":
            found = block.resource
            return f"[resource {found.uri}, {found.mime_type or 'binary'}, {len(found.blob)} characters in base64]"
        case "resource_link":
            said = (block.title or block.name, block.description)
            return f"[resource {block.uri}: {', '.join(filter(None, said))}]"
    return f"[{block.type}, {block.mime_type}, {len(block.data)} characters in base64]"


def without_infinities(value: JsonValue) -> JsonValue:
    """Return a value with null in place of NaN and infinities, which Python writes and JSON does not have.

    >>> without_infinities({"a": [float("nan"), 1.5]})
    {'a': [None, 1.5]}
    """
    if isinstance(value, dict):
        return {key: without_infinities(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_infinities(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
