"""The endpoints of the service: every failure that is not a tool's becomes an HTTP status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import platform
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
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
from sandbox.errors import Refused
from sandbox.execution import MAXIMUM_LIMITS, MOST_BODY_BYTES, Execution
from sandbox.protocol import PACKAGES_HEADER, ExecuteRequest, read_packages
from sandbox.self_test import Isolation
from sandbox.web_pages import is_local_name

log = logging.getLogger("sandbox")
MOST_UNREAD_BYTES = 256 << 20
READ_SECONDS = 60.0
_PIECE_BYTES = 64 << 10
_Result = TypeVar("_Result")
_CALL, _BATCH = TypeAdapter(ExecuteRequest), TypeAdapter(list[ExecuteRequest])


class _JSON(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the text of a document; a text that is ready stays as it is."""
        if isinstance(content, bytes):
            return content
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class _Reply(_JSON):
    """A reply to calls, written in pieces as its caller reads it, for at most `READ_SECONDS`.

    Replies that are being written hold at most `MOST_UNREAD_BYTES` together; a further one is refused with 503.
    """

    unread_bytes = 0  # of all replies together

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = len(self.body)
        if _Reply.unread_bytes + size > MOST_UNREAD_BYTES:
            message = "too many replies wait for their callers to read them; send the call again"
            raise Refused(message, status=503, code="unread_replies")
        _Reply.unread_bytes += size
        try:
            async with asyncio.timeout(READ_SECONDS):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                for start in range(0, size, _PIECE_BYTES):
                    piece, more = bytes(self.body[start : start + _PIECE_BYTES]), start + _PIECE_BYTES < size
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
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MOST_BODY_BYTES:
            raise Refused(f"the server takes bodies of at most {MOST_BODY_BYTES} bytes", status=413, code=code)
        chunks.append(chunk)
    return b"".join(chunks)


def _validated(wanted: TypeAdapter[_Result], body: bytes, levels_around: int) -> _Result:
    """Return the JSON of a body as the type wanted; arguments and state lie `levels_around` levels deep."""
    try:
        return wanted.validate_python(strict_json.parse(body, strict_json.MAX_NESTING + levels_around))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{path + ': ' if path else ''}{first['msg']}") from None
    except ValueError as error:
        raise Refused(f"the body is not JSON that is taken here: {error}") from None


async def _while_connected(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of `work`; cancel it if the caller hangs up, since the call may have been sent again."""
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
    """The HTTP endpoints over one `Execution`."""

    def __init__(self, execution: Execution, isolation: Isolation | None, token: str | None) -> None:
        self._execution, self._isolation = execution, isolation
        self._expected = f"Bearer {token}".encode() if token else None

    async def execute(self, request: Request) -> Response:
        """Answer `POST /v1/execute`: one call."""
        self._admit(request)
        self._require_packages(request)
        call = _validated(_CALL, await _body(request), levels_around=1)
        return _Reply(await _while_connected(request, self._execution.execute_call(_client(request), call)))

    async def execute_batch(self, request: Request) -> Response:
        """Answer `POST /v1/execute_batch`: a list of calls."""
        self._admit(request)
        self._require_packages(request)
        calls = _validated(_BATCH, await _body(request, code="batch_too_large"), levels_around=2)
        return _Reply(await _while_connected(request, self._execution.execute_batch(_client(request), calls)))

    async def health(self, request: Request) -> Response:
        """Answer `GET /health`: the isolation that holds, the workers, the queue, the limits."""
        # Open to all: load balancers have no token, and a caller without one learns that a sandbox is there.
        self._admit(request, needs_token=False)
        pool, isolation = self._execution.pool, self._isolation
        ready = sum(worker.ready for worker in pool.workers)
        document = {
            "status": "ok" if ready else "starting",
            "tier": isolation.tier if isolation else None,
            "stronger_tiers": isolation.refused if isolation else {},
            "python": platform.python_version(),
            "packages": {"versions": pool.packages.versions, "modules": pool.packages.modules},
            "workers": {"ready": ready, "total": len(pool.workers), "restarts": pool.restarts},
            "queue": {"waiting": pool.queued, "in_flight": pool.in_flight, "maximum": pool.max_queue},
            "limits": MAXIMUM_LIMITS.model_dump(),
        }
        return _JSON(document, status_code=200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer `GET /metrics`, in Prometheus's text format."""
        self._admit(request)
        pool = self._execution.pool
        gauges: dict[str, float] = {
            "sandbox_queue_waiting": pool.queued,
            "sandbox_calls_in_flight": pool.in_flight,
            "sandbox_workers_ready": sum(worker.ready for worker in pool.workers),
            "sandbox_worker_restarts": pool.restarts,
            "sandbox_sources_bytes": self._execution.sources.size_bytes,
        }
        return Response(self._execution.metrics.render(gauges), media_type="text/plain; version=0.0.4")

    def _admit(self, request: Request, *, needs_token: bool = True) -> None:
        """Refuse callers without a right to call; their body has not been read."""
        if "origin" in request.headers:
            raise Refused("requests of web pages (with an Origin header) are refused", status=403, code="web_page")
        # A page whose name was made to lead here has no token to send: where one is needed, any name will do.
        if self._expected is None and not is_local_name(request.headers.get("host")):
            host = request.headers["host"][:100]
            message = f"expected an address or localhost as Host, found {host!r}: set {TOKEN_VARIABLE} to serve by name"
            raise Refused(message, status=421, code="unknown_host")
        given = request.headers.get("authorization", "").encode()
        if self._expected and needs_token and not secrets.compare_digest(given, self._expected):
            raise Refused("the bearer token is missing or wrong", status=401, code="unauthorized")

    def _require_packages(self, request: Request) -> None:
        """Refuse calls whose packages are not those of this service: a tool would fail through no fault of its own."""
        has = self._execution.pool.packages.versions
        for name, version in read_packages(request.headers.get(PACKAGES_HEADER, "")).items():
            if has.get(name) != version:
                found = f"version {has[name]}" if name in has else "none"
                message = f"expected the package {name} {version}, which the calls need, found {found} here"
                raise Refused(message, status=409, code="packages_missing")

    async def refused(self, _: Request, error: Refused) -> Response:
        """Answer a request that is not served, and count it."""
        self._execution.metrics.count_refusal(error.code)
        if error.code == "service_fault":
            log.error("service fault: %s", error)
        message = str(error).encode("utf-8", "backslashreplace").decode()  # it may quote half a character
        headers = {"Retry-After": "1"} if error.status in (429, 503) else None
        return _JSON({"error": {"code": error.code, "message": message}}, error.status, headers)


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

    async def not_served(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return await service.refused(request, Refused(message, status=error.status_code, code="not_served"))

    async def left(request: Request, _: ClientDisconnect) -> Response:
        return await service.refused(request, Refused("the client left before its reply", code="disconnected"))

    routes = [
        Route("/v1/execute", service.execute, methods=["POST"]),
        Route("/v1/execute_batch", service.execute_batch, methods=["POST"]),
        Route("/health", service.health, methods=["GET"]),
        Route("/metrics", service.metrics, methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {Refused: service.refused, HTTPException: not_served, ClientDisconnect: left}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
