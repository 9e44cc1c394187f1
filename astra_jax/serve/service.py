"""The service that all requests share: sessions of one decoder, the longest lengths, and messages of token ids.

A request is a session of its own, which ends with its reply. If the client leaves, its rows and pages are released.

Decided: docs/decisions/serve.md, “A request is a session, and its history is found by content”.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.interface import Generated, Sampling, Session, Told
from astra_jax.serve.policy import ServedPolicy
from astra_jax.serve.requests import GenerateRequest, RequestRefused, read_body

_T = TypeVar("_T")
_Body = TypeVar("_Body", bound=BaseModel)
_SEED_BITS: Final = 62
_SLOT_BITS: Final = 31
"""Number of the lower bits of a request's seed that are the session's slot; the higher bits are its seed."""
_BODY_SECONDS: Final = 60.0
_MOST_BODY_BYTES: Final = 64 << 20


class Service:
    """One decoder, shared by all requests.

    `default_max_tokens` is the longest message of a request that names no length; None allows all tokens that fit.
    """

    def __init__(self, served: ServedPolicy, decoder: PagedDecoder, default_max_tokens: int | None = None):
        self.served, self.decoder, self._default_max_tokens = served, decoder, default_max_tokens
        self.num_taken = 0
        """Number of requests that have no reply yet."""
        self._numbers = itertools.count(1)

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
        most, default = self.served.limits.max_tokens, self._default_max_tokens
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

    def session(self, seed: int | None) -> Session:
        """Return a new session whose draws are decided by `seed`; without one, the server draws it."""
        seed = secrets.randbits(_SEED_BITS) if seed is None else seed % 2**_SEED_BITS
        return Session(seed >> _SLOT_BITS, seed % 2**_SLOT_BITS, number=next(self._numbers))

    async def sampled(
        self, ids: list[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        """Return one sampled message; `told` hears of its tokens as they come. Only the cache remembers the session.

        Raises:
            DecoderError: an id of the prompt, or one that ends the message, is not in the vocabulary.
        """
        try:
            return await self.decoder.generate(ids, sampling, session, told)
        finally:
            self.decoder.forget(session)

    async def generate(self, request: Request) -> ASGIApp:
        """Answer `POST /inference/v1/generate`.

        Raises:
            RequestRefused, DecoderError: the request cannot be answered.
            ClientDisconnect: the client has left.
        """
        body = await body_of(request, GenerateRequest)
        name, params, ids = self.name_of(body.model), body.sampling_params, body.token_ids
        sampling = params.sampling(self.max_tokens(len(ids), params.max_tokens), params.stop_token_ids)
        session = self.session(params.seed)
        message = await while_wanted(request.receive, self.sampled(ids, sampling, session))
        reason = "length" if message.finish == "length" else "stop"
        choice: dict[str, Any] = {"index": 0, "token_ids": message.ids, "finish_reason": reason}
        if params.logprobs is not None:
            choice["logprobs"] = logprobs_of(list(map("token_id:{}".format, message.ids)), message.logprobs)
        counts = usage(len(ids), len(message.ids))
        request_id = f"generate-tokens-{secrets.token_hex(16)}"
        return JSONResponse({"request_id": request_id, "model": name, "choices": [choice], "usage": counts})


async def body_of(request: Request, model: type[_Body]) -> _Body:
    """Return the body of a request.

    Raises:
        RequestRefused: the body is too long, does not come in time, or cannot be read.
        ClientDisconnect: the client has left.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BODY_BYTES:
                    why = f"the body has more than {_MOST_BODY_BYTES} bytes; shorten it"
                    raise RequestRefused(413, why, code="body_too_long")
    except TimeoutError:
        raise RequestRefused(408, f"the body did not come within {_BODY_SECONDS:g} s") from None
    return read_body(model, bytes(body))


async def while_wanted(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of `work`, which is cancelled if the client leaves; the body has been read.

    Raises:
        ClientDisconnect: the client has left.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_has_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return the numbers of tokens of a request."""
    total_tokens = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total_tokens}


def logprobs_of(tokens: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    """Return the log-probs of tokens in the form of OpenAI's chats."""
    pairs = zip(tokens, logprobs, strict=True)
    return {"content": [{"token": token, "logprob": logprob, "top_logprobs": []} for token, logprob in pairs]}
