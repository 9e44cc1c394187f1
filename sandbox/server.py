"""The service over HTTP: `python -m sandbox.server --host 127.0.0.1 --port 8377 --workers 2`."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import resource
import socket
from pathlib import Path

import uvicorn

from sandbox.bearer_token import TOKEN_VARIABLE, token_or_none
from sandbox.cgroup import available_cores, has_version_1
from sandbox.endpoints import application
from sandbox.errors import RefusedToStart, SandboxError
from sandbox.execution import MAXIMUM_LIMITS, Execution
from sandbox.isolation import Tier
from sandbox.packages import NO_PACKAGES, find_packages
from sandbox.pool import CALLS_OF_A_WORKER, Pool
from sandbox.self_test import establish

log = logging.getLogger("sandbox")
DEFAULT_PORT = 8377
_LEAST_CONNECTIONS = 16
_MOST_DESCRIPTORS = 1 << 16
_RESERVED_DESCRIPTORS = 64  # files, logs, the event loop, and connections that are refused
_BACKLOG = 2048
_IDLE_SECONDS = 75  # more than clients keep an idle connection
_DRAIN_MARGIN_SECONDS = 10.0  # beyond the longest wall limit, for calls that had just begun and the last replies


def serve(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    workers: int | None = None,
    *,
    min_tier: Tier = Tier.LANDLOCK,
    packages: Path | None = None,
    max_queue: int = 4096,
    listen_fd: int | None = None,
    until_stdin_closes: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT. If the environment has ASTRA_SANDBOX_TOKEN, callers must send it.

    Args:
      host: address to listen on; one that is not loopback needs a token.
      workers: jails; by default one per core that this process, or the container around it, may use.
      packages: a folder of packages that tools may import, made by `pip install --target`.
      max_queue: waiting calls above which callers get 429.
      listen_fd: a listening socket to use instead of `host` and `port`.
      until_stdin_closes: also stop when standard input ends, that is, when the parent dies.

    Raises:
        SandboxError: the token, the address, the descriptors, a package or the isolation will not do, or the workers
            did not start.
    """
    token = token_or_none(None)
    os.environ.pop(TOKEN_VARIABLE, None)  # nothing that this process starts is to inherit it
    allowed = NO_PACKAGES if packages is None else find_packages(packages)
    workers = workers or available_cores()
    most_connections = _raise_descriptor_limit() - _RESERVED_DESCRIPTORS - workers * (CALLS_OF_A_WORKER + 8)
    if most_connections < _LEAST_CONNECTIONS:
        raise RefusedToStart(f"{workers} workers need more descriptors than this user may open: raise `ulimit -n`")
    # Bound before the self-test, which takes seconds: a port that is taken, or too public, is told of at once.
    listener = socket.socket(fileno=listen_fd) if listen_fd is not None else _listen(host, port)
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback and not token:
        listener.close()
        raise RefusedToStart(
            f"{host} can be reached by others, who could run code here: set a token (environment variable "
            f"{TOKEN_VARIABLE}) or listen on 127.0.0.1"
        )
    if has_version_1():
        log.warning(
            "this host has cgroups of version 1: a container's limits of memory, cores and threads are not read; in a "
            "container set --workers to its cores"
        )
    isolation = asyncio.run(establish(min_tier, allowed))
    for tier, why in isolation.refused.items():
        log.warning("the stronger tier %s does not work here: %s", tier, why)
    execution = Execution(Pool(isolation.tier, workers, max_queue=max_queue, packages=allowed))

    def on_start() -> None:
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        with_packages = f", packages {allowed}" if allowed.versions else ""
        print(f"sandbox on {url}, {workers} workers, tier {isolation.tier}{with_packages}", flush=True)
        if until_stdin_closes:  # nothing is written to our standard input, so it becomes readable when it ends
            asyncio.get_running_loop().add_reader(0, stop)

    def stop() -> None:
        asyncio.get_running_loop().remove_reader(0)
        server.should_exit = True

    # uvicorn bounds the front. Beyond `limit_concurrency` connections a caller gets 503. After SIGTERM or SIGINT
    # no connection is accepted any more, and accepted calls have `timeout_graceful_shutdown` seconds to end.
    server = uvicorn.Server(
        uvicorn.Config(
            application(execution, isolation, token, on_start),
            access_log=False,
            log_level="warning",
            lifespan="on",
            ws="none",
            http="h11",
            backlog=_BACKLOG,
            limit_concurrency=most_connections,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=int(MAXIMUM_LIMITS.wall_seconds + _DRAIN_MARGIN_SECONDS),
        )
    )
    asyncio.run(server.serve(sockets=[listener]))
    if not server.started:
        raise RefusedToStart("the workers did not start; the log above says why")


def _raise_descriptor_limit() -> int:
    """Take as many descriptors as this user may, at most 65,536, and return their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        # Opened anew by its number, it knows that it is one of TCP: else asyncio leaves Nagle's algorithm on, and a
        # reply, whose head and body are two packets, waits 40 ms for the caller to acknowledge the head.
        return socket.socket(fileno=listener.detach())
    except OSError as error:
        raise RefusedToStart(f"cannot listen on {host}:{port}: {error}") from None


def main() -> None:
    """Serve as the command line says.

    Raises:
        SystemExit: the service refuses to start; it says why.
    """
    parser = argparse.ArgumentParser(prog="python -m sandbox.server", description="Run Python that no person has read.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (a public one needs a token)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--workers", type=int, help="jails, one per core that this container may use by default")
    parser.add_argument("--min-tier", type=Tier, choices=list(Tier), default=Tier.LANDLOCK, help="weakest isolation")
    parser.add_argument(
        "--packages",
        type=Path,
        metavar="FOLDER",
        help="a folder made by `pip install --target FOLDER NAME ...`, whose packages tools may import and read",
    )
    parser.add_argument("--max-queue", type=int, default=4096, help="waiting calls above which callers get 429")
    parser.add_argument("--listen-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        serve(**vars(options))
    except SandboxError as error:
        raise SystemExit(f"the sandbox refuses to start: {error}") from None


if __name__ == "__main__":
    main()
