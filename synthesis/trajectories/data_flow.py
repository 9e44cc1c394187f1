"""Data flow in a conversation: arguments whose values stand first in the response of an earlier turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from synthesis.records import JsonValue, Trajectory
from synthesis.run.json_values import canonical_json

_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_HAN: Final = re.compile(r"[\u3400-\u9fff]")
_LEAST_CHARACTERS: Final = 4
_LEAST_CHINESE_CHARACTERS: Final = 2
"""Least number of characters of a value that counts, and of one with Chinese: shorter ones match by chance."""


def has_several_calls(trajectory: Trajectory) -> bool:
    """Say whether a conversation has several calls; one that is made again after a failure is the same call."""
    calls = {canonical_json([c.name, c.arguments]) for message in trajectory.messages for c in message.tool_calls}
    return len(calls) > 1


def has_data_flow(trajectory: Trajectory) -> bool:
    """Say whether a call uses a value that stands, as a value, in a response of an earlier turn, and nowhere before it.

    Words of the user, arguments of earlier calls and the tools' documents come before. Truth values and short values
    match by chance and do not count. Capitals and the commas of thousands make no difference.
    """
    said = [_plain(canonical_json([tool.to_openai() for tool in trajectory.tools]))]
    told: set[str] = set()
    waiting: list[str] = []
    for message in trajectory.messages:
        if message.role == "assistant":
            told |= {value for value in waiting if not any(value in text for text in said)}
            waiting = []
            given = [value for call in message.tool_calls for value in _values(call.arguments)]
            if not told.isdisjoint(given):
                return True
            said += given
        elif message.role == "user":
            said.append(_plain(message.content))
            told = {value for value in told if value not in said[-1]}
        elif not message.is_error:
            waiting += _values(parsed(message.content))
    return False


def _plain(text: str) -> str:
    """Return a text without differences that make no other value.

    >>> _plain("Room A-7 for 1,250,000")
    'room a-7 for 1250000'
    """
    return _THOUSANDS.sub("", text).casefold()


@lru_cache(maxsize=64)  # an agent and its judges read each response of a conversation some ten times
def parsed(content: str) -> JsonValue:
    """Return a response's JSON value, not to be changed, or its text where it is no JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def _values(value: JsonValue) -> Iterator[str]:
    """Yield the scalars of a JSON value that are long enough to tell something, as plain texts."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _values(inner)
    elif not isinstance(value, bool) and value is not None:
        text = _plain(str(value))
        if len(text) >= (_LEAST_CHINESE_CHARACTERS if _HAN.search(text) else _LEAST_CHARACTERS):
            yield text
