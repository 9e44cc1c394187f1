"""The service over HTTP: `python -m sandbox.server --host 127.0.0.1 --port 8377 --workers 2`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import ipaddress
import json
import logging
import os
import resource
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox import strict_json
from sandbox.bearer_token import TOKEN_VARIABLE, InvalidToken, token_or_none
from sandbox.errors import SandboxError
from sandbox.execution import MAXIMUM_LIMITS, Execution, InvalidRequest, UnknownSource
from sandbox.isolation import Tier
from sandbox.metrics import Metrics
from sandbox.pool import Pool, QueueFull
from sandbox.protocol import ExecuteRequest, Limits, RunCodeRequest
from sandbox.self_test import Isolation, IsolationUnavailable, establish, establish_wasm
from sandbox.worker import ServiceFault

log = logging.getLogger("sandbox")
DEFAULT_PORT = 8377
_MAX_DESCRIPTORS = 1 << 16
_Endpoint = Callable[[Request], Awaitable[Response]]
_Request = TypeVar("_Request", bound=BaseModel)
_Result = TypeVar("_Result")


class _JSON(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _client(request: Request) -> str:
    """Whose turn it is in the fair queue: the name a client gives itself, within its address."""
    host = request.client.host if request.client else ""
    return f"{host} {request.headers.get('x-sandbox-client', '')[:64]}"


async def _body(request: Request, limit: int) -> bytes:
    # Refused by its own word before a byte is read; the count below is for bodies that declare no length.
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise InvalidRequest(f"the body has {declared} bytes, the server takes {limit}", status=413)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise InvalidRequest(f"the body has more than the {limit} bytes that the server takes", status=413)
        chunks.append(chunk)
    return b"".join(chunks)


def _parse(data: bytes, levels_around: int = 1) -> Any:
    """The body's JSON; `levels_around` stand around arguments and state."""
    try:
        return strict_json.parse(data, strict_json.MAX_NESTING + levels_around)
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON that is taken here: {error}") from None


def _validated(model: type[_Request], document: Any) -> _Request:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{where + ': ' if where else ''}{first['msg']}") from None


async def _while_connected(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What `work` returns; it ends when its caller hangs up, who may have sent the call again.

    Raises:
        ClientDisconnect: the caller is gone.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())  # the body has been read: all that can still come is the end
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


class Service:
    """The HTTP endpoints over one `Execution`; what they raise, `_Guard` turns into an HTTP status."""

    def __init__(self, execution: Execution, isolation: Isolation | None) -> None:
        self._execution, self._isolation = execution, isolation

    async def execute(self, request: Request) -> Response:
        """Answer `POST /v1/execute`: one call.

        Raises:
            InvalidRequest, UnknownSource, QueueFull, ServiceFault: as `Execution.execute`, or for a body that is not
                what it must be.
        """
        document = _parse(await _body(request, self._execution.max_body_bytes))
        call = _validated(ExecuteRequest, document)
        return _JSON(await _while_connected(request, self._execution.execute(_client(request), call)))

    async def execute_batch(self, request: Request) -> Response:
        """Answer `POST /v1/execute_batch`: a list of calls.

        Raises:
            InvalidRequest, UnknownSource, QueueFull, ServiceFault: as `Execution.execute_batch`, or for a body that is
                not what it must be.
        """
        documents = _parse(await _body(request, self._execution.max_body_bytes), levels_around=2)
        if not isinstance(documents, list) or len(documents) > self._execution.max_batch:
            raise InvalidRequest(f"a batch is a list of at most {self._execution.max_batch} requests")
        requests = []
        for position, document in enumerate(documents):
            try:
                requests.append(_validated(ExecuteRequest, document))
            except InvalidRequest as error:
                raise InvalidRequest(f"request {position}: {error}") from None
        return _JSON(await _while_connected(request, self._execution.execute_batch(_client(request), requests)))

    async def put_source(self, request: Request) -> Response:
        """Answer `PUT /v1/sources/{sha256}`: keep a source under its hash.

        Raises:
            InvalidRequest: the body is too long, or its hash is another.
        """
        data = await _body(request, self._execution.max_body_bytes)
        expected = request.path_params["sha256"]
        if hashlib.sha256(data).hexdigest() != expected:
            raise InvalidRequest(f"the body's SHA-256 is {hashlib.sha256(data).hexdigest()}, the path says {expected}")
        self._execution.sources.put(expected, data)
        return Response(status_code=204)

    async def run_code(self, request: Request) -> Response:
        """Answer `POST /run_code`, as SandboxFusion has it.

        Raises:
            InvalidRequest, QueueFull, ServiceFault: as `Execution.run_code`, or for a body that is not what it must be.
        """
        document = _parse(await _body(request, self._execution.max_body_bytes))
        call = _validated(RunCodeRequest, document)
        return _JSON(await _while_connected(request, self._execution.run_code(_client(request), call)))

    async def health(self, request: Request) -> Response:
        """Answer `GET /health`: the isolation that holds, the workers, the queue, the limits."""
        pool, isolation = self._execution.pool, self._isolation
        ready = sum(worker.ready for worker in pool.workers)
        document = {
            "status": "ok" if ready else "starting",
            "tier": isolation.tier if isolation else None,
            "layers": isolation.layers if isolation else {},
            "stronger_tiers": isolation.refused if isolation else {},
            "python": isolation.python if isolation else None,
            "workers": {"ready": ready, "total": len(pool.workers), "restarts": pool.restarts},
            "queue": {"waiting": pool.queued, "in_flight": pool.in_flight, "maximum": pool.max_queue},
            "limits": self._execution.maximum.model_dump(),
        }
        return _JSON(document, status_code=200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer `GET /metrics`, in Prometheus's text format."""
        pool, execution = self._execution.pool, self._execution
        gauges = {
            "sandbox_queue_waiting": ("Calls that wait for a slot.", pool.queued),
            "sandbox_calls_in_flight": ("Calls inside a jail.", pool.in_flight),
            "sandbox_workers_ready": ("Jails that take calls.", sum(worker.ready for worker in pool.workers)),
            "sandbox_sources_bytes": ("Size of the sources kept by hash.", execution.sources.size_bytes),
        }
        counters = {"sandbox_worker_restarts_total": ("Jails that ended and were replaced.", pool.restarts)}
        return Response(execution.metrics.render(gauges, counters), media_type="text/plain; version=0.0.4")


class _Guard:
    """Turns every failure that is not the tool's into its HTTP status, and lets only callers with the token in."""

    def __init__(self, metrics: Metrics, token: str | None) -> None:
        self._metrics = metrics
        self._expected = f"Bearer {token}".encode() if token else None

    def __call__(self, endpoint: _Endpoint, *, open_to_all: bool = False) -> _Endpoint:
        async def guarded(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode()
            if self._expected and not open_to_all and not secrets.compare_digest(given, self._expected):
                return self._refuse(401, "unauthorized", "the bearer token is missing or wrong")
            try:
                return await endpoint(request)
            except InvalidRequest as error:
                return self._refuse(error.status, "invalid_request", str(error))
            except UnknownSource as error:
                return self._refuse(404, "unknown_source", f"no source with SHA-256 {error}; send its text")
            except QueueFull:
                return self._refuse(429, "queue_full", "too many calls are waiting", **{"Retry-After": "1"})
            except ServiceFault as error:
                log.error("service fault: %s", error)
                return self._refuse(503, "service_fault", str(error), **{"Retry-After": "1"})
            except ClientDisconnect:
                return self._refuse(400, "disconnected", "the client left before its reply")

        return guarded

    def _refuse(self, status: int, code: str, message: str, **headers: str) -> Response:
        self._metrics.refusals[code] += 1
        message = message.encode("utf-8", "backslashreplace").decode()  # it may quote half a character
        return _JSON({"error": {"code": code, "message": message}}, status_code=status, headers=headers or None)


def application(execution: Execution, isolation: Isolation | None = None, token: str | None = None) -> Starlette:
    """Return the ASGI application; its lifespan starts and stops the pool."""
    service = Service(execution, isolation)
    guard = _Guard(execution.metrics, token)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # Closed also where the start fails: some of the workers may have started.
        try:
            await execution.pool.start()
            yield
        finally:
            await execution.pool.close()

    routes = [
        Route("/v1/execute", guard(service.execute), methods=["POST"]),
        Route("/v1/execute_batch", guard(service.execute_batch), methods=["POST"]),
        Route("/v1/sources/{sha256}", guard(service.put_source), methods=["PUT"]),
        Route("/run_code", guard(service.run_code), methods=["POST"]),
        # Open to all: load balancers have no token, and a caller without one learns that somebody is there.
        Route("/health", guard(service.health, open_to_all=True), methods=["GET"]),
        Route("/metrics", guard(service.metrics), methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {HTTPException: _not_served}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


async def _not_served(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _JSON({"error": {"code": "not_served", "message": message}}, status_code=error.status_code)


class RefusedToStart(SandboxError):
    """The service will not run like this; the message says why and what to do."""


def serve(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    workers: int | None = None,
    *,
    min_tier: Tier = Tier.LANDLOCK,
    wasm: bool = False,
    token: str | None = None,
    maximum: Limits = MAXIMUM_LIMITS,
    max_queue: int = 4096,
    listen_fd: int | None = None,
    until_stdin_closes: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
      host: address to listen on; one that is not loopback needs a token.
      port: TCP port; 0 for any free one.
      workers: jails; one per core by default.
      min_tier: the weakest acceptable isolation.
      wasm: run tools in WebAssembly, whatever else this machine could do.
      token: what callers must send as `Authorization: Bearer …`; by default the environment's ASTRA_SANDBOX_TOKEN.
      maximum: limits above these are refused.
      max_queue: waiting calls above which callers get 429.
      listen_fd: a listening socket to use instead of `host` and `port`.
      until_stdin_closes: also stop when standard input ends, that is, when the parent dies.

    Raises:
        RefusedToStart: the token, the address or the isolation will not do, or the workers did not start.
    """
    try:
        token = token_or_none(token)
    except InvalidToken as error:
        raise RefusedToStart(str(error)) from None
    os.environ.pop(TOKEN_VARIABLE, None)  # nothing that this process starts is to inherit it
    _raise_descriptor_limit()
    # Bound before the self-test, which takes seconds: a port that is taken, or too public, is told of at once.
    listener = socket.socket(fileno=listen_fd) if listen_fd is not None else _listen(host, port)
    address = ipaddress.ip_address(listener.getsockname()[0])
    if not address.is_loopback and not token:
        listener.close()
        raise RefusedToStart(
            f"{address} can be reached by others, who could run code here: set a token (environment variable "
            f"{TOKEN_VARIABLE}) or listen on 127.0.0.1"
        )
    asyncio.run(
        _serve(listener, workers or os.cpu_count() or 1, min_tier, wasm, token, maximum, max_queue, until_stdin_closes)
    )


def _raise_descriptor_limit() -> None:
    """Take as many descriptors as this user may: each caller needs one, and each call in flight two more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
        # Opened anew by its number, it knows that it is one of TCP: else asyncio leaves Nagle's algorithm on, and a
        # reply, whose head and body are two packets, waits 40 ms for the caller to acknowledge the head.
        return socket.socket(fileno=listener.detach())
    except OSError as error:
        raise RefusedToStart(f"cannot listen on {host}:{port}: {error}") from None


async def _serve(
    listener: socket.socket,
    workers: int,
    min_tier: Tier,
    wasm: bool,
    token: str | None,
    maximum: Limits,
    max_queue: int,
    until_stdin_closes: bool,
) -> None:
    try:
        isolation = await (establish_wasm() if wasm else establish(min_tier))
    except IsolationUnavailable as error:
        raise RefusedToStart(str(error)) from None
    execution = Execution(Pool(isolation.tier, workers, max_queue=max_queue), maximum=maximum)
    server = uvicorn.Server(
        uvicorn.Config(
            application(execution, isolation, token),
            access_log=False,
            log_level="warning",
            lifespan="on",
            ws="none",
            backlog=2048,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
        )
    )
    if until_stdin_closes:
        loop = asyncio.get_running_loop()

        # Nobody writes to our standard input: it becomes readable when it ends.
        def stop() -> None:
            loop.remove_reader(0)
            server.should_exit = True

        loop.add_reader(0, stop)
    for tier, why in isolation.refused.items():
        log.warning("the stronger tier %s does not work here: %s", tier, why)
    address, port = listener.getsockname()[:2]
    layers = ", ".join(name for name, active in isolation.layers.items() if active)
    log.info("sandbox on http://%s:%d, %d workers, tier %s (%s)", address, port, workers, isolation.tier, layers)
    await server.serve(sockets=[listener])
    if not server.started:
        raise RefusedToStart("the workers did not start; the log above says why")


def main() -> None:
    """Serve as the command line says.

    Raises:
        SystemExit: the service refuses to start; it says why.
    """
    parser = argparse.ArgumentParser(prog="python -m sandbox.server", description="Run Python that nobody has read.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (a public one needs a token)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--workers", type=int, default=None, help="jails, one per core by default")
    choice = parser.add_mutually_exclusive_group()
    tiers = [tier for tier in Tier if tier is not Tier.WASM]
    choice.add_argument("--min-tier", type=Tier, choices=tiers, default=Tier.LANDLOCK, help="weakest isolation")
    choice.add_argument("--tier", type=Tier, choices=[Tier.WASM], help="this tier and no other; needs astra-jax[wasm]")
    parser.add_argument("--max-queue", type=int, default=4096, help="waiting calls above which callers get 429")
    for name, value in MAXIMUM_LIMITS.model_dump().items():
        parser.add_argument(f"--max-{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--listen-fd", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        serve(
            options.host,
            options.port,
            options.workers,
            min_tier=options.min_tier,
            wasm=options.tier is Tier.WASM,
            maximum=Limits(**{name: getattr(options, f"max_{name}") for name in Limits.model_fields}),
            max_queue=options.max_queue,
            listen_fd=options.listen_fd,
            until_stdin_closes=options.until_stdin_closes,
        )
    except RefusedToStart as error:
        raise SystemExit(f"the sandbox refuses to start: {error}") from None


if __name__ == "__main__":
    main()
