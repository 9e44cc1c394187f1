"""How a request for text wants its messages sampled: the fields that chat and plain completions share.

What would change a draw or a reply and is not done here is a 400 that names the field. Unknown fields, and those that
only say who asks (`user`, `store`, `metadata`), are passed over: clients send what other servers know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from astra_jax.engine.interface import DecoderError, Sampling
from astra_jax.serve.refusal import RequestRefused

MOST_CHOICES: Final = 128
_MOST_STOPS: Final = 16
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "logit_bias": ({},),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "modalities": (["text"],),
    "audio": (),
}
"""Fields that are taken with these values, and null, alone."""


class StreamOptions(BaseModel):
    """What a stream tells besides its text."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    include_usage: bool = False


class TextRequest(BaseModel):
    """The fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = 1.0
    top_k: int = -1
    """-1 and 0 for all."""
    min_p: float = 0.0
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, ge=1e-6, le=1e6)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    stop: list[str] = Field(default=[], max_length=_MOST_STOPS)
    stop_token_ids: list[int] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        asked = {key: value for key, value in document.items() if value is not None}
        for key, neutral in _NEUTRAL.items():
            if key in asked and not any(asked[key] == value for value in neutral):
                raise ValueError(f"{key}: this server does not do that")
        if isinstance(asked.get("stop"), str):
            asked["stop"] = [asked["stop"]]
        return asked

    @field_validator("stop")
    @classmethod
    def _says_something(cls, stop: list[str]) -> list[str]:
        return [each for each in stop if each]

    def sampling(self, max_tokens: int) -> Sampling:
        """Return what a decoder is asked for.

        Raises:
            RequestRefused: there is no such temperature, truncation or penalty.
        """
        try:
            return Sampling(
                max_tokens=max_tokens,
                temperature=self.temperature,
                top_k=None if self.top_k in (-1, 0) else self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                stop_ids=tuple(self.stop_token_ids),
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                repetition_penalty=self.repetition_penalty,
            )
        except DecoderError as error:
            raise RequestRefused(400, str(error)) from None
