"""The parser of an assistant message: its reasoning, its text and its tool calls.

It is the only parser of model output. A block that cannot be read becomes a `MalformedToolCall`, which is answered with
an error and counted as a call; nothing is repaired or guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic_core import from_json

from astra_jax.chat.format import END_OF_TEXT, END_THINK, END_TOOL_CALL, IM_END, THINK, TOOL_CALL
from sandbox.protocol import nests_too_deep
from synthesis.records import JsonObject, canonical_json

_BLANKS: Final = re.compile(r"\s*")
_FIRST_OF_JSON: Final = frozenset('{["-0123456789tfnNI')
"""First characters of a value that `json` reads."""


@dataclass(frozen=True)
class ParsedToolCall:
    """A call that can be sent to the environment."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True)
class MalformedToolCall:
    """A block between tool-call tags that is not a call; `problem` is the message to the model."""

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
    text = text.removesuffix(IM_END).removesuffix(END_OF_TEXT)
    reasoning, said = _cut_off_thoughts(text)
    pieces = list(cut_at_calls(said))
    content = "".join(piece for piece, call in pieces if call is None)
    calls = tuple(call for _, call in pieces if call is not None)
    return ParsedTurn(reasoning.replace(THINK, "", 1).strip("\n"), content.strip("\n"), calls)


def _cut_off_thoughts(text: str) -> tuple[str, str]:
    """Return the reasoning, without its end tag, and the text after it."""
    end, called = text.find(END_THINK), text.find(TOOL_CALL)
    # A tag inside the JSON of a call is part of an argument.
    while 0 <= called < end:
        after = _json_end(text, called + len(TOOL_CALL))
        end = text.find(END_THINK, after) if end < after else end
        called = text.find(TOOL_CALL, after)
    if end >= 0:
        return text[:end], text[end + len(END_THINK) :]
    # Thoughts that never end contain no call: the message was cut off, or the policy never stopped thinking.
    thinks = THINK in text.partition(TOOL_CALL)[0]
    return (text, "") if thinks else ("", text)


def cut_at_calls(text: str) -> Iterator[tuple[str, ParsedToolCall | MalformedToolCall | None]]:
    """Yield a text in pieces: blocks from tag to tag with their calls, and the text between them with None.

    A block that never closes runs to the end.
    """
    position = 0
    while (opened := text.find(TOOL_CALL, position)) >= 0:
        yield text[position:opened], None
        start = opened + len(TOOL_CALL)
        closed = text.find(END_TOOL_CALL, _json_end(text, start))
        end = closed if closed >= 0 else len(text)
        position = end + len(END_TOOL_CALL)
        yield text[opened:position], parse_call(text[start:end])
    yield text[position:], None


def _json_end(text: str, start: int) -> int:
    """Return the index after the JSON value at `start`, so that a tag inside one of its strings closes nothing."""
    start = _BLANKS.match(text, start).end()  # type: ignore[union-attr]  # matches everywhere, if need be no blank
    # Checked first, since the decoder's error would count the lines of all text before it.
    if text[start : start + 1] not in _FIRST_OF_JSON:
        return start
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return start


def parse_call(block: str) -> ParsedToolCall | MalformedToolCall:
    """Read the block between the tags of a tool call: an object of `name` and `arguments`, without any other key.

    The prompt prescribes both keys. A call with another key such as `parameters` in place of `arguments` is malformed:
    without its arguments it would do something else.

    >>> parse_call('{"name": "f", "parameters": {}}').problem
    'the tool call must have "name" and "arguments", and no other key'
    """
    try:
        value = from_json(block.encode(), allow_inf_nan=False)
        canonical_json(value)  # refuses values that Python reads but JSON cannot express: 1e999 is infinity
    except ValueError:
        return MalformedToolCall(block, "the tool call is not valid JSON")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedToolCall(block, 'the tool call needs a "name" that is a string')
    if value.keys() != {"name", "arguments"}:
        return MalformedToolCall(block, 'the tool call must have "name" and "arguments", and no other key')
    arguments = value["arguments"]
    if not isinstance(arguments, dict):
        return MalformedToolCall(block, 'the "arguments" of the tool call must be a JSON object')
    if nests_too_deep(arguments):
        return MalformedToolCall(block, 'the "arguments" of the tool call have too many objects within each other')
    return ParsedToolCall(value["name"], arguments)
