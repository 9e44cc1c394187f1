"""The requests that are answered: the fields of each body, the prompt of a chat, and the errors of a refusal.

A field that would change a reply and is not supported is a 400 that names it. A field that asks for nothing (null,
`best_of` of 1, an empty `logit_bias`) is accepted. Other unknown fields are ignored in requests for text, because
OpenAI's clients send fields of other servers (`user`, `store`, `metadata`), and refused in requests for token ids.

Decided: docs/decisions/serve.md, “The token endpoint has the fields of vLLM's /inference/v1/generate”.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import jinja2
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json
from starlette.responses import JSONResponse

from astra_jax.chat.template import ChatTemplate, template_message
from astra_jax.engine.interface import DecoderError, Sampling
from astra_jax.errors import AstraError
from synthesis.foreign_messages import MessageRefused, read_messages, read_tool

log = logging.getLogger("astra.serve")
_Model = TypeVar("_Model", bound=BaseModel)
_Neutral = Mapping[str, tuple[Any, ...]]
MOST_SEED: Final = 2**62
"""Upper bound of the token endpoint's seeds, which are below it."""
_NOT_SUPPORTED: Final = "this server does not do that"
_NEUTRAL_SAMPLING: Final[_Neutral] = {
    "min_tokens": (0,), "ignore_eos": (False,), "logit_bias": ({},), "bad_words": ([],),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,), "min_p": (0,),
    **dict.fromkeys(("allowed_token_ids", "prompt_logprobs", "structured_outputs"), ()),
}  # fmt: skip
"""Fields of sampling that are not supported, each with the values that ask for nothing; null always does."""
_NEUTRAL_TEXT: Final[_Neutral] = {
    **_NEUTRAL_SAMPLING, "echo": (False,), "suffix": ("",), "use_beam_search": (False,),
    "best_of": (1,), "length_penalty": (1,), "modalities": (["text"],),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "audio"), ()),
}  # fmt: skip
_NEUTRAL_CHAT: Final[_Neutral] = {
    **_NEUTRAL_TEXT, "top_logprobs": (0,), "response_format": ({}, {"type": "text"}),
}  # fmt: skip
_NEUTRAL_TOKEN_SAMPLING: Final[_Neutral] = {
    **_NEUTRAL_SAMPLING, "stop": ([],), "include_stop_str_in_output": (False,),
    # These shape a text, and the reply has none.
    **dict.fromkeys(("detokenize", "skip_special_tokens", "spaces_between_special_tokens"), (False, True)),
    **dict.fromkeys(("extra_args", "thinking_token_budget"), ()),
}  # fmt: skip
_NEUTRAL_TOKENS: Final[_Neutral] = {
    "stream": (False,), "priority": (0,), "output_mode": ("tokens",), "return_token_ids": (False,),
    **dict.fromkeys(("stream_options", "features", "content_parts", "assistant_tokens_mask", "token_offsets"), ()),
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "reasoning_ended", "reasoning_parser_kwargs"), ()),
}  # fmt: skip
_SERVERS_OWN: Final = frozenset({
    "conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "load_audio_from_video", "processor_kwargs",
})  # fmt: skip
"""Arguments of a rendering that the server sets itself, so that `chat_template_kwargs` cannot."""


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


def refusal_of(error: Exception) -> RequestRefused:
    """Return the refusal that a client gets for an error; an unexpected one is logged, and is a 500."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, DecoderError):
        return RequestRefused(400, str(error))
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
        place, why = [*map(str, fault["loc"])], fault["msg"]
        if fault["type"] == "value_error":  # from a validator below, whose message begins with the field
            field, _, why = str(fault["ctx"]["error"]).partition(": ")
            place.append(field)
        elif fault["type"] == "extra_forbidden":
            why = _NOT_SUPPORTED
        where = ".".join(place) or "the body"
        raise RequestRefused(400, f"{where}: {why}", param=where) from None


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    neutral: ClassVar[_Neutral] = {}
    """Fields that are not supported, each with the values that ask for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _without_neutral_fields(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        asked = {key: value for key, value in document.items() if value is not None}
        for key, values in cls.neutral.items():
            if key in asked and asked.pop(key) not in values:
                raise ValueError(f"{key}: {_NOT_SUPPORTED}")
        return asked


class _SamplingFields(_Body):
    """The fields that every request for a message has."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = 1.0
    top_k: int = -1
    """Number of the likeliest ids that are kept; -1 and 0 keep all."""
    stop_token_ids: list[int] = []
    place: ClassVar[str | None] = None
    """Field of the body that holds these fields; None if they are the body's own."""

    def sampling(self, max_tokens: int) -> Sampling:
        """Return the sampling of a message of at most `max_tokens` tokens.

        Raises:
            RequestRefused: a value is out of its range.
        """
        alike = {field.name for field in dataclasses.fields(Sampling)} - {"max_tokens", "top_k"}
        top_k = None if self.top_k in (-1, 0) else self.top_k
        try:
            stop_ids = tuple(self.stop_token_ids)
            return Sampling(max_tokens, top_k=top_k, stop_ids=stop_ids, **self.model_dump(include=alike))
        except DecoderError as error:
            raise RequestRefused(400, str(error), param=self.place) from None


class StreamOptions(BaseModel):
    """Additions to a stream."""

    include_usage: bool = False
    """Whether the last event holds the numbers of tokens."""


_Salt = Annotated[str, Field(min_length=1, max_length=1024)]


class TextRequest(_SamplingFields):
    """The fields that chats and plain completions share."""

    model_config = ConfigDict(extra="ignore")
    neutral = _NEUTRAL_TEXT

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int = Field(default=1, ge=1, le=128)
    stop: Annotated[list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)] = Field(
        default=[], max_length=16
    )
    """Strings that end a message and do not belong to it; empty ones are ignored."""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    cache_salt: _Salt | None = None
    """Text without meaning: only requests with the same salt share cached tokens."""


class ChatRequest(TextRequest):
    """The body of `POST /v1/chat/completions`."""

    neutral = _NEUTRAL_CHAT

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The newer name of `max_tokens`; if both are given, this one counts."""
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["auto", "none"] = "auto"
    """`none` leaves tool calls in the text, `auto` takes them out of it."""
    parallel_tool_calls: bool = True
    """Whether a message may have several tool calls; if not, it ends after its first."""
    logprobs: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    """Arguments of the checkpoint's own chat template."""
    separate_reasoning: bool | None = None
    """Whether thoughts are told apart as `reasoning_content`; None follows the server's `--reasoning-parser`."""


def _several(prompt: Any) -> Any:
    is_one = isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], int))
    return [prompt] if is_one else prompt


class CompletionRequest(TextRequest):
    """The body of `POST /v1/completions`."""

    prompts: Annotated[list[str | list[int]], BeforeValidator(_several)] = Field(
        min_length=1, max_length=128, alias="prompt"
    )
    """Texts or lists of token ids; each one gets `n` choices."""
    logprobs: int | None = Field(default=None, ge=0, le=0)
    """Number of other likely tokens; only 0 is known, and asks for the log-probs of the sampled tokens alone."""


class SamplingParams(_SamplingFields):
    """The sampling of a message of token ids."""

    neutral = _NEUTRAL_TOKEN_SAMPLING
    place = "sampling_params"

    n: int = Field(default=1, ge=1, le=1)
    max_tokens: int | None = None
    seed: int | None = Field(default=None, ge=0, lt=MOST_SEED)
    """Seed: the same one gives the same draws for the same tokens; if it is missing, the server draws one."""
    logprobs: int | None = Field(default=None, ge=0, le=1)
    """0 and 1 ask for the log-prob of each sampled token; others are not known."""
    routed_experts_prompt_start: int | None = Field(default=None, ge=0)
    """Ignored: it asks for the experts of a mixture, and no such model is served. Prime's `verifiers` sends it."""


class GenerateRequest(_Body):
    """The body of `POST /inference/v1/generate`."""

    neutral = _NEUTRAL_TOKENS

    token_ids: list[int]
    sampling_params: SamplingParams
    model: str | None = None
    request_id: str | None = Field(default=None, min_length=1, max_length=256)
    cache_salt: _Salt | None = None


class AbortRequest(_Body):
    """The body of `POST /inference/v1/abort_requests`."""

    request_ids: list[str]


def chat_prompt(template: ChatTemplate, body: ChatRequest) -> str:
    """Return the rendered text of a chat, up to the place where the assistant's next message begins.

    Messages are read by `synthesis.foreign_messages`, which accepts the forms that clients send back: content in
    parts or none, extra fields in calls, nulls. Tools keep their order and their unknown fields, without nulls.

    Raises:
        RequestRefused: a message or a tool cannot be read, and `param` is its place; or the template cannot render
            them.
    """
    if reserved := sorted(_SERVERS_OWN.intersection(body.chat_template_kwargs)):
        why = f"chat_template_kwargs: {reserved[0]} is set by the server; leave it out"
        raise RequestRefused(400, why, param="chat_template_kwargs")
    try:
        offered = [read_tool(tool, f"tools.{index}") for index, tool in enumerate(body.tools)]
        shown = [template_message(message) for message in read_messages(body.messages, {}, is_learnt=False)]
        return template.render(shown, offered, **body.chat_template_kwargs)
    except MessageRefused as refused:
        raise RequestRefused(400, str(refused), param=refused.place) from None
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        why = f"messages: the chat template cannot render them: {error}"
        raise RequestRefused(400, why, param="messages") from None
