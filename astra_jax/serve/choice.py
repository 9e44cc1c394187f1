"""One message of a reply while it is sampled: its tokens, its text, and what that is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from astra_jax.engine.interface import Finish, Generated, Session
from astra_jax.serve.message_text import MessageText
from astra_jax.serve.messages import Called, MessageParts, Part, Said

FinishReason = Literal["stop", "length", "tool_calls"]
_REASONS: Final[dict[Finish, FinishReason]] = {"end": "stop", "length": "length", "aborted": "stop"}


class News(NamedTuple):
    """What one call of the decoder brought."""

    parts: list[Part]
    ids: list[int]
    logprobs: list[float]


@dataclass
class Choice:
    """One message; whatever its tokens come in, the same comes of them."""

    index: int
    prompt_ids: list[int]
    session: Session
    text: MessageText
    parts: MessageParts | None
    """What takes its text apart; None where that is handed on as it is."""
    said: list[Part] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Up to the one that ended it."""
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    """None while it is sampled."""
    cached_tokens: int = 0
    """Of its prompt."""
    told_characters: int = 0
    """Of the text of its tokens, those that a stream has said where they stand."""

    @property
    def is_over(self) -> bool:
        """Whether nothing that is sampled from now on counts."""
        return self.text.is_stopped or (self.parts is not None and self.parts.is_done)

    @property
    def content(self) -> str:
        """What is said beside thoughts and calls."""
        return "".join(part.text for part in self.said if isinstance(part, Said))

    @property
    def calls(self) -> list[Called]:
        """The tool calls in order."""
        return [part for part in self.said if isinstance(part, Called)]

    def hear(self, ids: list[int], logprobs: list[float]) -> News:
        """Take in the next tokens."""
        before, parts = self.text.num_tokens, []
        for id_ in ids:
            if self.is_over:  # what follows is none of the message, however many tokens came with it
                break
            parts += self._taken_apart(self.text.push([id_]))
        count = self.text.num_tokens - before
        news = News(parts, ids[:count], logprobs[:count])
        self._keep(news)
        return news

    def end(self, message: Generated) -> News:
        """Take in how it ended, after the last of its tokens."""
        parts = self._taken_apart(self.text.end())
        was_over = self.is_over
        if self.parts is not None:
            parts += self.parts.end(is_cut=message.finish == "length" and not was_over)
        news = News(parts, [], [])
        self._keep(news)
        self.finish_reason = "stop" if was_over else _REASONS[message.finish]
        if self.finish_reason == "stop" and self.calls:
            self.finish_reason = "tool_calls"
        if message.computed_tokens is not None:
            self.cached_tokens = len(self.prompt_ids) - message.computed_tokens
        return news

    def _taken_apart(self, text: str) -> list[Part]:
        if self.parts is not None:
            return self.parts.push(text)
        return [Said(text)] if text else []

    def _keep(self, news: News) -> None:
        self.said += news.parts
        self.ids += news.ids
        self.logprobs += news.logprobs
