"""One request of `POST /v1/completions`: raw text or token ids in, no template, nothing added."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from astra_jax.serve.refusal import read_body
from astra_jax.serve.requests import TextRequest


class CompletionRequest(TextRequest):
    """The body."""

    prompts: list[str | list[int]] = Field(min_length=1, max_length=128, alias="prompt")
    """Texts, or token ids; each gets `n` choices of its own."""
    logprobs: int | None = Field(default=None, ge=0, le=0)
    """0 for that of each sampled token, of which alone there is one."""

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        prompt = document.get("prompt")
        is_one = isinstance(prompt, str) or (
            isinstance(prompt, list) and bool(prompt) and all(isinstance(each, int) for each in prompt)
        )
        return {**document, "prompt": [prompt]} if is_one else document


def completion_request(body: bytes) -> CompletionRequest:
    """Read a body.

    Raises:
        RequestRefused: it is not JSON, or not such a request.
    """
    return read_body(CompletionRequest, body)
