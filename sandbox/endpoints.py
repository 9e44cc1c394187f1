"""The endpoints of the service, and who may call them; every failure that is not a tool's becomes an HTTP status."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.bearer_token import TOKEN_VARIABLE
from sandbox.execution import Execution, InvalidRequest, UnknownSource
from sandbox.packages import AllowedPackages
from sandbox.pool import QueueFull
from sandbox.protocol import PACKAGES_HEADER, read_packages
from sandbox.self_test import Isolation
from sandbox.web_pages import is_local_name
from sandbox.worker import ServiceFault

log = logging.getLogger("sandbox")
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


async def _body(request: Request, limit: int, *, code: str = "invalid_request") -> bytes:
    # Refused by its own word before a byte is read; the count below is for bodies that declare no length.
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise InvalidRequest(f"the body has {declared} bytes, the server takes {limit}", status=413, code=code)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise InvalidRequest(
                f"the body has more than the {limit} bytes that the server takes", status=413, code=code
            )
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
        body = await _body(request, self._execution.max_body_bytes, code="batch_too_large")
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
    """Turns every failure that is not the tool's into its HTTP status, and lets only those in who may call."""

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
        if self._expected is None and not is_local_name(request.headers.get("host")):
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
