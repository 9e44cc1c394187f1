"""The service that all requests share: the queue, the sessions, messages of token ids, and the metrics.

A request is a session of its own, which ends with its reply. If the client leaves, its rows and pages are released.

Decided: docs/decisions/serve.md, “A request is a session, and its history is found by content”.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from astra_jax.engine.interface import Decoder, Generated, Sampling, Session, Told
from astra_jax.serve.messages import cached_tokens
from astra_jax.serve.policy import ServedPolicy
from astra_jax.serve.requests import MOST_SEED, AbortRequest, GenerateRequest, RequestRefused, read_body

_T = TypeVar("_T")
_Body = TypeVar("_Body", bound=BaseModel)
_SLOT_BITS: Final = 31
"""Number of the lower bits of a request's seed that are the session's slot; the higher bits are its seed."""
_BODY_SECONDS: Final = 60.0
_ESCAPED_BYTES: Final = 6  # the most that JSON writes for a byte of text, as in \u0041
_LEAST_BODY_BYTES: Final = 16 << 20
"""Size up to which bodies are read even if the context is short, so that the reply to a prompt that is too long can say
how many tokens it has."""


@dataclass(frozen=True)
class ServingOptions:
    """The options of a server, apart from its checkpoint and its address."""

    most_waiting: int = 1024
    """Number of requests without a reply at which further ones get a 429."""
    default_max_tokens: int | None = None
    """Longest message of a request that names no length; None allows all tokens that fit."""
    grace_seconds: float = 30.0
    """Seconds that unfinished messages get when the server stops."""
    splits_thoughts: bool = True
    """Whether chats tell thoughts apart from the content, if a request does not say."""
    reload_seconds: float | None = None
    """Seconds between two looks for new weights; None never looks."""
    until_stdin_closes: bool = False
    """Whether the server stops when standard input ends, that is, when the process that started it dies."""


class Metrics:
    """Counts since the start of the server, as Prometheus reads them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.replies = self._counter("requests", "Requests that have a reply, by path and status.", "path", "status")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of the prompts.")
        self.cached_prompt_tokens = self._counter("cached_prompt_tokens", "Prompt tokens found in the cache.")
        self.completion_tokens = self._counter("completion_tokens", "Tokens that were sampled.")
        self.empty_replies = self._counter("empty_replies", "Messages with neither text nor calls.")
        self.unreadable_calls = self._counter("unreadable_calls", "Tool calls that could not be read.")
        self.client_disconnects = self._counter("client_disconnects", "Requests whose client left before the reply.")
        self.reloads = self._counter("reloads", "Times that new weights were loaded.")
        about = "Time from the request to its first token."
        self.first_token_seconds = Histogram("astra_serve_first_token_seconds", about, registry=self.registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"astra_serve_{name}", about, labels, registry=self.registry)


class Service:
    """One decoder, shared by all requests."""

    def __init__(self, served: ServedPolicy, decoder: Decoder, options: ServingOptions):
        self.served, self.decoder, self.options = served, decoder, options
        self.metrics = Metrics()
        self.metrics.registry.register(self)
        self.digest = served.digest
        """Digest of the weights that are in use."""
        longest_token = max(map(len, served.policy.tokenizer.backend.get_vocab()))
        self._most_body_bytes = max(_LEAST_BODY_BYTES, _ESCAPED_BYTES * longest_token * served.limits.max_tokens)
        self._numbers = itertools.count(1)
        self.num_taken = 0
        """Number of requests that have no reply yet."""
        self._cancelled: set[asyncio.Task[None]] = set()
        self.is_ending = False
        """Whether the server stops, and takes no more requests."""
        self.grace_is_over = asyncio.Event()
        self._generating: dict[str, Session] = {}
        """Sessions of the token endpoint by the id of their request."""

    def end(self) -> None:
        """Take no more requests; those that are being answered have the time of grace."""
        if not self.is_ending:
            self.is_ending = True
            asyncio.get_running_loop().call_later(self.options.grace_seconds, self.grace_is_over.set)

    @contextlib.asynccontextmanager
    async def taking(self, request: Request, model: type[_Body]) -> AsyncIterator[_Body]:
        """Yield the body of a request, which has a place in the queue until the context ends.

        Raises:
            RequestRefused: the queue is full, the server stops, or the body cannot be read.
        """
        self._require_open()
        if self.num_taken >= self.options.most_waiting:
            raise RequestRefused(429, f"{self.num_taken} requests are waiting; try again", code="queue_full")
        self.num_taken += 1
        try:
            body = read_body(model, await _body(request, self._most_body_bytes))
            self._require_open()  # the server may have begun to stop before the body was complete
            yield body
        finally:
            self.num_taken -= 1

    def _require_open(self) -> None:
        if self.is_ending:
            raise RequestRefused(503, "the server is stopping", code="stopping")

    def name_of(self, model: str | None) -> str:
        """Return the model name for the reply to a request that asks for `model`.

        Raises:
            RequestRefused: no model with this name is served.
        """
        if model is not None and model not in self.served.names:
            why = f"expected a model of {', '.join(self.served.names)}, found {model!r}"
            raise RequestRefused(404, why, param="model", code="model_not_found")
        return model or self.served.names[0]

    def max_tokens(self, num_prompt_tokens: int, asked: int | None) -> int:
        """Return the longest length of a message.

        Raises:
            RequestRefused: prompt and message do not fit.
        """
        most, default = self.served.limits.max_tokens, self.options.default_max_tokens
        room = most - num_prompt_tokens
        wanted = asked if asked is not None else room if default is None else min(default, room)
        if room < 1 or wanted > room:
            raise RequestRefused(
                400,
                f"expected sequences of at most {most} tokens, found {num_prompt_tokens} and up to {max(1, wanted)} "
                "more; raise the limit or shorten the prompt",
                code="context_length_exceeded",
            )
        return wanted

    def session(self, seed: int | None, *, salt: str | None = None) -> Session:
        """Return a new session whose draws are decided by `seed`; without one, the server draws it."""
        seed = secrets.randbelow(MOST_SEED) if seed is None else seed % MOST_SEED
        return Session(seed >> _SLOT_BITS, seed % 2**_SLOT_BITS, salt or "", next(self._numbers))

    async def sampled(
        self, ids: list[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        """Return one sampled message; `told` hears of its tokens as they come. Only the cache remembers the session.

        Raises:
            DecoderError: the prompt is too long, or has an id that is not in the vocabulary.
        """
        started: float | None = time.monotonic()

        def heard(sampled: list[int], logprobs: list[float]) -> None:
            nonlocal started
            if started is not None:
                self.metrics.first_token_seconds.observe(time.monotonic() - started)
                started = None
            if told is not None:
                told(sampled, logprobs)

        try:
            message = await self.decoder.generate(ids, sampling, session, heard)
        finally:
            self.decoder.forget(session)
        self.metrics.prompt_tokens.inc(len(ids))
        self.metrics.cached_prompt_tokens.inc(cached_tokens(ids, message))
        self.metrics.completion_tokens.inc(len(message.ids))
        return message

    async def while_wanted(self, request: Request, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of `work`, which is cancelled if the client leaves, or when the time of grace is over.

        Raises:
            ClientDisconnect: the client has left.
            RequestRefused: the time of grace is over.
        """
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(_has_left(request))
        ending = asyncio.ensure_future(self.grace_is_over.wait())
        try:
            await asyncio.wait((working, leaving, ending), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if leaving.done():
                raise ClientDisconnect
            raise OUT_OF_GRACE
        finally:
            for task in (working, leaving, ending):
                task.cancel()
            await asyncio.gather(working, leaving, ending, return_exceptions=True)

    def let_end(self, task: asyncio.Task[None]) -> None:
        """Cancel a task without waiting for its end; until then it is kept from the garbage collector."""
        task.cancel()
        self._cancelled.add(task)
        task.add_done_callback(self._cancelled.discard)

    def took_weights(self, digest: str) -> None:
        """Note that messages are sampled with new weights from now on."""
        self.digest = digest
        self.metrics.reloads.inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the present values for Prometheus, which calls this at each `GET /metrics`."""
        yield GaugeMetricFamily("astra_serve_requests", "Requests that have no reply yet.", self.num_taken)
        for name, value in asdict(self.decoder.load).items():
            yield GaugeMetricFamily(f"astra_serve_decoder_{name}", f"The decoder's {name}, as in /health.", value)

    async def generate(self, request: Request) -> Response:
        """Answer `POST /inference/v1/generate`.

        Raises:
            RequestRefused, DecoderError: the request cannot be answered.
            ClientDisconnect: the client has left.
        """
        async with self.taking(request, GenerateRequest) as body:
            name = self.name_of(body.model)
            request_id = f"generate-tokens-{body.request_id or secrets.token_hex(16)}"
            if request_id in self._generating:
                raise RequestRefused(400, f"request_id: {body.request_id} is under way already", param="request_id")
            params, ids = body.sampling_params, body.token_ids
            sampling = params.sampling(self.max_tokens(len(ids), params.max_tokens))
            session = self.session(params.seed, salt=body.cache_salt)
            self._generating[request_id] = session
            try:
                message = await self.while_wanted(request, self.sampled(ids, sampling, session))
            finally:
                del self._generating[request_id]
        return JSONResponse(
            {
                "request_id": request_id,
                "model": name,
                "created": int(time.time()),
                "output_mode": "tokens",
                "choices": [_token_choice(message, tells_logprobs=params.logprobs is not None)],
                "usage": usage(len(ids), len(message.ids)),
            }
        )

    async def abort(self, request: Request) -> Response:
        """Answer `POST /inference/v1/abort_requests`; unknown ids are ignored, because they may have ended already."""
        for request_id in read_body(AbortRequest, await _body(request, self._most_body_bytes)).request_ids:
            if request_id in self._generating:
                self.decoder.abort(self._generating[request_id])
        return JSONResponse({})


OUT_OF_GRACE: Final = RequestRefused(503, "the server has stopped before the message ended")


async def _body(request: Request, most_bytes: int) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise RequestRefused(413, f"expected a body of at most {most_bytes} bytes", code="body_too_long")
    except TimeoutError:
        raise RequestRefused(408, f"the body did not come within {_BODY_SECONDS:g} s") from None
    return bytes(body)


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the body has been read, so only the end of the connection can follow


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return the numbers of tokens of a request."""
    total_tokens = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total_tokens}


def _token_choice(message: Generated, *, tells_logprobs: bool) -> dict[str, Any]:
    # Newer clients read `token_id`, older ones the text.
    logprobs = [
        {"token": f"token_id:{id_}", "token_id": id_, "logprob": logprob, "top_logprobs": []}
        for id_, logprob in zip(message.ids, message.logprobs, strict=True)
    ]
    return {
        "index": 0,
        "token_ids": message.ids,
        "finish_reason": {"end": "stop", "length": "length", "aborted": "abort"}[message.finish],
        "logprobs": {"content": logprobs} if tells_logprobs else None,
        "weight_versions": weight_versions(message.policy_versions),
    }


def weight_versions(policy_versions: list[int]) -> list[dict[str, Any]]:
    """Return the spans of tokens that were sampled with the same weights.

    >>> weight_versions([7, 7, 8])
    [{'version': '7', 'start': 0, 'end': 2}, {'version': '8', 'start': 2, 'end': 3}]
    """
    spans, start = [], 0
    for version, tokens in itertools.groupby(policy_versions):
        end = start + len(list(tokens))
        spans.append({"version": str(version), "start": start, "end": end})
        start = end
    return spans
