"""A turn of a real conversation, as endpoints give it: reasoning, text and tool calls, several at once.

reasoning    under `reasoning_content`, under `reasoning`, or in a `<think>` block of the text; kept word for word
tool calls   under `tool_calls`, or in `<tool_call>` blocks of the text where the endpoint does not take them apart

Decided: docs/decisions/teacher.md, “The agent's turn is the model's own”.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final, Literal

from synthesis.records import JsonObject, JsonValue
from synthesis.teacher.completion import Completion
from synthesis.teacher.lenient_json import json_values
from synthesis.teacher.reading import Unreadable

EarlierReasoning = Literal["hidden", "reasoning_content", "reasoning", "think"]
"""How a model is shown what it thought in earlier turns: not at all, in a field of its message, or in its text."""

_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def turn_of(completion: Completion) -> tuple[JsonObject, Counter[str]]:
    r"""Return reasoning, content and calls of a completion, and what had to be mended to read them.

    Raises:
        Unreadable: there is nothing in it, a call has no name or no arguments, or the thoughts do not end.

    >>> turn, mended = turn_of(Completion("<think>\nHm.\n</think>\n\nDone."))
    >>> turn["reasoning"], turn["content"], dict(mended)
    ('\nHm.\n', 'Done.', {'thoughts in the text': 1})
    """
    mended: Counter[str] = Counter()
    content, reasoning = completion.content, completion.reasoning
    if not reasoning and "</think>" in content:  # some templates open the block themselves
        reasoning, _, content = content.partition("</think>")
        reasoning, content = reasoning.removeprefix("<think>"), content.lstrip("\n")
        mended["thoughts in the text"] += 1
    elif content.lstrip().startswith("<think>"):
        raise Unreadable("thoughts that do not end")
    # A call that is no object is refused, as one without a name is: the others may not be meant without it.
    calls = [_call(call.get("function") if isinstance(call, dict) else None, mended) for call in completion.tool_calls]
    if not calls and "<tool_call>" in content:
        calls = [_call(_first_object(block), mended) for block in _CALL.findall(content)]
        if len(calls) < content.count("<tool_call>"):
            raise Unreadable("a tool call that does not end")
        content = content.partition("<tool_call>")[0].rstrip()
        mended["calls in the text"] += 1
    if not calls and not content.strip():
        raise Unreadable("an empty message: neither text nor a tool call")
    turn = {"reasoning": reasoning, "content": content, "tool_calls": calls}
    return {**turn, "reasoning_tokens": completion.reasoning_tokens}, mended


def _call(function: JsonValue, mended: Counter[str]) -> JsonObject:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Unreadable("a tool call without a name")
    given = function.get("arguments")
    if isinstance(given, dict):
        return {"name": function["name"], "arguments": given}
    if not given or (isinstance(given, str) and not given.strip()):  # a call of a tool that takes none
        return {"name": function["name"], "arguments": {}}
    found = next((found for found in json_values(str(given)) if isinstance(found.value, dict)), None)
    if found is None:
        raise Unreadable(f"arguments of {function['name']} that are no JSON object")
    mended += Counter(found.mended)
    return {"name": function["name"], "arguments": found.value}


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
