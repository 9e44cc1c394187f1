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
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox.bearer_token import TOKEN_VARIABLE, InvalidToken, token_or_none
from sandbox.cgroup import available_cores
from sandbox.connections import (
    REQUEST_SECONDS,
    CallerProtocol,
    Connections,
    CountsReplies,
    most_connections,
    raise_descriptor_limit,
)
from sandbox.errors import SandboxError
from sandbox.execution import MAXIMUM_LIMITS, Execution, InvalidRequest, UnknownSource
from sandbox.isolation import Tier
from sandbox.packages import AllowedPackages, PackageUnavailable, find_packages
from sandbox.pool import CALLS_OF_A_WORKER, Pool, QueueFull
from sandbox.protocol import PACKAGES_HEADER, Limits, read_packages
from sandbox.self_test import Isolation, IsolationUnavailable, establish, establish_wasm
from sandbox.worker import ServiceFault

log = logging.getLogger("sandbox")
DEFAULT_PORT = 8377
_LEAST_CONNECTIONS = 16
_LEAST_DESCRIPTORS = 256  # as many as each call's process is promised
_DRAIN_MARGIN_SECONDS = 5.0  # beyond the longest wall limit, for calls that had just begun
_WRITE_SECONDS = 5.0  # for the last replies
_Endpoint = Callable[[Request], Awaitable[Response]]
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


async def _read(body: Awaitable[_Result]) -> _Result:
    """What stands in a body.

    Raises:
        InvalidRequest: it is not what it must be.
        ServiceFault: it could not be read.
    """
    try:
        return await body
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    except OSError as error:
        raise ServiceFault(str(error)) from None


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
        self._require_packages(request)
        body = await _body(request, self._execution.max_body_bytes)
        call = await _read(self._execution.bodies.call(body))
        reply = await _while_connected(request, self._execution.execute_call(_client(request), call))
        return Response(reply, media_type="application/json")

    async def execute_batch(self, request: Request) -> Response:
        """Answer `POST /v1/execute_batch`: a list of calls.

        Raises:
            InvalidRequest, UnknownSource, QueueFull, ServiceFault: as `Execution.execute_batch`, or for a body that is
                not what it must be.
        """
        self._require_packages(request)
        body = await _body(request, self._execution.max_body_bytes)
        calls = await _read(self._execution.bodies.batch(body))
        replies = await _while_connected(request, self._execution.execute_batch(_client(request), calls))
        return Response(replies, media_type="application/json")

    def _require_packages(self, request: Request) -> None:
        """Refuse calls whose packages are not those of this service: a tool's error would be none of the tool's."""
        has = self._execution.pool.packages.versions
        for name, version in read_packages(request.headers.get(PACKAGES_HEADER, "")).items():
            if has.get(name) != version:
                found = f"version {has[name]}" if name in has else "none"
                message = f"expected the package {name} {version}, which the calls need, found {found} here"
                raise InvalidRequest(message, status=409, code="packages_missing")

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
        body = await _body(request, self._execution.max_body_bytes)
        program = await _read(self._execution.bodies.program(body))
        return _JSON(await _while_connected(request, self._execution.run_code(_client(request), program)))

    async def health(self, request: Request) -> Response:
        """Answer `GET /health`: the isolation that holds, the workers, the queue, the limits."""
        pool, isolation = self._execution.pool, self._isolation
        ready = sum(worker.ready for worker in pool.workers)
        status = "draining" if self._execution.is_draining else "ok" if ready else "starting"
        document = {
            "status": status,
            "tier": isolation.tier if isolation else None,
            "layers": isolation.layers if isolation else {},
            "stronger_tiers": isolation.refused if isolation else {},
            "python": isolation.python if isolation else None,
            "packages": _packages_document(pool.packages),
            "workers": {"ready": ready, "total": len(pool.workers), "restarts": pool.restarts},
            "queue": {"waiting": pool.queued, "in_flight": pool.in_flight, "maximum": pool.max_queue},
            "limits": self._execution.maximum.model_dump(),
        }
        return _JSON(document, status_code=200 if status == "ok" else 503)

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


def _packages_document(packages: AllowedPackages) -> dict[str, Any]:
    """What tools may import beside the standard library, by name and version; another version may answer otherwise."""
    modules = {name: list(packages.modules[name]) for name in packages.versions}
    return {
        "versions": packages.versions,
        "required": packages.required,
        "modules": modules,
        "loaded": "in calls" if packages.is_lazy else "before calls",
    }


class _Guard:
    """Turns every failure that is not the tool's into its HTTP status, and lets only those in who may call.

    Decided: docs/decisions/tools.md, “A web page is no caller”.
    """

    def __init__(self, execution: Execution, token: str | None) -> None:
        self._execution = execution
        self._expected = f"Bearer {token}".encode() if token else None

    def __call__(self, endpoint: _Endpoint, *, open_to_all: bool = False) -> _Endpoint:
        """Guard an endpoint; one that is open to all needs no token, and answers while the service drains."""

        async def guarded(request: Request) -> Response:
            refusal = self._refusal(request, open_to_all)
            if refusal is not None:
                return refusal
            try:
                return await endpoint(request)
            except InvalidRequest as error:
                return self._refuse(error.status, error.code, str(error))
            except UnknownSource as error:
                return self._refuse(404, "unknown_source", f"no source with SHA-256 {error}; send its text")
            except QueueFull:
                return self._refuse(429, "queue_full", "too many calls are waiting", **_COME_BACK)
            except ServiceFault as error:
                log.error("service fault: %s", error)
                return self._refuse(503, "service_fault", str(error), **_COME_BACK)
            except ClientDisconnect:
                return self._refuse(400, "disconnected", "the client left before its reply")
            except asyncio.CancelledError:
                if not self._execution.is_draining:
                    raise
                return self._draining()  # its request was not whole when the time for the last replies was over

        return guarded

    def _refusal(self, request: Request, open_to_all: bool) -> Response | None:
        """Why a request is not looked at, before its body is read."""
        if "origin" in request.headers:
            return self._refuse(403, "web_page", "requests of web pages (with an Origin header) are refused")
        # A page whose name was made to lead here has no token to send: where one is needed, any name will do.
        if self._expected is None and not _is_local_name(request.headers.get("host")):
            host = request.headers["host"][:100]
            message = f"expected an address or localhost as Host, found {host!r}: set {TOKEN_VARIABLE} to serve by name"
            return self._refuse(421, "unknown_host", message)
        if open_to_all:
            return None
        given = request.headers.get("authorization", "").encode()
        if self._expected and not secrets.compare_digest(given, self._expected):
            return self._refuse(401, "unauthorized", "the bearer token is missing or wrong")
        return self._draining() if self._execution.is_draining else None

    def _draining(self) -> Response:
        return self._refuse(503, "draining", "the service is stopping and takes no more calls", **_COME_BACK)

    def _refuse(self, status: int, code: str, message: str, **headers: str) -> Response:
        self._execution.metrics.refusals[code] += 1
        message = message.encode("utf-8", "backslashreplace").decode()  # it may quote half a character
        return _JSON({"error": {"code": code, "message": message}}, status_code=status, headers=headers or None)


_COME_BACK = {"Retry-After": "1"}


def _is_local_name(host: str | None) -> bool:
    """Say whether a Host header names this machine in a way that no name server can change; none is no browser's.

    >>> [_is_local_name(host) for host in ("localhost:8377", "127.0.0.1", "[::1]:80", None, "evil.example", "[::1")]
    [True, True, True, True, False, False]
    """
    if host is None:
        return True
    name = host[1:].partition("]")[0] if host.startswith("[") and "]" in host else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _HangsUpWhenAsked:
    """Says `Connection: close` to every caller while others wait for a place or the service drains."""

    def __init__(self, app: ASGIApp, asked: Callable[[], bool]) -> None:
        self._app, self._asked = app, asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_word(message: Message) -> None:
            if message["type"] == "http.response.start" and self._asked():
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_with_word)


def application(execution: Execution, isolation: Isolation | None = None, token: str | None = None) -> Starlette:
    """Return the ASGI application; its lifespan starts and stops the pool."""
    service = Service(execution, isolation)
    guard = _Guard(execution, token)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # Closed also where the start fails: some of the workers may have started.
        try:
            await execution.pool.start()
            yield
        finally:
            await execution.pool.close()
            await execution.bodies.close()

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
    packages: Sequence[str] = (),
    lazy_packages: bool = False,
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
      workers: jails; by default one per core that this process, or the container around it, may use.
      min_tier: the weakest acceptable isolation.
      wasm: run tools in WebAssembly, whatever else this machine could do.
      packages: distributions of this environment that tools may import, with what they require.
      lazy_packages: whether the calls that ask for them import them, instead of the workers before all calls.
      token: what callers must send as `Authorization: Bearer …`; by default the environment's ASTRA_SANDBOX_TOKEN.
      maximum: limits above these are refused.
      max_queue: waiting calls above which callers get 429.
      listen_fd: a listening socket to use instead of `host` and `port`.
      until_stdin_closes: also stop when standard input ends, that is, when the parent dies.

    Raises:
        RefusedToStart: the token, the address, the descriptors, a package or the isolation will not do, or the workers
            did not start.
    """
    try:
        token = token_or_none(token)
    except InvalidToken as error:
        raise RefusedToStart(str(error)) from None
    os.environ.pop(TOKEN_VARIABLE, None)  # nothing that this process starts is to inherit it
    workers = workers or available_cores()
    descriptors = raise_descriptor_limit()
    connections = most_connections(descriptors, workers, CALLS_OF_A_WORKER)
    needed = max(descriptors - connections + _LEAST_CONNECTIONS, _LEAST_DESCRIPTORS)
    if descriptors < needed:
        raise RefusedToStart(
            f"expected {needed} descriptors or more for {workers} workers, found {descriptors}: raise `ulimit -n`"
        )
    try:
        if wasm and packages:
            raise PackageUnavailable(
                f"expected no packages in the tier `wasm`, whose component holds the standard library alone, found "
                f"{', '.join(packages)}: leave them out, or run another tier"
            )
        allowed = find_packages(packages, is_lazy=lazy_packages)
    except PackageUnavailable as error:
        raise RefusedToStart(str(error)) from None
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
        _serve(listener, connections, workers, min_tier, wasm, allowed, token, maximum, max_queue, until_stdin_closes)
    )


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
    connections: int,
    workers: int,
    min_tier: Tier,
    wasm: bool,
    packages: AllowedPackages,
    token: str | None,
    maximum: Limits,
    max_queue: int,
    until_stdin_closes: bool,
) -> None:
    try:
        isolation = await (establish_wasm() if wasm else establish(min_tier, packages))
    except (IsolationUnavailable, PackageUnavailable) as error:
        raise RefusedToStart(str(error)) from None
    execution = Execution(Pool(isolation.tier, workers, max_queue=max_queue, packages=packages), maximum=maximum)
    for tier, why in isolation.refused.items():
        log.warning("the stronger tier %s does not work here: %s", tier, why)
    server = _Server(execution, isolation, token, Connections(listener, connections))
    if until_stdin_closes:
        loop = asyncio.get_running_loop()

        # Nobody writes to our standard input: it becomes readable when it ends.
        def stop() -> None:
            loop.remove_reader(0)
            server.should_exit = True

        loop.add_reader(0, stop)
    await server.serve()
    if not server.started:
        raise RefusedToStart("the workers did not start; the log above says why")


class _Server(uvicorn.Server):
    """uvicorn's server with connections of ours, and an end that every accepted call reaches.

    Decided: docs/decisions/tools.md, “A service that stops finishes its calls”.
    """

    def __init__(self, execution: Execution, isolation: Isolation, token: str | None, connections: Connections) -> None:
        app = _HangsUpWhenAsked(
            CountsReplies(application(execution, isolation, token)),
            lambda: connections.are_to_take_turns or execution.is_draining,
        )
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_level="warning",
                lifespan="on",
                ws="none",
                timeout_keep_alive=int(REQUEST_SECONDS),
                timeout_graceful_shutdown=int(_WRITE_SECONDS),
            )
        )
        self._execution, self._isolation, self._connections = execution, isolation, connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the workers, then take callers in, and say where and how."""
        await super().startup(sockets=[])
        if not self.started:
            return
        self._connections.accept(
            lambda: CallerProtocol(
                self._connections, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
        )
        isolation = self._isolation
        layers = ", ".join(name for name, active in isolation.layers.items() if active)
        workers = self._execution.pool.size
        packages = isolation.packages
        probed = f", {len(packages.versions)} packages probed: {packages}" if packages.versions else ""
        url = self._connections.url
        print(f"sandbox on {url}, {workers} workers, tier {isolation.tier} ({layers}){probed}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new calls with 503, finish those that were accepted, and answer what is left with 503."""
        self._execution.is_draining = True
        end = time.monotonic() + self._execution.maximum.wall_seconds + _DRAIN_MARGIN_SECONDS
        while self.server_state.tasks and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.02)
        await self._execution.pool.close()
        self._connections.close()
        await super().shutdown(sockets=[])


def main() -> None:
    """Serve as the command line says.

    Raises:
        SystemExit: the service refuses to start; it says why.
    """
    parser = argparse.ArgumentParser(prog="python -m sandbox.server", description="Run Python that nobody has read.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (a public one needs a token)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument(
        "--workers", type=int, default=None, help="jails, one per core that this container may use by default"
    )
    choice = parser.add_mutually_exclusive_group()
    tiers = [tier for tier in Tier if tier is not Tier.WASM]
    choice.add_argument("--min-tier", type=Tier, choices=tiers, default=Tier.LANDLOCK, help="weakest isolation")
    choice.add_argument("--tier", type=Tier, choices=[Tier.WASM], help="this tier and no other; needs astra-jax[wasm]")
    parser.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="a package of this environment, such as numpy, that tools may import with what it requires, and read "
        "only; may be given several times; none without it",
    )
    parser.add_argument(
        "--lazy-packages",
        action="store_true",
        help="packages are imported by the calls that ask for them, out of their limits, and not once before all calls",
    )
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
            packages=options.package,
            lazy_packages=options.lazy_packages,
            maximum=Limits(**{name: getattr(options, f"max_{name}") for name in Limits.model_fields}),
            max_queue=options.max_queue,
            listen_fd=options.listen_fd,
            until_stdin_closes=options.until_stdin_closes,
        )
    except RefusedToStart as error:
        raise SystemExit(f"the sandbox refuses to start: {error}") from None


if __name__ == "__main__":
    main()
