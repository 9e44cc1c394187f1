"""A sandbox service in a process of its own with few descriptors, and callers that note what they get."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {"source": "def double(x):\n    return 2 * x\n", "function": "double"}
SLEEP: dict[str, Any] = {
    "source": "import time\ndef nap(seconds):\n    time.sleep(seconds)\n    return seconds\n",
    "function": "nap",
    "limits": {"wall_seconds": 20},
}


class Service:
    """A service process and its log."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the front's process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def service(descriptors: int = 1024, workers: int = 2) -> AsyncIterator[Service]:
    """A healthy service with few descriptors, gone at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = [sys.executable, "-m", "sandbox.server", "--port", str(port), "--workers", str(workers)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "siege", *command],
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        try:
            while True:
                if process.poll() is not None:
                    raise SystemExit(f"the service did not start: {log.read_text()}")
                with contextlib.suppress(OSError, ValueError):
                    if (await ask_once(port, "/health"))[0] == 200:
                        break
                await asyncio.sleep(0.1)
            yield Service(process, port, log)
        finally:
            process.kill()
            process.wait()


class Caller:
    """One HTTP connection at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._stays = False
        self.retry_after: str | None = None

    async def ask(self, path: str, document: object = None) -> tuple[int, bytes]:
        """Return status and body of one request; open the connection again if it was closed before.

        Raises:
            OSError: the service hung up on a request.
        """
        body = b"" if document is None else json.dumps(document).encode()
        method = "GET" if document is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        while True:
            is_old = self._streams is not None
            reader, writer = self._streams or await self._connected(head + body)
            self._streams = None
            try:
                if is_old:
                    writer.write(head + body)
                answer = await self._answer(reader)
            except (asyncio.IncompleteReadError, ConnectionResetError) as error:
                if is_old and not getattr(error, "partial", b""):
                    continue
                raise ConnectionResetError("the service hung up on a request") from None
            else:
                if self._stays:
                    self._streams = reader, writer
                return answer
            finally:
                if self._streams is None:
                    writer.close()

    async def _connected(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # The request follows at once. Otherwise, on a busy machine, hundreds of callers connect first and are silent
        # for longer than the service allows.
        connection = socket.create_connection(("127.0.0.1", self._port))
        try:
            connection.sendall(request)
        except OSError:
            connection.close()
            raise
        return await asyncio.open_connection(sock=connection, limit=1 << 26)

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        self.retry_after = headers.get("retry-after")
        length = headers.get("content-length")
        self._stays = length is not None and headers.get("connection") != "close"
        body = await (reader.readexactly(int(length)) if length else reader.read())
        return int(head[0].split()[1]), body

    def close(self) -> None:
        """Hang up."""
        if self._streams:
            self._streams[1].close()
            self._streams = None


async def ask_once(port: int, path: str, document: object = None) -> tuple[int, bytes]:
    """Return status and body of one request on a connection of its own.

    Raises:
        OSError: the service hung up on it.
    """
    caller = Caller(port)
    try:
        return await caller.ask(path, document)
    finally:
        caller.close()


class Noticed:
    """Outcomes and seconds of the calls of honest callers."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.outcomes: Counter[str] = Counter()

    async def call(self, caller: Caller, x: int, patience_seconds: float = 60.0) -> None:
        """Make one small call."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(patience_seconds):
                status, body = await caller.ask("/v1/execute", {**SMALL, "arguments": {"x": x}})
            is_right = status == 200 and json.loads(body).get("value") == 2 * x
            self.outcomes["right" if is_right else f"HTTP {status}" if status != 200 else "wrong"] += 1
        except TimeoutError:
            self.outcomes["never answered"] += 1
            caller.close()
        except OSError:
            self.outcomes["hung up on"] += 1
        self.seconds.append(time.monotonic() - began)

    def figures(self) -> dict[str, Any]:
        """Return counts and latencies."""
        ordered = sorted(self.seconds)
        at = lambda share: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)  # noqa: E731
        return {**self.outcomes, "p50_ms": at(0.5), "p99_ms": at(0.99), "slowest_ms": round(1000 * ordered[-1], 1)}
