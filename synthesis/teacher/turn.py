"""A turn of a real conversation as endpoints give it: reasoning, text and tool calls.

reasoning    in a field, in parts of type thinking or in a `<think>` block of the text; kept once, word for word
tool calls   under `tool_calls`, or in `<tool_call>` blocks of the text where the endpoint does not take them apart; a
             message that has both is refused

Decided: docs/decisions/teacher.md, “The agent's turn is the model's own”.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final, Literal

from synthesis.foreign_messages import TOOL_CALL, require_arguments_named, require_name, require_untagged, said_of
from synthesis.records import JsonObject, JsonValue
from synthesis.teacher.completion import Completion
from synthesis.teacher.lenient_json import json_values
from synthesis.teacher.reading import Unreadable

EarlierReasoning = Literal["hidden", "reasoning_content", "reasoning", "think"]
"""The place in which a model is shown its reasoning of earlier turns: none, a field of its message, or its text."""

_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def turn_of(completion: Completion) -> tuple[JsonObject, Counter[str]]:
    r"""Return reasoning, content and calls of a completion, and the mendings by name.

    Raises:
        Unreadable: there is nothing in it, or a call cannot be read.
        MessageRefused: thoughts do not end or differ from others, a part is neither text nor thoughts, arguments have
            another name, or a call stands in the text beside other calls.

    >>> turn, mended = turn_of(Completion(message={"content": "<think>\nHm.\n</think>\n\nDone."}))
    >>> turn["reasoning"], turn["content"], dict(mended)
    ('\nHm.\n', 'Done.', {'thoughts in the text': 1})
    """
    mended: Counter[str] = Counter()
    content, thoughts, block = said_of(completion.message, "message")
    mended.update(["thoughts in the text"] if block else [])
    entries = completion.message.get("tool_calls") or []
    if not isinstance(entries, list):
        raise Unreadable("tool calls that are no list")
    # A call that is no object is refused, as one without a name is: the others may not be meant without it.
    calls = [_call(entry.get("function") if isinstance(entry, dict) else None, mended) for entry in entries]
    if not calls and TOOL_CALL in content:
        calls = [_call(_first_object(block), mended) for block in _CALL.findall(content)]
        content = _CALL.sub("", content).rstrip()
        mended["calls in the text"] += 1
    require_untagged(content, "message.content")
    if not calls and not content.strip():
        raise Unreadable("an empty message: neither text nor a tool call")
    turn = {"reasoning": thoughts or "", "content": content, "tool_calls": calls}
    return {**turn, "reasoning_tokens": completion.reasoning_tokens}, mended


def _call(function: JsonValue, mended: Counter[str]) -> JsonObject:
    if not isinstance(function, dict):
        raise Unreadable("a tool call without a function")
    name, given = require_name(function.get("name"), "the name of a call"), function.get("arguments")
    arguments: JsonValue = {}  # of a tool that takes none
    if isinstance(given, dict):
        arguments = given
    elif given and str(given).strip():
        found = next((found for found in json_values(str(given)) if isinstance(found.value, dict)), None)
        if found is None:
            raise Unreadable(f"arguments of {name} that are no JSON object")
        mended += Counter(found.mended)
        arguments = found.value
    require_arguments_named(function, arguments, f"the arguments of {name}")
    return {"name": name, "arguments": arguments}


def _first_object(text: str) -> JsonValue:
    return next((found.value for found in json_values(text) if isinstance(found.value, dict)), None)


def with_reasoning_as(shown: EarlierReasoning, message: JsonObject) -> JsonObject:
    """Return a message as its model is to be shown it.

    >>> said = {"role": "assistant", "content": "Hi.", "reasoning_content": "Hm."}
    >>> with_reasoning_as("hidden", said), with_reasoning_as("think", said)["content"]
    ({'role': 'assistant', 'content': 'Hi.'}, '<think>Hm.</think>\\n\\nHi.')
    """
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    reasoning = message.get("reasoning_content")
    if not reasoning or shown == "hidden":
        return rest
    if shown == "think":
        return {**rest, "content": f"<think>{reasoning}</think>\n\n{rest.get('content') or ''}"}
    return {**rest, shown: reasoning}
