"""Besieges one sandbox service after another and prints what its honest callers noticed, as one JSON line.

    python scripts/bench_sandbox_siege.py [--only crowd half_open large_results threads kills stop replicas]

Every service is a process of its own that may open 1,024 descriptors and has two workers. Honest callers send a small
call again and again on a connection of their own, and again on a new one where it is closed before a byte of the reply;
nothing else is repeated. Figures of an attack stand beside those of the same callers before it.

crowd: 1,000 callers at once. half_open: 1,100 connections that never finish a request, each opened again when it is
closed. large_results: results of 4 MB of nested lists. threads: six calls of twenty threads that hash. kills: workers
are killed while 900 calls wait. stop: SIGTERM while calls of eight seconds run. replicas: of three services behind one
client one is killed and one drained.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from sandbox.client import AsyncSandboxClient, SandboxUnavailable

DESCRIPTORS = 1024
SMALL: dict[str, Any] = {"source": "def double(x):\n    return 2 * x\n", "function": "double"}
LARGE: dict[str, Any] = {
    "source": "def large():\n    return [[]] * 1_300_000\n",
    "function": "large",
    "limits": {"result_bytes": 4 << 20, "memory_bytes": 1 << 30, "wall_seconds": 30, "cpu_seconds": 20},
}
HASHING: dict[str, Any] = {
    "source": (
        "import hashlib, threading\ndef work():\n    data = bytes(1 << 20)\n    while True: hashlib.sha256(data)\n"
        "def hash_on():\n    threading.stack_size(1 << 18)\n"
        "    for _ in range(20): threading.Thread(target=work, daemon=True).start()\n    work()\n"
    ),
    "function": "hash_on",
    "limits": {"wall_seconds": 10, "cpu_seconds": 60, "memory_bytes": 2 << 30},
}
SLEEP: dict[str, Any] = {
    "source": "import time\ndef nap(seconds):\n    time.sleep(seconds)\n    return seconds\n",
    "function": "nap",
    "limits": {"wall_seconds": 20},
}


class Service:
    """A service process, its log, and what it uses."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def cpu_seconds(self) -> float:
        """CPU that the front's process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_rss_bytes(self) -> int:
        """The most memory that the front's process has held."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    def workers(self) -> list[int]:
        """The zygotes of its jails, or their launchers where the jail's is the same process."""
        return [zygote for launcher in children(self.process.pid) for zygote in children(launcher)[:1] or [launcher]]


def children(pid: int) -> list[int]:
    """The processes that `pid` started."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry))
    return found


@contextlib.asynccontextmanager
async def service(descriptors: int = DESCRIPTORS, workers: int = 2) -> AsyncIterator[Service]:
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
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
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
        """Status and body of one request; a connection that was closed before the request is made again.

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
        # In one breath: on a busy machine the hundreds that this process plays would else all connect first, and all
        # be silent for longer than a service with callers at its door lets them be.
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
    """Status and body of one request on a connection of its own.

    Raises:
        OSError: the service hung up on it.
    """
    caller = Caller(port)
    try:
        return await caller.ask(path, document)
    finally:
        caller.close()


class Noticed:
    """What honest callers saw."""

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
        """Counts and latencies."""
        ordered = sorted(self.seconds)
        at = lambda share: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)  # noqa: E731
        return {**self.outcomes, "p50_ms": at(0.5), "p99_ms": at(0.99), "slowest_ms": round(1000 * ordered[-1], 1)}


async def honest(callers: list[Caller], is_over: Callable[[], bool]) -> Noticed:
    """Callers that each send one call after the other."""
    noticed = Noticed()

    async def work(number: int) -> None:
        x = number
        while True:
            await noticed.call(callers[number], x)
            x += len(callers)
            if is_over():
                break

    await asyncio.gather(*(work(number) for number in range(len(callers))))
    return noticed


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Whether the time is over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


async def while_attacked(
    port: int, callers: int, attack: Callable[[], Awaitable[object]], seconds: float | None = None
) -> tuple[Noticed, Noticed]:
    """What the callers noticed before an attack and during it: all of it, or its first seconds."""
    all_callers = [Caller(port) for _ in range(callers)]
    await honest(all_callers, for_seconds(1))
    before = await honest(all_callers, for_seconds(10))
    attacking = asyncio.ensure_future(attack())
    during = await honest(all_callers, for_seconds(seconds) if seconds else attacking.done)
    attacking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await attacking
    for caller in all_callers:
        caller.close()
    return before, during


async def crowd() -> dict[str, Any]:
    """1,000 callers, five calls each."""
    async with service() as one:
        rounds = Counter[int]()
        noticed = Noticed()

        async def work(number: int) -> None:
            caller = Caller(one.port)
            for turn in range(5):
                await noticed.call(caller, 1000 * turn + number)
                rounds[turn] += 1
            caller.close()

        began = time.monotonic()
        await asyncio.gather(*(work(number) for number in range(1000)))
        seconds = time.monotonic() - began
        return {**noticed.figures(), "seconds": round(seconds, 1), "log_bytes": one.log.stat().st_size}


async def half_open() -> dict[str, Any]:
    """1,100 connections that never finish a request."""
    beginnings = (
        b"",
        b"POST /v1/execute HTTP/1.1\r\nhost: 127.0.0.1\r\n",
        b"POST /v1/execute HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n{",
    )
    opened = Counter[str]()

    async def hold(port: int, number: int) -> None:
        await asyncio.sleep(number / 500)  # the callers' own event loop is not to stall
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                opened["connections"] += 1
                writer.write(beginnings[number % 3])
                await reader.read()
                writer.close()
            await asyncio.sleep(1.0)

    async with service() as one:
        cpu, began = one.cpu_seconds(), time.monotonic()

        async def attack() -> None:
            await asyncio.gather(*(hold(one.port, number) for number in range(1100)))

        before, during = await while_attacked(one.port, 16, attack, seconds=20)
        return {
            "before": before.figures(),
            "during": during.figures(),
            "p99_ratio": round(during.figures()["p99_ms"] / before.figures()["p99_ms"], 2),
            "connections_opened": opened["connections"],
            "cpu_of_the_front": round((one.cpu_seconds() - cpu) / (time.monotonic() - began), 2),
            "log_bytes": one.log.stat().st_size,
        }


async def large_results() -> dict[str, Any]:
    """One result of 4 MB after the other, three times, beside small calls."""
    async with service() as one:
        answers = Counter[str]()

        async def ask_for_large() -> None:
            caller = Caller(one.port)
            for _ in range(3):
                status, body = await caller.ask("/v1/execute", LARGE)
                answers[f"HTTP {status}, {len(body) >> 20} MB"] += 1
            caller.close()

        before, during = await while_attacked(one.port, 4, ask_for_large)
        return {
            "before": before.figures(),
            "during": during.figures(),
            "large": answers,
            "peak_rss_of_the_front_mb": one.peak_rss_bytes() >> 20,
        }


async def threads() -> dict[str, Any]:
    """Six calls whose twenty threads hash without the interpreter's lock."""
    async with service() as one:
        ends = Counter[str]()

        async def attack() -> None:
            replies = await asyncio.gather(*(ask_once(one.port, "/v1/execute", HASHING) for _ in range(6)))
            ends.update(json.loads(body).get("error", {}).get("message", "no error") for _, body in replies)

        before, during = await while_attacked(one.port, 1, attack)
        return {"before": before.figures(), "during": during.figures(), "ends": ends}


async def kills() -> dict[str, Any]:
    """Both workers are killed, twice, while 900 calls wait or run."""
    async with service() as one:
        noticed = Noticed()

        async def work(number: int) -> None:
            caller = Caller(one.port)
            await noticed.call(caller, number)
            caller.close()

        async def kill() -> None:
            for _ in range(2):
                await asyncio.sleep(0.3)
                for zygote in one.workers():
                    os.kill(zygote, signal.SIGKILL)

        await asyncio.gather(kill(), *(work(number) for number in range(900)))
        return noticed.figures()


async def stop() -> dict[str, Any]:
    """SIGTERM while calls of eight seconds run and others keep coming."""
    async with service() as one:
        running = [
            asyncio.ensure_future(ask_once(one.port, "/v1/execute", {**SLEEP, "arguments": {"seconds": 8}}))
            for _ in range(16)
        ]
        noticed, retry_after = Noticed(), Counter[str]()

        async def keep_asking() -> None:
            caller = Caller(one.port)
            while one.process.poll() is None:
                await noticed.call(caller, 1)
                retry_after[str(caller.retry_after)] += 1
                await asyncio.sleep(0.05)

        asking = [asyncio.ensure_future(keep_asking()) for _ in range(4)]
        await asyncio.sleep(1.0)
        one.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        done = await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*asking)
        outcomes = Counter(f"HTTP {each[0]}" if isinstance(each, tuple) else type(each).__name__ for each in done)
        return {
            "running": outcomes,
            "asking": noticed.figures(),
            "retry_after": retry_after,
            "seconds_to_end": round(time.monotonic() - began, 1),
        }


async def replicas() -> dict[str, Any]:
    """Three replicas behind one client of 64 callers; after a third of the calls one is killed, then one drained."""
    calls = 6000
    async with service(workers=1) as one, service(workers=1) as two, service(workers=1) as three:
        url = ",".join(f"http://127.0.0.1:{each.port}" for each in (one, two, three))
        outcomes, turns, began = Counter[str](), iter(range(calls)), time.monotonic()
        async with AsyncSandboxClient(url) as client:

            async def work() -> None:
                for x in turns:
                    try:
                        reply = await client.execute(SMALL["source"], "double", {"x": x})
                        outcomes["right" if reply.value == 2 * x else "wrong"] += 1
                    except SandboxUnavailable:
                        outcomes["lost"] += 1

            async def attack() -> None:
                for share, each, number in ((3, one, signal.SIGKILL), (1.5, two, signal.SIGTERM)):
                    while outcomes.total() < calls / share:
                        await asyncio.sleep(0.01)
                    each.process.send_signal(number)

            await asyncio.gather(attack(), *(work() for _ in range(64)))
            seconds = time.monotonic() - began
            return {
                **outcomes,
                "calls_per_second": round(calls / seconds, 1),
                "attempts_that_failed": dict(client.service_errors),
                "answered": [each.answered for each in client.replicas],
            }


ATTACKS = {attack.__name__: attack for attack in (crowd, half_open, large_results, threads, kills, stop, replicas)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    line: dict[str, Any] = {}
    for name in options.only:
        line[name] = asyncio.run(ATTACKS[name]())
        print(name, json.dumps(line[name]), file=sys.stderr, flush=True)
    print(json.dumps({**line, "load_average": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
