"""The server of `astra serve CHECKPOINT`: its paths, the requests that it admits, its start and its end."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

import jax
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.errors import AstraError
from astra_jax.evaluate.endpoint import key_or_none
from astra_jax.mesh.placement import in_force
from astra_jax.serve.chats import answer_chat
from astra_jax.serve.policy import ServedPolicy
from astra_jax.serve.requests import RequestRefused, refusal_of
from astra_jax.serve.service import Service
from sandbox.web_pages import is_local_name

_MOST_WAITING: Final = 1024
_GRACE_SECONDS: Final = 30


class CannotServe(AstraError):
    """The server cannot start; the message names the reason and the remedy."""


class Admission:
    """An ASGI application that refuses requests, of any path and method, before another one sees them.

    403 for a web page: a request with an Origin header or, if there is no key, one whose Host is neither an address
    nor `localhost`. 401 for a request without the key, except `GET /health`. 429 for a POST beyond the queue.

    Decided: docs/decisions/serve.md, “Only /health is open to all, and nothing to a web page”.
    """

    def __init__(self, app: ASGIApp, service: Service, key: str | None):
        self._app, self._service = app, service
        self._expected = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on; a POST has a place in the queue until its reply is sent."""
        service, is_post = self._service, scope["method"] == "POST"
        is_health = scope["path"] == "/health" and scope["method"] in ("GET", "HEAD")
        refused = self._refusal(Headers(scope=scope), is_health=is_health)
        if refused is None and is_post and service.num_taken >= _MOST_WAITING:
            refused = RequestRefused(429, f"{service.num_taken} requests are waiting; try again", code="queue_full")
        if refused is not None:
            await refused.reply()(scope, receive, send)
            return
        service.num_taken += is_post
        try:
            await self._app(scope, receive, send)
        finally:
            service.num_taken -= is_post

    def _refusal(self, headers: Headers, *, is_health: bool) -> RequestRefused | None:
        if "origin" in headers:
            return RequestRefused(403, "requests of web pages (with an Origin header) are refused", code="web_page")
        if self._expected is None:  # then the server can be reached from this machine only
            host = headers.get("host")
            if host is None or is_local_name(host):
                return None
            why = f"expected localhost or an address as Host, found {host[:100]!r}: set a key to serve by name"
            return RequestRefused(403, why, code="unknown_host")
        given = headers.get("authorization", "").encode()
        if is_health or secrets.compare_digest(given, self._expected):
            return None
        return RequestRefused(401, "the key is missing or wrong: send it as a bearer token", code="unauthorized")


def application(service: Service, key: str | None = None) -> Admission:
    """Return the ASGI application."""

    def model_named(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": service.served.created,
            "owned_by": "astra-jax",
            "max_model_len": service.served.limits.max_tokens,
            "policy": service.served.digest,  # this field is not OpenAI's
        }

    async def models(request: Request) -> ASGIApp:
        return JSONResponse({"object": "list", "data": [model_named(name) for name in service.served.names]})

    async def model(request: Request) -> ASGIApp:
        return JSONResponse(model_named(service.name_of(request.path_params["name"])))

    async def health(request: Request) -> ASGIApp:
        return JSONResponse({"status": "ok", "requests": service.num_taken, "decoder": asdict(service.decoder.load)})

    def route(method: str, path: str, endpoint: Callable[[Request], Awaitable[ASGIApp]]) -> Route:
        async def answered(request: Request) -> ASGIApp:
            try:
                return await endpoint(request)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the client is told, or the log
                return refusal_of(error).reply()

        return Route(path, answered, methods=[method])

    routes = [
        route("POST", "/v1/chat/completions", partial(answer_chat, service)),
        route("POST", "/inference/v1/generate", service.generate),
        route("GET", "/v1/models", models),
        route("GET", "/v1/models/{name:path}", model),
        route("GET", "/health", health),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})  # type: ignore[dict-item]
    app.router.redirect_slashes = False  # a path with one slash too many is a 404
    return Admission(app, service, key)


async def _not_served(request: Request, error: HTTPException) -> Response:
    why = f"{request.method} {request.url.path}: {error.detail}"
    return RequestRefused(error.status_code, why).reply(error.headers)


def http_server(service: Service, key: str | None) -> uvicorn.Server:
    """Return an HTTP server; when it stops it takes no more requests, and unfinished ones have their time of grace."""
    return uvicorn.Server(
        uvicorn.Config(
            application(service, key),
            access_log=False,
            log_level="warning",
            lifespan="off",
            ws="none",
            backlog=2048,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )


def serve(
    read: Callable[[], ServedPolicy],
    *,
    host: str,
    port: int,
    key_variable: str,
    default_max_tokens: int | None,
    until_stdin_closes: bool,
) -> None:
    """Serve the checkpoint that `read` opens, until SIGTERM or Ctrl-C, or until standard input ends.

    Port 0 is any free one. The key is in the environment variable `key_variable`; without it, none is asked for.

    Raises:
        CannotServe: the address is taken, or others can reach it and there is no key; or the memory is too small.
        AstraError: `read` cannot open the checkpoint.
    """
    key = key_or_none(key_variable)
    with listen(host, port) as listener:  # before the weights are read, so that a taken port is reported at once
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback and key is None:
            raise CannotServe(
                f"{host} can be reached by others, who could use the model: set a key in the environment variable "
                f"{key_variable}, or listen on 127.0.0.1"
            )
        # The policy has no name here, so that its weights are freed when the decoder has its own copy.
        served = read()
        with in_force(served.mesh):
            asyncio.run(_serve(listener, served, key, default_max_tokens, until_stdin_closes))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        CannotServe: the address is taken, or does not belong to this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
        # A socket that is opened by its number knows that its protocol is TCP. Otherwise asyncio leaves Nagle's
        # algorithm on, and a reply, which is two packets, waits 40 ms for the client to acknowledge the first.
        return socket.socket(fileno=listener.detach())
    except OSError as error:
        raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror or error}; name another --port") from None


async def _compiled_decoder(served: ServedPolicy) -> PagedDecoder:
    """Return a decoder whose programs are all compiled, so that no request waits for the compiler."""
    try:
        device = served.device()
        await device.compile_all()
        return served.decoder(device)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise CannotServe(
            f"the memory is too small for the cache of sequences of up to {served.limits.max_tokens} tokens: "
            "lower --rows or --max-model-len, or set --dtype bfloat16"
        ) from error


async def _serve(
    listener: socket.socket,
    served: ServedPolicy,
    key: str | None,
    default_max_tokens: int | None,
    until_stdin_closes: bool,
) -> None:
    decoder = await _compiled_decoder(served)
    served = replace(served, policy=replace(served.policy, params={}))  # the decoder has a copy of the weights
    server, loop = http_server(Service(served, decoder, default_max_tokens), key), asyncio.get_running_loop()
    if until_stdin_closes:
        # Nothing is written to standard input, so it becomes readable when it ends.
        def stop() -> None:
            loop.remove_reader(0)
            server.handle_exit(signal.SIGTERM, None)

        loop.add_reader(0, stop)
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
