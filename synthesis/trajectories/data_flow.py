"""Data flow in a conversation: arguments whose values stand first in the response of an earlier turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from synthesis.records import JsonValue, Message, Trajectory
from synthesis.run.json_values import canonical_json

LEAST_CHARACTERS: Final = 4
"""Least number of characters of a value that counts: shorter ones, as `en` or `12`, match by chance."""


def has_several_calls(trajectory: Trajectory) -> bool:
    """Say whether a conversation has several calls; one that is made again after a failure is the same call."""
    calls = {canonical_json([c.name, c.arguments]) for message in trajectory.messages for c in message.tool_calls}
    return len(calls) > 1


def has_data_flow(trajectory: Trajectory) -> bool:
    """Say whether a call uses a value that its agent can know only from the response to an earlier call."""
    return next(values_passed_on(trajectory), None) is not None


def values_passed_on(trajectory: Trajectory) -> Iterator[JsonValue]:
    """Yield each value of a call that stands, as a value, in a response of an earlier turn, and nowhere before it.

    Words of the user, arguments of earlier calls and the tools' documents come before. Truth values, and values of
    fewer than four characters, match by chance and do not count.
    """
    told: set[str] = set()
    documents = canonical_json([tool.to_openai() for tool in trajectory.tools])
    said: list[str] = [documents]
    waiting: list[Message] = []
    for message in trajectory.messages:
        if message.role == "assistant":
            for response in waiting:
                new = set(_values(_parsed(response.content)))
                told |= {value for value in new if not any(value in text for text in said)}
            waiting = []
            for call in message.tool_calls:
                yield from (value for value in _values(call.arguments) if value in told)
            said += [value for call in message.tool_calls for value in _values(call.arguments)]
        elif message.role == "user":
            said.append(message.content)
            told = {value for value in told if value not in message.content}
        elif not message.is_error:
            waiting.append(message)


def _parsed(content: str) -> JsonValue:
    try:
        return json.loads(content)
    except ValueError:
        return content


def _values(value: JsonValue) -> Iterator[str]:
    """Yield the scalars of a JSON value that are long enough to tell something, as texts."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _values(inner)
    elif not isinstance(value, bool) and value is not None and len(str(value)) >= LEAST_CHARACTERS:
        yield str(value)
