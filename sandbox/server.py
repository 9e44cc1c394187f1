"""The service over HTTP: `python -m sandbox.server --host 127.0.0.1 --port 8377 --workers 2`."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence

import uvicorn
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
from sandbox.endpoints import application
from sandbox.errors import SandboxError
from sandbox.execution import MAXIMUM_LIMITS, Execution
from sandbox.isolation import Tier
from sandbox.packages import AllowedPackages, PackageUnavailable, find_packages
from sandbox.pool import CALLS_OF_A_WORKER, Pool
from sandbox.protocol import Limits
from sandbox.self_test import Isolation, IsolationUnavailable, establish, establish_wasm

log = logging.getLogger("sandbox")
DEFAULT_PORT = 8377
_LEAST_CONNECTIONS = 16
_LEAST_DESCRIPTORS = 256  # as many as each call's process is promised
_DRAIN_MARGIN_SECONDS = 5.0  # beyond the longest wall limit, for calls that had just begun
_WRITE_SECONDS = 5.0  # for the last replies


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
    """uvicorn's server with connections of ours, and an end that every accepted call reaches."""

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
