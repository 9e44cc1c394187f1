"""A language model behind any OpenAI-compatible endpoint as the teacher.

    typed request ─► prompt + JSON schema ─► reply ─► parse, validate ─► typed reply
                     (cache by content)              └─ once: repair question that quotes the error

What fails is told apart: a fault that may pass is tried again, at most `max_retries` times, with jitter or after the
`Retry-After` that the endpoint asks for; a reply that stays unusable is `BadReply`, and rejects what it was for; an
endpoint that refuses the key, answers nobody for a while, or cannot even be connected to at first contact, is
`TeacherUnavailable`, and stops the run until later.
The key is read from the environment, held in memory by the client, and written nowhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from synthesis.records import JsonValue, canonical_json
from synthesis.teacher.adaptive_concurrency import AdaptiveConcurrency
from synthesis.teacher.cache import CachedReply, ReplyCache, ReplyFile
from synthesis.teacher.protocol import BadReply, Reply, Request, TeacherUnavailable
from synthesis.teacher.usage import Ledger, record_usage

_FIRST_DELAY_SECONDS: Final = 0.5
_LONGEST_DELAY_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 5.0
_REPAIR: Final = (
    "This reply cannot be used: {}\nReply again, with nothing but one JSON object that satisfies the schema."
)


class OpenAITeacherConfig(BaseModel):
    """Which model is asked, and within what limits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; the key itself is nowhere in a configuration."""
    cache: Path | None = None
    """An SQLite file of replies; without one nothing is remembered between runs."""
    temperature: float = Field(default=1.0, ge=0)
    max_completion_tokens: int = Field(default=4096, ge=1)
    max_concurrency: int = Field(default=64, ge=1)
    request_seconds: float = Field(default=120.0, gt=0)
    """Time limit of one call."""
    deadline_seconds: float = Field(default=900.0, gt=0)
    """Time limit of one question, its retries and repair included."""
    max_retries: int = Field(default=3, ge=0)
    max_failures_in_a_row: int = Field(default=32, ge=1)
    """So many questions without an answer, and none with one between, are an outage."""
    usd_per_million_prompt_tokens: float = Field(default=0.0, ge=0)
    usd_per_million_completion_tokens: float = Field(default=0.0, ge=0)


class OpenAITeacher:
    """Answers every kind of request by asking a language model."""

    def __init__(self, config: OpenAITeacherConfig, cache: ReplyCache | None = None):
        """Open the client; without a `cache`, the file that the configuration names, if any, is opened as one.

        Raises:
            TeacherUnavailable: the `openai` package or the key is missing.
        """
        try:
            import aiohttp  # noqa: F401 - the client's transport, part of the extra
            import openai
        except ImportError as error:
            raise TeacherUnavailable(
                "the OpenAI teacher needs the `openai` package; run: pip install 'astra-jax[openai]'"
            ) from error
        key = os.environ.get(config.api_key_env)
        if not key:
            raise TeacherUnavailable(
                f"expected the endpoint's key in the environment variable {config.api_key_env}, found none; set it, or "
                "any text for an endpoint that wants no key"
            )
        self.config = config
        self.name = f"openai:{config.model}"
        self.ledger = Ledger()
        self._openai: Any = openai
        self._client: Any = openai.AsyncOpenAI(
            api_key=key,
            base_url=config.base_url,
            max_retries=0,  # `_completed` tries again itself: it counts, and tells faults apart
            timeout=openai.Timeout(config.request_seconds, connect=min(_CONNECT_SECONDS, config.request_seconds)),
            http_client=openai.DefaultAioHttpClient(),  # a fifth of the CPU per call of the default client
        )
        self._cache = ReplyFile(config.cache) if cache is None and config.cache is not None else cache
        self._concurrency = AdaptiveConcurrency(start=min(32, config.max_concurrency), maximum=config.max_concurrency)
        self._in_flight: dict[str, asyncio.Future[CachedReply]] = {}
        self._has_schema_output = True
        self._failures_in_a_row = 0
        self._has_answered = False
        self._jitter = random.Random(0)  # spreads retries in time; nothing that is written depends on it

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question, from the cache if it was answered before.

        Raises:
            BadReply: refused, cut off, or not a valid reply even after a repair; or the endpoint failed on it.
            TeacherUnavailable: the key is refused, the budget is used up, or the endpoint answers nobody or was never
                connected to.
        """
        kind = type(request)
        messages, schema = request.messages(), _reply_schema(kind.reply_type)
        key = self._key(kind.__name__, messages, schema, seed)
        reply = None
        while reply is None and key in self._in_flight:  # the same question is being asked: share its answer
            shared = self._in_flight[key]
            try:
                reply = await asyncio.shield(shared)  # which the others keep if we are cancelled
            except asyncio.CancelledError:
                if not shared.cancelled() or cast(asyncio.Task[Any], asyncio.current_task()).cancelling():
                    raise
                # Whoever asked it was cancelled, and we were not: ask ourselves.
        if reply is None:
            reply = await self._answered_once(key, kind, messages, schema, seed)
        record_usage(reply.prompt_tokens, reply.completion_tokens, reply.cost_usd)
        return cast(Reply, kind.reply_type.model_validate_json(reply.text))

    async def close(self) -> None:
        """Close the connections and the cache."""
        await self._client.close()
        if self._cache is not None:
            await self._cache.close()

    def _key(self, kind: str, messages: list[dict[str, str]], schema: dict[str, Any], seed: int) -> str:
        config = self.config
        asked = [config.model, config.temperature, config.max_completion_tokens, kind, messages, schema, seed]
        return sha256(canonical_json(asked).encode()).hexdigest()

    async def _answered_once(
        self, key: str, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int
    ) -> CachedReply:
        shared: asyncio.Future[CachedReply] = asyncio.get_running_loop().create_future()
        shared.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody need wait for it
        self._in_flight[key] = shared
        try:
            if self._cache is not None and (kept := await self._cache.get(key)) is not None:
                self.ledger.of(kind.__name__).cached += 1
                reply = kept
            else:
                async with asyncio.timeout(self.config.deadline_seconds):
                    reply = await self._valid_reply(kind, messages, schema, seed)
                if self._cache is not None:
                    await self._cache.put(key, reply)
        except TimeoutError as error:
            bad = BadReply(f"no usable reply within {self.config.deadline_seconds:g} s")
            shared.set_exception(bad)
            self.ledger.of(kind.__name__).bad_replies += 1
            raise bad from error
        except BaseException as error:
            if isinstance(error, Exception):
                shared.set_exception(error)
            else:  # this task was cancelled: no answer comes for those who share it
                shared.cancel()
            self.ledger.of(kind.__name__).bad_replies += isinstance(error, BadReply)
            raise
        finally:
            del self._in_flight[key]
        shared.set_result(reply)
        return reply

    async def _valid_reply(
        self, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int
    ) -> CachedReply:
        """Ask; if the reply is not valid, ask once more with the error quoted."""
        asked = list(messages)
        prompt_tokens = completion_tokens = 0
        for is_repair in (False, True):
            text, *tokens = await self._completed(kind, asked, schema, seed)
            prompt_tokens += tokens[0]
            completion_tokens += tokens[1]
            try:
                reply = kind.reply_type.model_validate(json.loads(_json_part(text)))
            except (ValueError, RecursionError) as error:  # thousands of nested brackets are a bad reply, too
                problem = _problem(error)
            else:
                cost = self._cost(prompt_tokens, completion_tokens)  # of both calls, where one was a repair
                return CachedReply(reply.model_dump_json(), prompt_tokens, completion_tokens, cost)
            if not is_repair:
                self.ledger.of(kind.__name__).repairs += 1
                repair = {"role": "user", "content": _REPAIR.format(problem)}
                asked = [*asked, {"role": "assistant", "content": text}, repair]
        raise BadReply(f"{kind.__name__}: not a valid reply after a repair: {problem}")

    def _cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        config = self.config
        prompt_cost = prompt_tokens * config.usd_per_million_prompt_tokens
        return (prompt_cost + completion_tokens * config.usd_per_million_completion_tokens) / 1e6

    async def _completed(
        self, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int
    ) -> tuple[str, int, int]:
        """Return one completion and its tokens; faults that may pass are tried again.

        Raises:
            BadReply: the question is refused, the reply cut off, or every retry used up.
            TeacherUnavailable: no question can be answered just now.
        """
        openai, costs = self._openai, self.ledger.of(kind.__name__)
        problem = ""
        for attempt in range(self.config.max_retries + 1):
            if attempt:
                costs.retries += 1
            delay = _FIRST_DELAY_SECONDS * 2**attempt * self._jitter.uniform(0.5, 1.5)
            try:
                async with self._concurrency.slot():
                    started = time.monotonic()
                    costs.calls += 1
                    call = self._call(kind, messages, schema, seed)
                    # The typed `chat.completions.create` takes twice the CPU; the call is the same.
                    completion = await self._client.post("/chat/completions", body=call, cast_to=object)
                    self._has_answered = True
                    # Measured inside the slot: the wait for a place is not the endpoint's latency.
                    seconds = time.monotonic() - started
                    costs.seconds += seconds
                text, prompt_tokens, completion_tokens = _content(kind, completion)
            except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
                raise TeacherUnavailable(
                    f"{self.config.base_url} refuses model {self.config.model!r} ({_status(error)}); check the address,"
                    f" the model's name and the key in {self.config.api_key_env}"
                ) from None
            except openai.RateLimitError as error:
                if getattr(error, "code", None) == "insufficient_quota":
                    raise TeacherUnavailable(f"the budget at {self.config.base_url} is used up") from None
                self._concurrency.pushed_back()
                problem, delay = _status(error), _retry_after(error, delay)
            except (openai.InternalServerError, openai.ConflictError) as error:
                problem, delay = _status(error), _retry_after(error, delay)
            except openai.APIConnectionError as error:
                problem = type(error).__name__  # time-outs and cut streams among them; its text may hold the request
                refusal = _no_connection(error)
                # Nobody was ever there: after one retry stop the run, rather than reject item after item.
                if refusal and not self._has_answered and attempt == min(1, self.config.max_retries):
                    raise TeacherUnavailable(
                        f"no connection to the teacher at {self.config.base_url}: {refusal}; start it, or check the "
                        "address (teacher.base_url) and the network"
                    ) from None
            except (openai.APIResponseValidationError, json.JSONDecodeError) as error:
                problem = type(error).__name__
            except openai.BadRequestError as error:
                # An endpoint without structured output says so of every call that is on its way with a schema; from
                # then on the prompt alone tells it.
                if "response_format" not in call or "response_format" not in str(error):
                    raise BadReply(f"{kind.__name__}: the endpoint refuses the question ({_status(error)})") from None
                self._has_schema_output, problem, delay = False, "no JSON-schema output", 0.0
            except _BrokenCompletion as error:
                problem = str(error)
            else:
                self._concurrency.succeeded(seconds)
                self._failures_in_a_row = 0
                costs.usage.add(prompt_tokens, completion_tokens, self._cost(prompt_tokens, completion_tokens))
                return text, prompt_tokens, completion_tokens
            if attempt < self.config.max_retries:
                await asyncio.sleep(min(delay, _LONGEST_DELAY_SECONDS))
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self.config.max_failures_in_a_row:
            raise TeacherUnavailable(
                f"{self.config.base_url} has left {self._failures_in_a_row} questions in a row unanswered, the last "
                f"with {problem}; run the same command again when it is back"
            )
        raise BadReply(f"{kind.__name__}: no answer after {self.config.max_retries} retries, the last with {problem}")

    def _call(
        self, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int
    ) -> dict[str, Any]:
        system, *rest = messages
        asked = f"{system['content']}\n\nReply with one JSON object that satisfies this schema:\n{json.dumps(schema)}"
        call: dict[str, Any] = {
            "model": self.config.model,
            "messages": [{**system, "content": asked}, *rest],
            "temperature": self.config.temperature,
            "max_completion_tokens": self.config.max_completion_tokens,
            "seed": seed % 2**31,
        }
        if self._has_schema_output:
            # Strict mode allows neither optional fields nor objects of any keys, and replies have both.
            described = {"name": kind.reply_type.__name__, "schema": schema, "strict": False}
            call["response_format"] = {"type": "json_schema", "json_schema": described}
        return call


@lru_cache(maxsize=256)
def _reply_schema(reply_type: type[BaseModel]) -> dict[str, Any]:
    return reply_type.model_json_schema()


class _BrokenCompletion(Exception):
    """The endpoint answered, but not with a completion."""


def _content(kind: type[Request[Any]], completion: JsonValue) -> tuple[str, int, int]:
    """Take the text and the token counts out of a completion.

    Raises:
        BadReply: the model refused, or its reply was cut off at the token limit.
        _BrokenCompletion: there is no message in it.
    """
    try:
        choice = completion["choices"][0]
        message, finish_reason = choice["message"], choice.get("finish_reason")
        usage = completion.get("usage") or {}
        text, refusal = message.get("content") or "", message.get("refusal")
        tokens = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise _BrokenCompletion("a completion without a message") from error
    if refusal or finish_reason == "content_filter":
        raise BadReply(f"{kind.__name__}: the model refused")
    if finish_reason == "length":
        raise BadReply(f"{kind.__name__}: the reply was cut off at the token limit")
    return str(text), *tokens


def _json_part(text: str) -> str:
    """Return the JSON of a reply that has thoughts before it or a code fence around it.

    >>> _json_part('<think>hm {</think>\\n```json\\n{"a": 1}\\n```')
    '{"a": 1}'
    """
    text = text.rsplit("</think>", 1)[-1].strip()
    if text.startswith("```"):
        text = text.split("\n", 1)[-1].rsplit("```", 1)[0]
    return text.strip()


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'/'.join(map(str, first['loc'])) or 'reply'}: {first['msg']}"[:300]
    return f"not JSON: {error}"[:300]


def _no_connection(error: Exception) -> str | None:
    """Say why there was no connection at all: nobody listens, no such host, no network; None where there was one."""
    cause = error.__cause__
    return str(cause) or type(cause).__name__ if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout) else None


def _status(error: Any) -> str:
    return f"HTTP {getattr(error, 'status_code', '?')}"


def _retry_after(error: Any, delay: float) -> float:
    """Return the seconds that the endpoint asks to wait, else our own."""
    asked = error.response.headers.get("retry-after", "")
    try:
        return max(0.0, float(asked))
    except ValueError:  # not there, or the other form of the header, a date
        return delay
