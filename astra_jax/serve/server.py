"""The endpoints over one decoder: `astra serve CHECKPOINT`.

    POST /inference/v1/generate          one message: token ids in, token ids and their log-probs out
    POST /inference/v1/abort_requests    messages end where they stand; their replies have what there is
    GET  /v1/models                      what is served, and under which names
    GET  /health                         whether requests are taken, and how busy the decoder is

Each request is a session of its own, forgotten with its reply; a history that is sent again is found in the pages, by
what they hold. A client that hangs up lets go of its row and its pages.

Decided: docs/decisions/serve.md, “A request is a session, and its history is found by content”.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import jax
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astra_jax.engine.http import key_or_none
from astra_jax.engine.interface import Decoder, DecoderError, Generated, Sampling, Session
from astra_jax.errors import AstraError
from astra_jax.model.config import DType
from astra_jax.serve.policy import ServedPolicy, served_policy
from astra_jax.serve.request import GenerateRequest, RequestRefused, abort_request, generate_request

log = logging.getLogger("astra.serve")
_T = TypeVar("_T")
_Endpoint = Callable[[Request], Awaitable[Response]]
_BODY_SECONDS: Final = 60.0
_BYTES_PER_TOKEN: Final = 16
_BYTES_BESIDE_TOKENS: Final = 1 << 16
_MOST_SEED: Final = 2**62
_AFTER_GRACE_SECONDS: Final = 5


class CannotServe(AstraError):
    """The server will not start like this; the message says why and what to do."""


@dataclass(frozen=True)
class ServingLimits:
    """How much is taken at once."""

    most_waiting: int = 1024
    """Requests that have no reply yet, beyond which callers get 429."""
    default_max_tokens: int | None = None
    """Of a request that names none; by default whatever fits."""
    grace_seconds: float = 30.0
    """What messages under way have to end in when the server stops."""


class Service:
    """What the endpoints do; what they raise, `_guarded` turns into an HTTP status."""

    def __init__(self, served: ServedPolicy, decoder: Decoder, limits: ServingLimits):
        self._served, self._decoder, self._limits = served, decoder, limits
        self._most_body_bytes = _BYTES_BESIDE_TOKENS + _BYTES_PER_TOKEN * served.limits.max_tokens
        self._numbers = itertools.count(1)
        self._num_taken = 0
        self._under_way: dict[str, Session] = {}
        """Of each request id."""
        self._is_ending = False
        self._grace_is_over = asyncio.Event()

    def end(self) -> None:
        """Take no request any more; those under way have the time of grace."""
        if not self._is_ending:
            self._is_ending = True
            asyncio.get_running_loop().call_later(self._limits.grace_seconds, self._grace_is_over.set)

    async def generate(self, request: Request) -> Response:
        """Answer `POST /inference/v1/generate`.

        Raises:
            RequestRefused: it cannot be answered.
            ClientDisconnect: nobody waits for the answer any more.
        """
        self._require_open()
        if self._num_taken >= self._limits.most_waiting:
            raise RequestRefused(429, f"{self._num_taken} requests are waiting; try again", code="queue_full")
        self._num_taken += 1
        try:
            asked = generate_request(await self._body(request))
            self._require_open()
            return await self._answer(request, asked)
        finally:
            self._num_taken -= 1

    async def _answer(self, request: Request, asked: GenerateRequest) -> Response:
        name = self._name(asked.model)
        request_id = f"generate-tokens-{asked.request_id or secrets.token_hex(16)}"
        if request_id in self._under_way:
            raise RequestRefused(400, f"request_id: {asked.request_id} is under way already", param="request_id")
        if asked.draws_from > len(asked.token_ids):
            raise RequestRefused(
                400, f"draws_from: expected at most {len(asked.token_ids)}, as many as token_ids", param="draws_from"
            )
        room = self._served.limits.max_tokens - len(asked.token_ids)
        default = self._limits.default_max_tokens
        sampling = asked.sampling(max_tokens=max(1, room if default is None else min(default, room)))
        seed = asked.sampling_params.seed
        session = asked.session(secrets.randbelow(_MOST_SEED) if seed is None else seed, next(self._numbers))
        self._under_way[request_id] = session
        try:
            message = await self._while_wanted(request, self._sampled(asked.token_ids, sampling, session))
        except DecoderError as error:
            code = "context_length_exceeded" if sampling.max_tokens > room else None
            raise RequestRefused(400, str(error), code=code) from None
        finally:
            del self._under_way[request_id]
        return JSONResponse(asked.reply(message, request_id=request_id, model=name, created=int(time.time())))

    async def _sampled(self, ids: list[int], sampling: Sampling, session: Session) -> Generated:
        try:
            return await self._decoder.generate(ids, sampling, session)
        finally:
            self._decoder.forget(session)

    async def _while_wanted(self, request: Request, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` does; it ends when its caller hangs up, and with the time of grace."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(_has_left(request))
        ending = asyncio.ensure_future(self._grace_is_over.wait())
        try:
            await asyncio.wait((working, leaving, ending), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if leaving.done():
                raise ClientDisconnect
            raise RequestRefused(503, "the server has stopped before the message ended")
        finally:
            for task in (working, leaving, ending):
                task.cancel()
            await asyncio.gather(working, leaving, ending, return_exceptions=True)

    async def abort(self, request: Request) -> Response:
        """Answer `POST /inference/v1/abort_requests`: unknown ids, perhaps answered already, are passed over.

        Raises:
            RequestRefused: the body names no requests.
        """
        for request_id in abort_request(await self._body(request)).request_ids:
            if request_id in self._under_way:
                self._decoder.abort(self._under_way[request_id])
        return JSONResponse({})

    async def models(self, request: Request) -> Response:
        """Answer `GET /v1/models`: `replays` and `policy` are ours."""
        served = self._served
        about = {
            "object": "model",
            "created": served.created,
            "owned_by": "astra-jax",
            "max_model_len": served.limits.max_tokens,
            "replays": self._decoder.capabilities.replays,
            "policy": served.digest,
        }
        return JSONResponse({"object": "list", "data": [{"id": name, **about} for name in served.names]})

    async def health(self, request: Request) -> Response:
        """Answer `GET /health`: 503 while the server stops."""
        status = "ending" if self._is_ending else "ok"
        document = {"status": status, "requests": self._num_taken, "decoder": asdict(self._decoder.load)}
        return JSONResponse(document, status_code=503 if self._is_ending else 200)

    def _require_open(self) -> None:
        if self._is_ending:
            raise RequestRefused(503, "the server is stopping", code="stopping")

    def _name(self, model: str | None) -> str:
        if model is not None and model not in self._served.names:
            names = ", ".join(self._served.names)
            raise RequestRefused(
                404, f"expected a model of {names}, found {model!r}", param="model", code="model_not_found"
            )
        return model or self._served.names[0]

    async def _body(self, request: Request) -> bytes:
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


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the body has been read: all that can still come is the end


def _guarded(endpoint: _Endpoint, key: str | None) -> _Endpoint:
    """Turn every failure into its HTTP status, and let only callers with the key in."""
    expected = f"Bearer {key}".encode() if key else None

    async def guarded(request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        try:
            if expected and not secrets.compare_digest(given, expected):
                raise RequestRefused(401, "the key is missing or wrong: send it as a bearer token", code="unauthorized")
            return await endpoint(request)
        except RequestRefused as error:
            headers = {"Retry-After": "1"} if error.status == 429 else None
            return JSONResponse(error.to_json(), status_code=error.status, headers=headers)
        except ClientDisconnect:
            return JSONResponse(RequestRefused(400, "the client left").to_json(), status_code=400)
        except Exception as error:
            log.exception("a request failed")
            broken = RequestRefused(500, f"{type(error).__name__}; the server's log says more")
            return JSONResponse(broken.to_json(), status_code=500)

    return guarded


def application(service: Service, key: str | None = None) -> Starlette:
    """Return the ASGI application."""
    routes = [
        Route("/inference/v1/generate", _guarded(service.generate, key), methods=["POST"]),
        Route("/inference/v1/abort_requests", _guarded(service.abort, key), methods=["POST"]),
        # Open to all: load balancers and harnesses ask without a key.
        Route("/v1/models", _guarded(service.models, None), methods=["GET"]),
        Route("/health", _guarded(service.health, None), methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {HTTPException: _not_served}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a path that is nearly right is none
    return app


async def _not_served(request: Request, error: HTTPException) -> Response:
    refused = RequestRefused(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(refused.to_json(), status_code=error.status_code, headers=error.headers)


class Server(uvicorn.Server):
    """Ends well: from the signal on no request is taken, and messages under way have their time of grace."""

    def __init__(self, service: Service, key: str | None, *, grace_seconds: float):
        super().__init__(
            uvicorn.Config(
                application(service, key),
                access_log=False,
                log_level="warning",
                lifespan="off",
                ws="none",
                backlog=2048,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(grace_seconds) + _AFTER_GRACE_SECONDS,
            )
        )
        self._service, self._loop = service, asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end."""
        self._loop.call_soon_threadsafe(self._service.end)
        super().handle_exit(sig, frame)


def serve(
    folder: Path,
    *,
    host: str,
    port: int,
    key_variable: str,
    names: tuple[str, ...] = (),
    most_tokens: int | None = None,
    rows: int,
    dtype: DType | None = None,
    limits: ServingLimits,
) -> None:
    """Serve a checkpoint until SIGTERM or Ctrl-C; `port` 0 is any free one, and the key that of the environment.

    Raises:
        CannotServe: the address is taken, or can be reached by others and there is no key; or there is too little
            memory.
        AstraError: as `served_policy`.
    """
    key = key_or_none(key_variable)
    listener = listen(host, port)  # before the weights are read: a port that is taken is told of at once
    try:
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback and key is None:
            raise CannotServe(
                f"{host} can be reached by others, who could use the model: set a key in the environment variable "
                f"{key_variable}, or listen on 127.0.0.1"
            )
        served = served_policy(folder, names=names, most_tokens=most_tokens, rows=rows, dtype=dtype)
        asyncio.run(_serve(listener, served, key, limits))
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        CannotServe: the address is taken, or none of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
        # Opened anew by its number, it knows that it is one of TCP: else asyncio leaves Nagle's algorithm on, and a
        # reply, whose head and body are two packets, waits 40 ms for the client to acknowledge the head.
        return socket.socket(fileno=listener.detach())
    except OSError as error:
        raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror or error}; name another --port") from None


async def _warm_decoder(served: ServedPolicy) -> Decoder:
    """Return what samples; the smallest programs are compiled, others are when they are first needed.

    Raises:
        CannotServe: there is too little memory.
    """
    try:
        decoder = served.decoder()
        await decoder.generate([served.end_ids[0]] * 2, Sampling(1), Session(0, 0))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise CannotServe(
            f"expected memory for the cache of sequences of up to {served.limits.max_tokens} tokens, found too little: "
            "lower --rows or --max-model-len, or set --dtype bfloat16"
        ) from error
    decoder.forget(Session(0, 0))
    return decoder


async def _serve(listener: socket.socket, served: ServedPolicy, key: str | None, limits: ServingLimits) -> None:
    decoder = await _warm_decoder(served)
    server = Server(Service(served, decoder, limits), key, grace_seconds=limits.grace_seconds)
    try:
        address, port = listener.getsockname()[:2]
        where = f"[{address}]" if ":" in address else address
        print(
            f"serve: {', '.join(served.names)} on http://{where}:{port}, sequences of up to {served.limits.max_tokens} "
            f"tokens, {'with' if key else 'without'} a key",
            flush=True,
        )
        await server.serve(sockets=[listener])
    finally:
        await decoder.close()
