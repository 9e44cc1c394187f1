"""Reading an assistant message back: its reasoning, its text and its tool calls.

The only parser of model output. A block that cannot be read is kept as a `MalformedToolCall`, which is answered with an
error and counted as a call; nothing is repaired and nothing is guessed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from astra_jax.chat_format import END_THINK, END_TOOL_CALL, IM_END, THINK, TOOL_CALL
from synthesis.records import JsonObject

_BLOCK = re.compile(f"{re.escape(TOOL_CALL)}(.*?)(?:{re.escape(END_TOOL_CALL)}|$)", re.DOTALL)


@dataclass(frozen=True)
class ParsedToolCall:
    """A call the environment can be asked for."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True)
class MalformedToolCall:
    """A block between tool-call tags that is not a call; `problem` is what the model is told."""

    text: str
    problem: str


@dataclass(frozen=True)
class ParsedTurn:
    """One assistant message, taken apart."""

    reasoning_content: str
    content: str
    tool_calls: tuple[ParsedToolCall | MalformedToolCall, ...]


def parse_turn(text: str) -> ParsedTurn:
    r"""Take an assistant message apart; tags inside the reasoning are text, not calls.

    >>> parse_turn('<think>\nlook it up\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    ParsedTurn(reasoning_content='look it up', content='', tool_calls=(ParsedToolCall(name='f', arguments={'a': 1}),))
    >>> parse_turn("<tool_call>\nf(1)\n</tool_call><|im_end|>").tool_calls[0].problem
    'the tool call is not valid JSON'
    """
    text = text.removesuffix(IM_END)
    reasoning, found, said = text.partition(END_THINK)
    if not found:
        reasoning, said = ("", text) if THINK not in text else (text, "")
    calls = tuple(_parse_call(block.group(1)) for block in _BLOCK.finditer(said))
    content = _BLOCK.sub("", said).strip("\n")
    return ParsedTurn(reasoning.replace(THINK, "", 1).strip("\n"), content, calls)


def _parse_call(block: str) -> ParsedToolCall | MalformedToolCall:
    try:
        value = json.loads(block)
    except (json.JSONDecodeError, RecursionError):
        return MalformedToolCall(block, "the tool call is not valid JSON")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedToolCall(block, 'the tool call needs a "name" that is a string')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return MalformedToolCall(block, 'the "arguments" of the tool call must be a JSON object')
    return ParsedToolCall(value["name"], arguments)
