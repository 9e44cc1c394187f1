"""The server of a checkpoint: `astra serve CHECKPOINT`.

POST /v1/chat/completions            messages and tools in, a message out, whole or as a stream
POST /v1/completions                 text or token ids in, text out
POST /inference/v1/generate          token ids in, token ids and their log-probs out
POST /inference/v1/abort_requests    such messages end where they stand
GET  /v1/models, /v1/models/NAME     what is served, and under which names
GET  /health                         whether requests are taken, and how busy the decoder is
GET  /metrics                        what was done so far, for Prometheus

With a key, all but /health need it (`admission`).
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import jax
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astra_jax.engine.interface import Decoder
from astra_jax.errors import AstraError
from astra_jax.evaluate.endpoint import key_or_none
from astra_jax.model.config import DType
from astra_jax.serve.admission import Admission
from astra_jax.serve.head_timeout import HeadTimeoutProtocol
from astra_jax.serve.metrics import ServerMetrics
from astra_jax.serve.policy import ServedPolicy, served_policy
from astra_jax.serve.refusal import RequestRefused, reply_of
from astra_jax.serve.reload import follow
from astra_jax.serve.service import Service, ServingLimits
from astra_jax.serve.text_endpoint import ReasoningParser, TextEndpoint
from astra_jax.serve.tokens_endpoint import TokensEndpoint

log = logging.getLogger("astra.serve")
_Endpoint = Callable[[Request], Awaitable[Response]]
_AFTER_GRACE_SECONDS: Final = 5


class CannotServe(AstraError):
    """The server will not start like this; the message says why and what to do."""


def _guarded(endpoint: _Endpoint, metrics: ServerMetrics, path: str) -> _Endpoint:
    """Turn every failure into its HTTP status."""

    async def guarded(request: Request) -> Response:
        response = await answered(request)
        metrics.count_reply(path, response.status_code)
        return response

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RequestRefused as error:
            return reply_of(error)
        except ClientDisconnect:
            metrics.totals["client_disconnects"] += 1
            return reply_of(RequestRefused(400, "the client left"))
        except Exception as error:
            log.exception("a request failed")
            return reply_of(RequestRefused(500, f"{type(error).__name__}; the server's log says more"))

    return guarded


def application(service: Service, key: str | None = None, reasoning_parser: ReasoningParser = "qwen3") -> Admission:
    """Return the ASGI application."""
    tokens, text = TokensEndpoint(service), TextEndpoint(service, reasoning_parser)

    def route(method: str, path: str, endpoint: _Endpoint) -> Route:
        return Route(path, _guarded(endpoint, service.metrics, path), methods=[method])

    routes = [
        route("POST", "/v1/chat/completions", text.chat),
        route("POST", "/v1/completions", text.completions),
        route("POST", "/inference/v1/generate", tokens.generate),
        route("POST", "/inference/v1/abort_requests", tokens.abort),
        route("GET", "/v1/models", service.models),
        route("GET", "/v1/models/{name:path}", service.model),
        route("GET", "/health", service.health),
        route("GET", "/metrics", service.metrics_page),
    ]
    handlers: dict[Any, Any] = {HTTPException: _not_served}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a path that is nearly right is none
    return Admission(app, service.metrics, key)


async def _not_served(request: Request, error: HTTPException) -> Response:
    refused = RequestRefused(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(refused.to_json(), status_code=error.status_code, headers=error.headers)


class Server(uvicorn.Server):
    """Ends well: from the signal on no request is taken, and messages under way have their time of grace."""

    def __init__(
        self,
        service: Service,
        key: str | None,
        *,
        grace_seconds: float,
        reasoning_parser: ReasoningParser = "qwen3",
    ):
        super().__init__(
            uvicorn.Config(
                application(service, key, reasoning_parser),
                access_log=False,
                log_level="warning",
                lifespan="off",
                ws="none",
                http=HeadTimeoutProtocol,
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
    reasoning_parser: ReasoningParser = "qwen3",
    reload_seconds: float | None = None,
    until_stdin_closes: bool = False,
) -> None:
    """Serve a checkpoint until SIGTERM or Ctrl-C; `port` 0 is any free one, and the key that of the environment.

    With `until_stdin_closes` it also stops when standard input ends, that is, when who started it dies.

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
        # Nothing here keeps the policy: its weights go as soon as the decoder has laid them out anew.
        read = functools.partial(served_policy, folder, names=names, most_tokens=most_tokens, rows=rows, dtype=dtype)
        asyncio.run(_serve(listener, read(), key, limits, reasoning_parser, folder, reload_seconds, until_stdin_closes))
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


async def _compiled_decoder(served: ServedPolicy) -> Decoder:
    """Return the decoder, with every program compiled that a request can need.

    Raises:
        CannotServe: there is too little memory.
    """
    try:
        device = served.device()
        await device.compile_all()
        return served.decoder(device)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise CannotServe(
            f"expected memory for the cache of sequences of up to {served.limits.max_tokens} tokens, found too little: "
            "lower --rows or --max-model-len, or set --dtype bfloat16"
        ) from error


async def _serve(
    listener: socket.socket,
    served: ServedPolicy,
    key: str | None,
    limits: ServingLimits,
    reasoning_parser: ReasoningParser,
    folder: Path,
    reload_seconds: float | None,
    until_stdin_closes: bool,
) -> None:
    if reload_seconds is not None and served.digest is None:
        raise CannotServe(f"expected a policy folder with --reload, found a HuggingFace folder: {folder}")
    decoder = await _compiled_decoder(served)
    served = served.without_weights()
    service = Service(served, decoder, limits)
    server = Server(service, key, grace_seconds=limits.grace_seconds, reasoning_parser=reasoning_parser)
    if until_stdin_closes:
        loop = asyncio.get_running_loop()

        # Nobody writes to our standard input: it becomes readable when it ends.
        def stop() -> None:
            loop.remove_reader(0)
            server.handle_exit(signal.SIGTERM, None)

        loop.add_reader(0, stop)
    following = None
    if reload_seconds is not None:
        following = asyncio.create_task(follow(service, folder, every_seconds=reload_seconds))
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
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await decoder.close()
