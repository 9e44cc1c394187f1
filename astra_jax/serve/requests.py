"""The requests that are answered: the fields of each body, the prompt of a chat, and the errors of a refusal.

One rule for a field that is not below: it is accepted if it asks for nothing (null, false, 0 or empty) or changes no
reply (`user`); any other is a 400 that names it.

Decided: docs/decisions/serve.md, “The token endpoint has the fields of vLLM's /inference/v1/generate”.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import jinja2
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from astra_jax.chat.template import ChatTemplate, template_message
from astra_jax.engine.interface import DecoderError, Sampling
from astra_jax.errors import AstraError
from synthesis.foreign_messages import MessageRefused, read_messages, read_tool

log = logging.getLogger("astra.serve")
_Model = TypeVar("_Model", bound=BaseModel)
_WITHOUT_EFFECT: Final = frozenset({
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "request_id",
    "routed_experts_prompt_start",
})  # fmt: skip
"""Fields that clients send to other servers, and that change no reply of this one."""


class RequestRefused(AstraError):
    """A request is refused with an HTTP status; the message gives the reason in one line."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(" ".join(message.split()))
        self.status, self.param, self.code = status, param, code

    def to_json(self) -> dict[str, Any]:
        """Return the error in the form that OpenAI's clients read."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def reply(self, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """Return the HTTP reply; a 429 says when to try again."""
        headers = {"Retry-After": "1"} if self.status == 429 else headers
        return JSONResponse(self.to_json(), status_code=self.status, headers=headers)


def refusal_of(error: BaseException) -> RequestRefused:
    """Return the refusal that a client gets for an error; an unexpected one is logged, and is a 500."""
    match error:
        case RequestRefused():
            return error
        case DecoderError():
            return RequestRefused(400, str(error))
        case ClientDisconnect():
            return RequestRefused(400, "the client left")
        case asyncio.CancelledError():  # the time of grace is over
            return RequestRefused(503, "the server has stopped before the message ended")
    log.error("a request failed", exc_info=error)
    return RequestRefused(500, f"{type(error).__name__}; the server's log says more")


def read_body(model: type[_Model], body: bytes) -> _Model:
    """Return the request that a body holds.

    Raises:
        RequestRefused: the body is not JSON, or a field has a wrong value.
    """
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestRefused(400, f"the body is not JSON: {error}") from None
    try:
        return model.model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the body"
        why = "this server does not do that" if fault["type"] == "extra_forbidden" else fault["msg"]
        raise RequestRefused(400, f"{where}: {why}", param=where) from None


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_fields_that_ask_for_nothing(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        known = {key: value for key, value in document.items() if key in cls.model_fields and value is not None}
        others = {key: value for key, value in document.items() if key not in cls.model_fields}
        return known | {key: value for key, value in others.items() if value and key not in _WITHOUT_EFFECT}


class _SamplingFields(_Body):
    """The fields that every request for a message has."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, ge=2.0**-126, le=1)
    top_k: int = Field(default=-1, ge=-1, lt=2**31)
    """Number of the likeliest ids that are kept; -1 and 0 keep all."""
    repetition_penalty: float = Field(default=1, ge=1, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """Seed: the same one gives the same draws for the same tokens; if it is missing, the server draws one."""

    def sampling(self, max_tokens: int, stop_ids: Sequence[int] = ()) -> Sampling:
        """Return the sampling of a message of at most `max_tokens` tokens."""
        top_k = None if self.top_k in (-1, 0) else self.top_k
        return Sampling(max_tokens, self.temperature, top_k, self.top_p, tuple(stop_ids))


class StreamOptions(_Body):
    """Additions to a stream."""

    include_usage: bool = False
    """Whether the last event holds the numbers of tokens."""


class ChatRequest(_SamplingFields):
    """The body of `POST /v1/chat/completions`."""

    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["auto", "none"] = "auto"
    """`none` leaves tool calls in the text, `auto` takes them out of it."""
    parallel_tool_calls: Literal[True] = True
    chat_template_kwargs: dict[Literal["enable_thinking"], bool] = {}
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The newer name of `max_tokens`; if both are given, this one counts."""
    n: int = Field(default=1, ge=1, le=128)
    stop: Annotated[list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)] = Field(
        default=[], max_length=16
    )
    """Strings that end a message and do not belong to it; empty ones are ignored."""
    logprobs: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class SamplingParams(_SamplingFields):
    """The sampling of a message of token ids."""

    n: int = Field(default=1, ge=1, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stop_token_ids: list[int] = []
    logprobs: int | None = Field(default=None, ge=0, le=1)
    """0 and 1 ask for the log-prob of each sampled token; others are not known."""


class GenerateRequest(_Body):
    """The body of `POST /inference/v1/generate`."""

    model: str | None = None
    token_ids: list[int]
    sampling_params: SamplingParams


def chat_prompt(template: ChatTemplate, body: ChatRequest) -> str:
    """Return the rendered text of a chat, up to the place where the assistant's next message begins.

    Messages are read by `synthesis.foreign_messages`, which accepts the forms that clients send back: content in
    parts or none, extra fields in calls, nulls. Tools keep their order and their unknown fields, without nulls.

    Raises:
        RequestRefused: a message or a tool cannot be read, and `param` is its place; or the template cannot render
            them.
    """
    try:
        offered = [read_tool(tool, f"tools.{index}") for index, tool in enumerate(body.tools)]
        shown = [template_message(message) for message in read_messages(body.messages, {}, is_learnt=False)]
        return template.render(shown, offered, **body.chat_template_kwargs)
    except MessageRefused as refused:
        raise RequestRefused(400, str(refused), param=refused.place) from None
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        why = f"messages: the chat template cannot render them: {error}"
        raise RequestRefused(400, why, param="messages") from None
