"""A chat completion as endpoints give it back, taken apart: text, reasoning, tool calls, tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from synthesis.records import JsonObject, JsonValue

_MOST_TOKENS: Final = 2**53
"""Largest integer that a JSON number holds exactly; a larger one is no count."""


@dataclass(frozen=True)
class Completion:
    """One assistant message and its tokens."""

    content: str = ""
    reasoning: str = ""
    """Thoughts that the endpoint gave apart from the text, under `reasoning_content` or `reasoning`."""
    message: JsonObject = field(default_factory=dict)
    """The message as it came, for a turn of a conversation."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    """Number of the completion tokens that are reasoning; None if the endpoint does not tell."""
    is_cut: bool = False
    """Whether the message was cut off at the token limit."""
    is_refused: bool = False


def completion_of(body: JsonValue) -> Completion | None:
    """Take a completion apart; None if it has no message, or no sensible count of tokens.

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
            message=dict(message),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            reasoning_tokens=None if reasoning_tokens is None else _count(reasoning_tokens),
            is_cut=finish_reason == "length",
            is_refused=bool(message.get("refusal")) or finish_reason == "content_filter",
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError):
        return None


def _count(tokens: JsonValue) -> int:
    """Return a count of tokens, 0 if the endpoint gives none: the budget adds them up.

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
