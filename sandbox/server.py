"""The service over HTTP: `python -m sandbox.server --host 127.0.0.1 --port 8377 --workers 2`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.execution import Execution, InvalidRequest, UnknownSource
from sandbox.isolation import Tier
from sandbox.pool import Pool, QueueFull, ServiceFault
from sandbox.protocol import ExecuteRequest

log = logging.getLogger("sandbox")
DEFAULT_PORT = 8377


class _JSON(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _failure(status: int, code: str, message: str, **headers: str) -> _JSON:
    return _JSON({"error": {"code": code, "message": message}}, status_code=status, headers=headers or None)


def _client(request: Request) -> str:
    """Whose turn it is in the fair queue: the name a client gives itself, within its address."""
    host = request.client.host if request.client else ""
    return f"{host} {request.headers.get('x-sandbox-client', '')[:64]}"


async def _body(request: Request, limit: int) -> bytes:
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


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None


def _validated(document: Any) -> ExecuteRequest:
    try:
        return ExecuteRequest.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{where + ': ' if where else ''}{first['msg']}") from None


class Service:
    """The HTTP endpoints over one `Execution`."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    async def execute(self, request: Request) -> Response:
        """POST /v1/execute"""
        document = _parse(await _body(request, self._execution.max_body_bytes))
        return _JSON(await self._execution.execute(_client(request), _validated(document)))

    async def execute_batch(self, request: Request) -> Response:
        """POST /v1/execute_batch"""
        documents = _parse(await _body(request, self._execution.max_body_bytes))
        if not isinstance(documents, list) or len(documents) > self._execution.max_batch:
            raise InvalidRequest(f"a batch is a list of at most {self._execution.max_batch} requests")
        requests = []
        for position, document in enumerate(documents):
            try:
                requests.append(_validated(document))
            except InvalidRequest as error:
                raise InvalidRequest(f"request {position}: {error}") from None
        return _JSON(await self._execution.execute_batch(_client(request), requests))

    async def put_source(self, request: Request) -> Response:
        """PUT /v1/sources/{sha256}"""
        data = await _body(request, self._execution.max_body_bytes)
        expected = request.path_params["sha256"]
        if hashlib.sha256(data).hexdigest() != expected:
            raise InvalidRequest(f"the body's SHA-256 is {hashlib.sha256(data).hexdigest()}, the path says {expected}")
        self._execution.sources.put(expected, data)
        return Response(status_code=204)

    async def health(self, request: Request) -> Response:
        """GET /health"""
        return _JSON(self._execution.health())


def _guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Turn every failure that is not the tool's into its HTTP status."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except InvalidRequest as error:
            return _failure(error.status, "invalid_request", str(error))
        except UnknownSource as error:
            return _failure(404, "unknown_source", f"no source with SHA-256 {error}; send its text")
        except QueueFull:
            return _failure(429, "queue_full", "too many calls are waiting", **{"Retry-After": "1"})
        except ServiceFault as error:
            log.error("service fault: %s", error)
            return _failure(503, "service_fault", str(error), **{"Retry-After": "1"})

    return guarded


def application(execution: Execution) -> Starlette:
    """The ASGI application; its lifespan starts and stops the pool."""
    service = Service(execution)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await execution.pool.start()
        try:
            yield
        finally:
            await execution.pool.close()

    routes = [
        Route("/v1/execute", _guarded(service.execute), methods=["POST"]),
        Route("/v1/execute_batch", _guarded(service.execute_batch), methods=["POST"]),
        Route("/v1/sources/{sha256}", _guarded(service.put_source), methods=["PUT"]),
        Route("/health", _guarded(service.health), methods=["GET"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def serve(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    workers: int | None = None,
    *,
    listen_fd: int | None = None,
    until_stdin_closes: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
      host: address to listen on.
      port: TCP port.
      workers: jails; one per core by default.
      listen_fd: a listening socket to use instead of `host` and `port`.
      until_stdin_closes: also stop when standard input ends, that is, when the parent dies.
    """
    execution = Execution(Pool(Tier.NAMESPACES, workers or os.cpu_count() or 1))
    config = uvicorn.Config(
        application(execution),
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        lifespan="on",
        ws="none",
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    listener = socket.socket(fileno=listen_fd) if listen_fd is not None else config.bind_socket()
    asyncio.run(_serve(uvicorn.Server(config), listener, until_stdin_closes))


async def _serve(server: uvicorn.Server, listener: socket.socket, until_stdin_closes: bool) -> None:
    if until_stdin_closes:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.remove_reader(0)
            server.should_exit = True

        loop.add_reader(0, stop)
    await server.serve(sockets=[listener])
    if not server.started:
        raise SystemExit(1)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sandbox.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--listen-fd", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    serve(
        options.host,
        options.port,
        options.workers,
        listen_fd=options.listen_fd,
        until_stdin_closes=options.until_stdin_closes,
    )


if __name__ == "__main__":
    main()
