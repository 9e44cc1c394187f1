"""One request of `POST /inference/v1/generate`, and its reply, as vLLM writes them.

What would change a draw or a reply and is not done here is refused by name; a field that asks for what happens anyway
(`top_p` of 1, `n` of 1, null) is as good as none.

Decided: docs/decisions/serve.md, “The token endpoint has the fields of vLLM's /inference/v1/generate”.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from astra_jax.engine.interface import DecoderError, Finish, Generated, Sampling
from astra_jax.serve.refusal import RequestRefused, read_body
from astra_jax.serve.service import MOST_SEED

_OF_REQUEST: Final[Mapping[str, tuple[Any, ...]]] = {
    "stream": (False,),
    "priority": (0,),
    "output_mode": ("tokens",),
    "return_token_ids": (False,),
    **dict.fromkeys(("stream_options", "features", "content_parts", "assistant_tokens_mask", "token_offsets"), ()),
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "reasoning_ended", "reasoning_parser_kwargs"), ()),
}
"""Fields that are taken with these values, and null, alone: they ask for nothing."""
_OF_SAMPLING: Final[Mapping[str, tuple[Any, ...]]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "n": (1,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    # Of texts, which nobody here writes.
    **dict.fromkeys(("detokenize", "skip_special_tokens", "spaces_between_special_tokens"), (False, True)),
    "include_stop_str_in_output": (False,),
    **dict.fromkeys(("stop", "bad_words"), ([],)),
    **dict.fromkeys(("prompt_logprobs", "logit_bias", "allowed_token_ids", "structured_outputs"), ()),
    **dict.fromkeys(("extra_args", "thinking_token_budget"), ()),
}


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SamplingParams(_Body):
    """How one message is sampled; what a decoder's `Sampling` calls by the same name is handed on."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, ge=1e-6, le=1e6)
    max_tokens: int | None = None
    seed: int | None = Field(default=None, ge=0, lt=MOST_SEED)
    """The same draws for the same tokens; drawn by the server if not given."""
    stop_token_ids: list[int] = []
    routed_experts_prompt_start: int | None = Field(default=None, ge=0)
    """From which token on a mixture's experts would be told; what is served here routes to none. Prime's `verifiers`
    says it in every second turn."""
    logprobs: int | None = Field(default=None, ge=0, le=1)
    """Whether the reply has that of each sampled token, and of no other."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, document: Any) -> Any:
        return _asking(document, _OF_SAMPLING)


class GenerateRequest(_Body):
    """The body."""

    token_ids: list[int]
    sampling_params: SamplingParams
    model: str | None = None
    request_id: str | None = Field(default=None, min_length=1, max_length=256)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    """What is cached is shared within one salt only."""
    draws_from: int = Field(default=0, ge=0)
    """Ours: where in `token_ids` the conversation's first message began, if it did before this one. Draws are counted
    from there, so that with one seed each message has draws of its own."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, document: Any) -> Any:
        return _asking(document, _OF_REQUEST)

    def sampling(self, max_tokens: int) -> Sampling:
        """Return what a decoder is asked for.

        Raises:
            RequestRefused: there is no such temperature, truncation or penalty.
        """
        params = self.sampling_params
        alike = {field.name for field in dataclasses.fields(Sampling)} - {"max_tokens"}
        try:
            return Sampling(
                max_tokens=max_tokens, stop_ids=tuple(params.stop_token_ids), **params.model_dump(include=alike)
            )
        except DecoderError as error:
            raise RequestRefused(400, str(error), param="sampling_params") from None

    def reply(self, message: Generated, *, request_id: str, model: str, created: int) -> dict[str, Any]:
        """Return the answer."""
        count = len(message.ids)
        return {
            "request_id": request_id,
            "model": model,
            "created": created,
            "output_mode": "tokens",
            "choices": [
                {
                    "index": 0,
                    "token_ids": message.ids,
                    "finish_reason": finish_reason(message.finish),
                    "logprobs": None if self.sampling_params.logprobs is None else _logprobs(message),
                    "weight_versions": weight_versions(message.policy_versions),
                }
            ],
            "usage": {
                "prompt_tokens": len(self.token_ids),
                "completion_tokens": count,
                "total_tokens": len(self.token_ids) + count,
            },
        }


def generate_request(body: bytes) -> GenerateRequest:
    """Read a body.

    Raises:
        RequestRefused: it is not JSON, or not such a request.
    """
    return read_body(GenerateRequest, body)


class AbortRequest(_Body):
    """The body of `POST /inference/v1/abort_requests`."""

    request_ids: list[str]


def abort_request(body: bytes) -> AbortRequest:
    """Read a body.

    Raises:
        RequestRefused: it is not JSON, or not such a request.
    """
    return read_body(AbortRequest, body)


def finish_reason(finish: Finish) -> str:
    """Return vLLM's word for how a message ended."""
    return {"end": "stop", "length": "length", "aborted": "abort"}[finish]


def weight_versions(policy_versions: list[int]) -> list[dict[str, Any]]:
    """Return which of the tokens were sampled by which weights.

    >>> weight_versions([7, 7, 8])
    [{'version': '7', 'start': 0, 'end': 2}, {'version': '8', 'start': 2, 'end': 3}]
    """
    spans, start = [], 0
    for version, tokens in itertools.groupby(policy_versions):
        end = start + len(list(tokens))
        spans.append({"version": str(version), "start": start, "end": end})
        start = end
    return spans


def _logprobs(message: Generated) -> dict[str, Any]:
    # Newer clients read `token_id`, older ones the text.
    return {
        "content": [
            {"token": f"token_id:{id_}", "token_id": id_, "logprob": logprob, "top_logprobs": []}
            for id_, logprob in zip(message.ids, message.logprobs, strict=True)
        ]
    }


def _asking(document: Any, neutral: Mapping[str, tuple[Any, ...]]) -> Any:
    """Return a document without the fields that ask for nothing.

    >>> _asking({"top_p": 1.0, "top_k": 20, "n": None}, {"top_p": (1,), "top_k": (-1,), "n": (1,)})
    {'top_k': 20}
    """
    if not isinstance(document, dict):
        return document
    return {key: value for key, value in document.items() if key not in neutral or not _is_one(value, neutral[key])}


def _is_one(value: Any, values: tuple[Any, ...]) -> bool:
    # True is no 1 here.
    return value is None or any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)
