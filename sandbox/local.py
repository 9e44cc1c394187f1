"""A real service process of one's own on this machine, for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

from sandbox.client import SandboxUnavailable

_START_SECONDS = 180.0  # a starved machine may need most of it
_STOP_SECONDS = 10.0


@contextlib.contextmanager
def local_sandbox(workers: int = 2, *, options: tuple[str, ...] = ()) -> Iterator[str]:
    """Start a service on a free loopback port, yield its URL once it is healthy, stop it afterwards.

    The service also stops when this process dies, however it dies. `options` are further arguments of
    `python -m sandbox.server`.

    Raises:
        SandboxUnavailable: the service does not come up; its log says why.
    """
    # The socket is made here and inherited: no other process can take the port before the service listens.
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "sandbox.server", "--workers", str(workers), *options]
        command += ["--listen-fd", str(listener.fileno()), "--until-stdin-closes"]
        root = str(Path(__file__).parent.parent)
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            process_group=0,  # Ctrl-C in a terminal is for the caller, which may still need the service
            env={**os.environ, "PYTHONPATH": path},
        )
    try:
        _wait_until_healthy(url, process)
        yield url
    finally:
        # The end of its standard input asks the service to stop.
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without any proxy of the environment
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SandboxUnavailable(
                f"the sandbox service ended at start with exit status {process.returncode}; its log above says why"
            )
        with contextlib.suppress(OSError):
            try:
                opener.open(f"{url}/health", timeout=1.0).close()
                return
            except HTTPError as error:  # 503: no worker is ready
                error.close()
        time.sleep(0.02)
    raise SandboxUnavailable(f"the sandbox service was not healthy within {_START_SECONDS:g} s")
