"""One request of `POST /v1/chat/completions`, as OpenAI's clients write it."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from astra_jax.serve.refusal import read_body
from astra_jax.serve.text_sampling import TextRequest


class ChatRequest(TextRequest):
    """The body."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] = Field(default=[])
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=0)
    """Of the sampled token alone there is a log-prob."""
    response_format: dict[str, Any] = Field(default={})
    chat_template_kwargs: dict[str, Any] = Field(default={})
    separate_reasoning: bool | None = None
    """Whether thoughts are told apart; None: as the server does."""

    @model_validator(mode="after")
    def _can_be_done(self) -> ChatRequest:
        if self.tool_choice not in (None, "auto", "none"):
            raise ValueError("tool_choice: expected auto or none: no call is forced here")
        kind = self.response_format.get("type", "text")
        if kind != "text":
            raise ValueError(f"response_format: expected text, found {kind!r}: no form is forced here")
        return self

    @property
    def reads_calls(self) -> bool:
        """Whether tool calls are told apart: a request without tools has none."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def asked_tokens(self) -> int | None:
        """The longest message that is asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def chat_request(body: bytes) -> ChatRequest:
    """Read a body.

    Raises:
        RequestRefused: it is not JSON, or not such a request.
    """
    return read_body(ChatRequest, body)
