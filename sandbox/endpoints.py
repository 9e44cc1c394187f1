"""The endpoints of the service and their guard: every failure that is not a tool's becomes an HTTP status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sandbox import strict_json
from sandbox.bearer_token import TOKEN_VARIABLE
from sandbox.execution import MOST_BODY_BYTES, Execution, InvalidRequest, UnknownSource
from sandbox.pool import QueueFull
from sandbox.protocol import PACKAGES_HEADER, ExecuteRequest, read_packages
from sandbox.self_test import Isolation
from sandbox.web_pages import is_local_name
from sandbox.worker import ServiceFault

log = logging.getLogger("sandbox")
MOST_UNREAD_BYTES = 256 << 20
READ_SECONDS = 60.0
_PIECE_BYTES = 64 << 10
_COME_BACK = {"Retry-After": "1"}
_Endpoint = Callable[[Request], Awaitable[Response]]
_Result = TypeVar("_Result")
_CALL, _BATCH = TypeAdapter(ExecuteRequest), TypeAdapter(list[ExecuteRequest])


class _JSON(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return _JSON({"error": {"code": code, "message": message}}, status_code=status, headers=headers)


class _Reply(Response):
    """A reply to calls, written in pieces as fast as its caller reads, so that memory holds few unread bytes.

    Replies that wait for their callers take at most `MOST_UNREAD_BYTES` together. A further one becomes 503, and one
    that is not read within `READ_SECONDS` is cut off; in both cases the caller asks again.
    """

    media_type = "application/json"
    unread_bytes = 0  # of all replies together

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = len(self.body)
        if size <= _PIECE_BYTES:
            await super().__call__(scope, receive, send)
            return
        if _Reply.unread_bytes + size > MOST_UNREAD_BYTES:
            refusal = _error(503, "unread_replies", "too many replies wait for callers to read them", _COME_BACK)
            await refusal(scope, receive, send)
            return
        _Reply.unread_bytes += size
        try:
            async with asyncio.timeout(READ_SECONDS):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                for start in range(0, size, _PIECE_BYTES):
                    piece = bytes(self.body[start : start + _PIECE_BYTES])
                    more = start + _PIECE_BYTES < size
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError:
            log.warning("a caller did not read its reply within %g s", READ_SECONDS)
            raise  # uvicorn closes the connection
        finally:
            _Reply.unread_bytes -= size


def _client(request: Request) -> str:
    """Return the name of a line of the fair queue: the name that a client gives itself, with its address."""
    host = request.client.host if request.client else ""
    return f"{host} {request.headers.get('x-sandbox-client', '')[:64]}"


async def _body(request: Request, *, code: str = "invalid_request") -> bytes:
    too_long = InvalidRequest(f"the server takes bodies of at most {MOST_BODY_BYTES} bytes", status=413, code=code)
    # Refused by its declared length before a byte is read; the count below is for bodies that declare none.
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MOST_BODY_BYTES:
        raise too_long
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MOST_BODY_BYTES:
            raise too_long
        chunks.append(chunk)
    return b"".join(chunks)


def _call(body: bytes) -> ExecuteRequest:
    """Return the one request of a body."""
    return _validated(_CALL, body, levels_around=1)


def _validated(wanted: TypeAdapter[_Result], body: bytes, levels_around: int) -> _Result:
    """Return the JSON of a body as the type wanted; arguments and state lie `levels_around` levels deep."""
    try:
        return wanted.validate_python(strict_json.parse(body, strict_json.MAX_NESTING + levels_around))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{path + ': ' if path else ''}{first['msg']}") from None
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON that is taken here: {error}") from None


async def _while_connected(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of `work`; cancel it if the caller hangs up, since the call may have been sent again.

    Raises:
        ClientDisconnect: the caller has hung up.
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


class _Service:
    """The HTTP endpoints over one `Execution`; `guarded` turns the exceptions of both into HTTP statuses."""

    def __init__(self, execution: Execution, isolation: Isolation | None, token: str | None) -> None:
        self._execution, self._isolation = execution, isolation
        self._expected = f"Bearer {token}".encode() if token else None

    async def execute(self, request: Request) -> Response:
        """Answer `POST /v1/execute`: one call."""
        self._require_packages(request)
        call = _call(await _body(request))
        return _Reply(await _while_connected(request, self._execution.execute_call(_client(request), call)))

    async def execute_batch(self, request: Request) -> Response:
        """Answer `POST /v1/execute_batch`: a list of calls."""
        self._require_packages(request)
        calls = _validated(_BATCH, await _body(request, code="batch_too_large"), levels_around=2)
        return _Reply(await _while_connected(request, self._execution.execute_batch(_client(request), calls)))

    def _require_packages(self, request: Request) -> None:
        """Refuse calls whose packages are not those of this service: a tool would fail through no fault of its own."""
        has = self._execution.pool.packages.versions
        for name, version in read_packages(request.headers.get(PACKAGES_HEADER, "")).items():
            if has.get(name) != version:
                found = f"version {has[name]}" if name in has else "none"
                message = f"expected the package {name} {version}, which the calls need, found {found} here"
                raise InvalidRequest(message, status=409, code="packages_missing")

    async def health(self, _: Request) -> Response:
        """Answer `GET /health`: the isolation that holds, the workers, the queue, the limits."""
        pool, isolation = self._execution.pool, self._isolation
        ready = sum(worker.ready for worker in pool.workers)
        document = {
            "status": "ok" if ready else "starting",
            "tier": isolation.tier if isolation else None,
            "layers": isolation.layers if isolation else {},
            "stronger_tiers": isolation.refused if isolation else {},
            "python": isolation.python if isolation else None,
            "packages": {"versions": pool.packages.versions, "modules": pool.packages.modules},
            "workers": {"ready": ready, "total": len(pool.workers), "restarts": pool.restarts},
            "queue": {"waiting": pool.queued, "in_flight": pool.in_flight, "maximum": pool.max_queue},
            "limits": self._execution.maximum.model_dump(),
        }
        return _JSON(document, status_code=200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        """Answer `GET /metrics`, in Prometheus's text format."""
        pool, execution = self._execution.pool, self._execution
        gauges = {
            "sandbox_queue_waiting": ("Calls that wait for a slot.", pool.queued),
            "sandbox_calls_in_flight": ("Calls inside a jail.", pool.in_flight),
            "sandbox_workers_ready": ("Jails that take calls.", sum(worker.ready for worker in pool.workers)),
            "sandbox_worker_restarts": ("Jails that ended and were replaced.", pool.restarts),
            "sandbox_sources_bytes": ("Size of the sources kept by hash.", execution.sources.size_bytes),
        }
        return Response(execution.metrics.render(gauges), media_type="text/plain; version=0.0.4")

    def guarded(self, endpoint: _Endpoint, *, open_to_all: bool = False) -> _Endpoint:
        """Refuse callers without a right to call, and turn every failure that is not a tool's into an HTTP status.

        An endpoint that is open to all needs no token.
        """

        async def answer(request: Request) -> Response:
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

        return answer

    def _refusal(self, request: Request, open_to_all: bool) -> Response | None:
        """Return the refusal of a request that is not looked at; its body has not been read."""
        if "origin" in request.headers:
            return self._refuse(403, "web_page", "requests of web pages (with an Origin header) are refused")
        # A page whose name was made to lead here has no token to send: where one is needed, any name will do.
        if self._expected is None and not is_local_name(request.headers.get("host")):
            host = request.headers["host"][:100]
            message = f"expected an address or localhost as Host, found {host!r}: set {TOKEN_VARIABLE} to serve by name"
            return self._refuse(421, "unknown_host", message)
        given = request.headers.get("authorization", "").encode()
        if self._expected and not open_to_all and not secrets.compare_digest(given, self._expected):
            return self._refuse(401, "unauthorized", "the bearer token is missing or wrong")
        return None

    def _refuse(self, status: int, code: str, message: str, **headers: str) -> Response:
        self._execution.metrics.refusals[code] += 1
        message = message.encode("utf-8", "backslashreplace").decode()  # it may quote half a character
        return _error(status, code, message, headers or None)


def application(
    execution: Execution,
    isolation: Isolation | None = None,
    token: str | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> Starlette:
    """Return the ASGI application; its lifespan starts the pool, calls `on_start`, and stops the pool."""
    service = _Service(execution, isolation, token)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # Closed also if the start fails: some of the workers may have started.
        try:
            await execution.pool.start()
            on_start()
            yield
        finally:
            await execution.pool.close()

    routes = [
        Route("/v1/execute", service.guarded(service.execute), methods=["POST"]),
        Route("/v1/execute_batch", service.guarded(service.execute_batch), methods=["POST"]),
        # Open to all: load balancers have no token, and a caller without one learns that a sandbox is there.
        Route("/health", service.guarded(service.health, open_to_all=True), methods=["GET"]),
        Route("/metrics", service.guarded(service.metrics), methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {HTTPException: _not_served}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


async def _not_served(request: Request, error: HTTPException) -> Response:
    return _error(error.status_code, "not_served", f"{request.method} {request.url.path}: {error.detail}")
