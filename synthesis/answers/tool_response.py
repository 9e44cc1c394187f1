"""The text of a tool's reply, as an agent reads it."""

from __future__ import annotations

import json

from sandbox.client import ExecuteReply


def tool_response(reply: ExecuteReply) -> str:
    """Return the value as JSON, or the tool's error in one line."""
    if reply.error is None:
        return json.dumps(reply.value, ensure_ascii=False)
    return error_response(reply.error.message or reply.error.kind.value)


def error_response(message: str) -> str:
    """Return the text that tells an agent that a call failed.

    >>> error_response("unknown tool")
    '{"error": "unknown tool"}'
    """
    return json.dumps({"error": message}, ensure_ascii=False)
