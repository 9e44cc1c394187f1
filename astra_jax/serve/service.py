"""What the endpoints share: who is taken in, how long a message may be, and who still waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from astra_jax.engine.interface import Decoder, Generated, Sampling, Session, Told
from astra_jax.serve.metrics import ServerMetrics
from astra_jax.serve.policy import ServedPolicy
from astra_jax.serve.refusal import RequestRefused

_T = TypeVar("_T")
_SLOT_BITS: Final = 31
MOST_SEED: Final = 2 ** (2 * _SLOT_BITS)
"""Seeds are below this: seed and slot of a session as one number."""
_BODY_SECONDS: Final = 60.0
_ESCAPED_BYTES: Final = 6
"""The most bytes that JSON writes for a byte of text, as in `\\u0041`."""
_LEAST_BODY_BYTES: Final = 16 << 20
"""A body up to this size is read even for a short context, so that a prompt that is too long is told so in tokens."""


@dataclass(frozen=True)
class ServingLimits:
    """How much is taken at once."""

    most_waiting: int = 1024
    """Requests that have no reply yet, beyond which callers get 429."""
    default_max_tokens: int | None = None
    """Of a request that names none; by default whatever fits."""
    max_tokens_floor: int = 0
    """Of a request that names fewer, as far as they fit: for harnesses that cut a thinking model's messages off."""
    grace_seconds: float = 30.0
    """What messages under way have to end in when the server stops."""


class Service:
    """One decoder, and the requests that it is asked for."""

    def __init__(self, served: ServedPolicy, decoder: Decoder, limits: ServingLimits):
        self.served, self.decoder, self.limits = served, decoder, limits
        self.metrics = ServerMetrics()
        self.digest = served.digest
        """Of the weights that are served now."""
        longest_token = max(map(len, served.policy.tokenizer.backend.get_vocab()))
        of_context = _ESCAPED_BYTES * longest_token * served.limits.max_tokens
        self._most_body_bytes = max(_LEAST_BODY_BYTES, of_context)
        self._numbers = itertools.count(1)
        self._num_taken = 0
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled, and not over yet."""
        self._is_ending = False
        self.grace_is_over = asyncio.Event()

    def end(self) -> None:
        """Take no request any more; those under way have the time of grace."""
        if not self._is_ending:
            self._is_ending = True
            asyncio.get_running_loop().call_later(self.limits.grace_seconds, self.grace_is_over.set)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Hold a place among the requests that have no reply yet.

        Raises:
            RequestRefused: too many have one, or the server is stopping.
        """
        self.require_open()
        if self._num_taken >= self.limits.most_waiting:
            raise RequestRefused(429, f"{self._num_taken} requests are waiting; try again", code="queue_full")
        self._num_taken += 1
        try:
            yield
        finally:
            self._num_taken -= 1

    def require_open(self) -> None:
        """See to it that requests are taken.

        Raises:
            RequestRefused: the server is stopping.
        """
        if self._is_ending:
            raise RequestRefused(503, "the server is stopping", code="stopping")

    def name_of(self, model: str | None) -> str:
        """Return the name under which a request is answered.

        Raises:
            RequestRefused: no such model is served.
        """
        if model is not None and model not in self.served.names:
            names = ", ".join(self.served.names)
            raise RequestRefused(
                404, f"expected a model of {names}, found {model!r}", param="model", code="model_not_found"
            )
        return model or self.served.names[0]

    def max_tokens(self, num_prompt_tokens: int, asked: int | None) -> int:
        """Return how long a message may get.

        Raises:
            RequestRefused: prompt and message do not fit.
        """
        most, limits = self.served.limits.max_tokens, self.limits
        room = most - num_prompt_tokens
        if asked is not None:
            asked = max(asked, min(limits.max_tokens_floor, room))
        default = room if limits.default_max_tokens is None else min(limits.default_max_tokens, room)
        wanted = default if asked is None else asked
        if room < 1 or wanted > room:
            raise RequestRefused(
                400,
                f"expected sequences of at most {most} tokens, found {num_prompt_tokens} and up to {max(1, wanted)} "
                "more; raise the limit or shorten the prompt",
                code="context_length_exceeded",
            )
        return wanted

    def session(self, seed: int | None, *, salt: str | None = None, num_prompt_tokens: int = 0) -> Session:
        """Return a session of its own, which draws as `seed` says; without one the server draws it."""
        seed = secrets.randbelow(MOST_SEED) if seed is None else seed % MOST_SEED
        return Session(seed >> _SLOT_BITS, seed % 2**_SLOT_BITS, salt or "", next(self._numbers), num_prompt_tokens)

    async def sampled(
        self, ids: list[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        """Sample one message, and keep nothing of its session but what its pages hold.

        Raises:
            DecoderError: it is too long, or an id is none of the vocabulary.
        """
        started = time.monotonic()
        is_first = True

        def heard(sampled: list[int], logprobs: list[float]) -> None:
            nonlocal is_first
            if is_first:
                self.metrics.count_first_token(time.monotonic() - started)
                is_first = False
            if told is not None:
                told(sampled, logprobs)

        try:
            message = await self.decoder.generate(ids, sampling, session, heard)
        finally:
            self.decoder.forget(session)
        self.metrics.totals["prompt_tokens"] += len(ids)
        self.metrics.totals["cached_prompt_tokens"] += cached_tokens(ids, message)
        self.metrics.totals["completion_tokens"] += len(message.ids)
        return message

    async def while_wanted(self, request: Request, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` does; it ends when its caller hangs up, and with the time of grace.

        Raises:
            ClientDisconnect: nobody waits for it any more.
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
        """Cancel what nobody waits for any more, once: a message in a call of the decoder ends with that call."""
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def body(self, request: Request) -> bytes:
        """Return the body of a request.

        Raises:
            RequestRefused: it is too long, or comes too slowly.
        """
        limit = self._most_body_bytes
        too_long = RequestRefused(413, f"expected a body of at most {limit} bytes", code="body_too_long")
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > limit:
            raise too_long
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise too_long
        except TimeoutError:
            raise RequestRefused(408, f"the body did not come within {_BODY_SECONDS:g} s") from None
        return bytes(body)

    # --- what is served, and how it is ---

    async def models(self, request: Request) -> Response:
        """Answer `GET /v1/models`: `replays` and `policy` are ours."""
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self.served.names]})

    async def model(self, request: Request) -> Response:
        """Answer `GET /v1/models/NAME`.

        Raises:
            RequestRefused: there is none of this name.
        """
        return JSONResponse(self._model(self.name_of(request.path_params["name"])))

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.served.created,
            "owned_by": "astra-jax",
            "max_model_len": self.served.limits.max_tokens,
            "replays": True,
            "policy": self.digest,
        }

    async def health(self, request: Request) -> Response:
        """Answer `GET /health`: 503 while the server stops."""
        status = "ending" if self._is_ending else "ok"
        document = {"status": status, "requests": self._num_taken, "decoder": asdict(self.decoder.load)}
        return JSONResponse(document, status_code=503 if self._is_ending else 200)

    async def metrics_page(self, request: Request) -> Response:
        """Answer `GET /metrics`."""
        load = asdict(self.decoder.load)
        gauges = {
            "requests": float(self._num_taken),
            **{f"decoder_{name}": float(value) for name, value in load.items()},
        }
        return PlainTextResponse(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")


OUT_OF_GRACE: Final = RequestRefused(503, "the server has stopped before the message ended")


def cached_tokens(ids: list[int], message: Generated) -> int:
    """Return how many tokens of a prompt were found and not computed; none where a decoder does not tell."""
    return 0 if message.computed_tokens is None else len(ids) - message.computed_tokens


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the body has been read: all that can still come is the end
