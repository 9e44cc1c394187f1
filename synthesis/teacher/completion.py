"""A chat completion as endpoints give it back, taken apart: text, reasoning, tool calls, tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from synthesis.records import JsonObject, JsonValue

_MOST_TOKENS: Final = 2**53
"""What a number of JSON holds exactly; a larger one is no count."""


@dataclass(frozen=True)
class Completion:
    """One assistant message and what it cost."""

    content: str = ""
    reasoning: str = ""
    """What the endpoint gave apart from the text, under `reasoning_content` or `reasoning`; word for word."""
    tool_calls: tuple[JsonObject, ...] = ()
    """As they came: name and, as text, arguments under `function`."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    """Of the completion tokens, where the endpoint says so."""
    is_cut: bool = False
    """Whether it ended at the token limit."""
    is_refused: bool = False
    is_new: bool = True
    """Whether its tokens were not counted before, by an earlier command."""


def completion_of(body: JsonValue) -> Completion | None:
    """Take a completion apart; None where there is no message in it, or its tokens are counted as nobody counts.

    >>> completion_of({"choices": [{"message": {"content": "Hi.", "reasoning": "A greeting."}}]}).reasoning
    'A greeting.'
    >>> completion_of({"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": -100}})
    """
    try:
        choice = body["choices"][0]
        message, finish_reason = choice["message"], choice.get("finish_reason")
        usage = body.get("usage") or {}
        details = usage.get("completion_tokens_details") or {}
        reasoning_tokens = details.get("reasoning_tokens")
        return Completion(
            content=_text(message.get("content")),
            reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
            tool_calls=tuple(message.get("tool_calls") or ()),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            reasoning_tokens=None if reasoning_tokens is None else _count(reasoning_tokens),
            is_cut=finish_reason == "length",
            is_refused=bool(message.get("refusal")) or finish_reason == "content_filter",
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError):
        return None


def _count(tokens: JsonValue) -> int:
    """Return a count of tokens, 0 where the endpoint gives none: the budget adds them up.

    Raises:
        ValueError, TypeError, OverflowError: it is no count.
    """
    if not 0 <= (count := int(tokens or 0)) <= _MOST_TOKENS:
        raise ValueError(count)
    return count


def _text(content: JsonValue) -> str:
    """Return a message's text, whether it came as one or in parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type", "text") == "text")
    return str(content or "")
