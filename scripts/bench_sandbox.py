"""Measures the sandbox service beside two cold baselines behind the same HTTP server; prints one JSON line.

    python scripts/bench_sandbox.py [--seconds 3] [--rounds 3] [--workers N]

Baselines, each one process per call with the same parsing, validation and reply: `bwrap` (bubblewrap with every
namespace, then `python -I -S`) and `python` (`python -I -S` alone, no isolation). Sources are one for all calls, a new
one every fourth call (roughly as in a rollout, whose episodes have tools of their own), or a new one each call. The
three services take turns in one
run, so that a noisy neighbour hits all of them. CPU is counted over the whole process tree of each service, the load
generator's excluded. Without bubblewrap the baseline is missing and the line says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from sandbox.endpoints import application
from sandbox.execution import Execution
from sandbox.isolation import Tier
from sandbox.local import local_sandbox
from sandbox.pool import Pool
from sandbox.protocol import ExecuteRequest

CITIES = ("Oslo", "Lima", "Cairo", "Kyoto", "Quito", "Accra", "Delhi", "Paris", "Turin", "Perth", "Seoul", "Tunis")


def realistic_tool() -> str:
    """A tool as a teacher writes it: 8 KB, the usual imports, a table of 60 rows, a lookup with conditions.

    >>> 7800 < len(realistic_tool()) < 8600
    True
    """
    rows = "\n".join(
        f'    {{"id": "L-{i:04d}", "city": "{CITIES[i % 12]}", "price": {900 + 37 * i % 800}, "rooms": {1 + i % 5}, '
        f'"listed": "2025-{1 + i % 12:02d}-{1 + i % 28:02d}", "tags": ["t{i % 7}", "t{i % 11}"]}},'
        for i in range(60)
    )
    return f'''"""Search of rental listings."""
import json
import re
from collections import defaultdict
from datetime import date, datetime, timedelta
from typing import Any, Dict, List, Optional

LISTINGS: List[Dict[str, Any]] = [
{rows}
]

class ListingError(ValueError):
    """A query that cannot be answered."""

def _parse_date(text: str) -> date:
    if not re.fullmatch(r"\\d{{4}}-\\d{{2}}-\\d{{2}}", text):
        raise ListingError(f"not a date: {{text!r}}")
    return datetime.strptime(text, "%Y-%m-%d").date()

def _matches(row: Dict[str, Any], city: str, max_price: Optional[float], min_rooms: int) -> bool:
    if row["city"].casefold() != city.casefold():
        return False
    if max_price is not None and row["price"] > max_price:
        return False
    return row["rooms"] >= min_rooms

def search_listings(city: str, max_price: Optional[float] = None, min_rooms: int = 1) -> Dict[str, Any]:
    """Listings of a city, cheapest first, with a summary per number of rooms."""
    rows = (row for row in LISTINGS if _matches(row, city.strip(), max_price, int(min_rooms)))
    found = sorted(rows, key=lambda row: (row["price"], row["id"]))
    by_rooms = defaultdict(list)
    for row in found:
        by_rooms[str(row["rooms"])].append(row["price"])
    newest = max((_parse_date(row["listed"]) for row in found), default=None)
    return {{
        "count": len(found),
        "listings": json.loads(json.dumps(found[:10])),
        "mean_price": {{rooms: sum(prices) / len(prices) for rooms, prices in sorted(by_rooms.items())}},
        "newest": newest.isoformat() if newest else None,
        "expires": (newest + timedelta(days=30)).isoformat() if newest else None,
    }}
'''


LOOP = "def search_listings(**_):\n    while True:\n        pass\n"


def body(source: str, city: str, limits: dict[str, float] | None = None, client: str = "bench") -> bytes:
    """An HTTP request of one call, ready to be written."""
    document = {"source": source, "function": "search_listings", "arguments": {"city": city, "max_price": 1500}}
    data = json.dumps(document | {"limits": limits or {"wall_seconds": 5, "cpu_seconds": 2}}).encode()
    head = (
        "POST /v1/execute HTTP/1.1",
        "host: 127.0.0.1",
        f"x-sandbox-client: {client}",
        f"content-length: {len(data)}",
        "",
        "",
    )
    return "\r\n".join(head).encode() + data


class Connection(asyncio.Protocol):
    """A keep-alive connection with one request at a time; leaner than a client library, it measures less of itself."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._reply: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end]).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._buffer) >= end + 4 + length and self._reply is not None:
            reply, self._reply = self._reply, None
            status, content = head[9:12], bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            if status == b"200":
                reply.set_result(content)
            else:
                reply.set_exception(OSError(f"HTTP {status.decode()}: {content[:200]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(exc or ConnectionResetError())

    async def ask(self, request: bytes) -> bytes:
        """One request, one reply; raises OSError."""
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply


@dataclass
class Load:
    """The figures of a service under load."""

    calls_per_second: float
    cpu_milliseconds_per_call: float
    p50_milliseconds: float
    p99_milliseconds: float
    errors: int
    calls: int

    def rounded(self) -> dict[str, float]:
        """For the JSON line."""
        return {name: round(value, 3) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Work:
    """The requests of callers."""

    connections: int
    loops_of_20: int = 0
    """Number among twenty calls that never end by themselves."""
    calls_per_source: int | None = None
    """How often a source is called before another takes its place; None for one source in all calls."""


def requests(calls_per_source: int | None) -> Iterator[bytes]:
    """Yield requests of the realistic tool without end; its sources differ in a comment."""
    source, serial, load = realistic_tool(), itertools.count(), secrets.token_hex(4)
    if calls_per_source is None:
        yield from itertools.cycle([body(source, city) for city in CITIES])
    for number in serial:
        yield body(f"{source}# {load}-{number // (calls_per_source or 1)}\n", CITIES[number % 12])


async def _load(port: int, pid: int, work_asked: Work, seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    honest = requests(work_asked.calls_per_source)
    endless = body(LOOP, "Oslo", {"wall_seconds": 1, "cpu_seconds": 2})
    latencies: list[float] = []
    errors = 0
    opened = []
    for _ in range(work_asked.connections):
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        opened.append(connection)
    await asyncio.gather(*(connection.ask(next(honest)) for connection in opened[:4]))  # warm
    cpu_before, start = tree_cpu_seconds(pid), time.monotonic()
    stop = start + seconds
    finished = 0

    async def work(index: int, connection: Connection) -> None:
        nonlocal errors, finished
        turn = 7 * index
        while time.monotonic() < stop:
            turn += 1
            hostile = turn % 20 < work_asked.loops_of_20
            began = time.monotonic()
            try:
                reply = await connection.ask(endless if hostile else next(honest))
            except OSError:
                errors += 1
                return
            if hostile:
                errors += b'"timeout"' not in reply
            else:
                errors += b'"count":' not in reply
                if began >= start:
                    latencies.append(time.monotonic() - began)
            finished += 1

    await asyncio.gather(*(work(index, connection) for index, connection in enumerate(opened)))
    elapsed, cpu = time.monotonic() - start, tree_cpu_seconds(pid) - cpu_before
    for connection in opened:
        connection._transport.close()
    ordered = sorted(latencies) or [float("nan")]
    return Load(
        finished / elapsed,
        1000 * cpu / max(finished, 1),
        1000 * ordered[len(ordered) // 2],
        1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        errors,
        finished,
    )


def tree_cpu_seconds(root: int) -> float:
    """CPU seconds of a process, its descendants, and all that they have waited for."""
    parents: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry))
                used[int(entry)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += used.get(pid, 0)
        waiting += parents.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


async def _private_bytes_per_call(port: int, pid: int, calls: int = 16) -> float:
    """Mean private memory of calls in flight: each has loaded the realistic tool and its tables, and waits."""
    waiting = realistic_tool().replace("    rows = (row", "    import time\n    time.sleep(3)\n    rows = (row")
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(calls)]
    await connections[0].ask(body(waiting, "Oslo"))  # compiled
    asked = [asyncio.ensure_future(connection.ask(body(waiting, "Oslo"))) for connection in connections]
    await asyncio.sleep(1.5)
    zygotes = [child for launcher in _children(pid) for child in _children(launcher)]
    sizes = [_private_bytes(child) for zygote in zygotes for child in _children(zygote)]
    await asyncio.gather(*asked)
    for connection in connections:
        connection._transport.close()
    return statistics.mean(sizes)


async def _p50_beside_loops(port: int, loops: int, seconds: float) -> tuple[float, float]:
    """Median milliseconds of one client, alone and while another client has endless loops in flight."""
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(loops + 1)]
    honest, others = connections[0], connections[1:]

    async def p50() -> float:
        times, stop = [], time.monotonic() + seconds
        while time.monotonic() < stop:
            began = time.monotonic()
            await honest.ask(body(realistic_tool(), "Oslo"))
            times.append(1000 * (time.monotonic() - began))
        return statistics.median(times)

    await p50()
    alone = await p50()
    limits = {"wall_seconds": 5, "cpu_seconds": 5}
    asked = [asyncio.ensure_future(other.ask(body(LOOP, "Oslo", limits, "loops"))) for other in others]
    await asyncio.sleep(0.3)
    beside = await p50()
    await asyncio.gather(*asked)
    for connection in connections:
        connection._transport.close()
    return alone, beside


async def _worst_overshoot_seconds(port: int, calls: int = 20) -> float:
    """How much longer than its wall limit of half a second an endless loop lasted at worst."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    request = body(LOOP, "Oslo", {"wall_seconds": 0.5, "cpu_seconds": 2})
    lasted = [json.loads(await connection.ask(request))["usage"]["wall_seconds"] for _ in range(calls)]
    connection._transport.close()
    return max(lasted) - 0.5


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for thread in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    ]


def _private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


# The cold baselines: this file serves them itself, with our parsing and validation.

_COLD_PROGRAM = """
import json, sys
request = json.load(sys.stdin)
module = {"__name__": "tool"}
exec(compile(request["source"], "<tool>", "exec"), module)
json.dump(module[request["function"]](**request["arguments"]), sys.stdout)
"""


def _cold_command(kind: str) -> list[str]:
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    if kind == "python":
        return [python, "-I", "-S", "-c", _COLD_PROGRAM]
    prefix = sysconfig.get_paths()["stdlib"].rsplit("/lib/", 1)[0]
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    for path in ("/usr", "/lib", "/lib64", prefix):
        if os.path.exists(path):
            command += ["--ro-bind", path, path]
    return [*command, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", python, "-I", "-S", "-c", _COLD_PROGRAM]


class _NoPool(Pool):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


class _ColdExecution(Execution):
    """Starts one process for each call."""

    def __init__(self, kind: str) -> None:
        super().__init__(_NoPool(Tier.LANDLOCK, 0))
        self._command = _cold_command(kind)
        self._slots = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    async def execute_call(self, client: str, request: ExecuteRequest) -> bytes:
        _, source = self._source(request)
        document = {"source": source.decode(), "function": request.function, "arguments": request.arguments}
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
            )
            async with asyncio.timeout(request.limits.wall_seconds):
                out, _ = await process.communicate(json.dumps(document).encode())
        return json.dumps({"status": "ok", "value": json.loads(out), "state": None, "stdout": "", "usage": {}}).encode()


def _serve_cold(kind: str, listen_fd: int) -> None:
    config = uvicorn.Config(application(_ColdExecution(kind)), access_log=False, log_level="warning", backlog=2048)
    asyncio.run(uvicorn.Server(config).serve(sockets=[socket.socket(fileno=listen_fd)]))


@contextlib.contextmanager
def service(kind: str, workers: int) -> Iterator[tuple[int, int]]:
    """(port, process id) of a running service, `ours` or a baseline."""
    if kind == "ours":
        with local_sandbox(workers) as url:
            port = int(url.rsplit(":", 1)[1])
            yield port, _listener_pid(port)
        return
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, __file__, "--serve", kind, "--listen-fd", str(listener.fileno())]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        process = subprocess.Popen(command, pass_fds=(listener.fileno(),), env=environment)
    try:
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _listener_pid(port: int) -> int:
    """The child of ours that runs the local service."""
    mine = str(os.getpid())
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[1] == mine and b"sandbox.server" in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return int(entry)
    raise RuntimeError(f"no service process listens on {port}")


def _median(loads: Sequence[Load]) -> Load:
    columns = {name: statistics.median(getattr(load, name) for load in loads) for name in vars(loads[0])}
    columns["errors"] = sum(load.errors for load in loads)
    return Load(**columns)  # type: ignore[arg-type]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of each service, in turns; medians are printed"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--serve", choices=("bwrap", "python"), help=argparse.SUPPRESS)
    parser.add_argument("--listen-fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve_cold(options.serve, options.listen_fd)
        return
    kinds = ["ours", "python"] + (["bwrap"] if shutil.which("bwrap") else [])
    results: dict[str, dict[str, list[Load]]] = {kind: {} for kind in kinds}
    with contextlib.ExitStack() as stack:
        services = {kind: stack.enter_context(service(kind, options.workers)) for kind in kinds}
        time.sleep(1.0)
        for _ in range(options.rounds):
            for kind, (port, pid) in services.items():
                work = {"1_client": Work(1), "64_clients": Work(64)}
                if kind == "ours":
                    work |= {
                        "64_clients_4_calls_a_source": Work(64, calls_per_source=4),
                        "64_clients_new_sources": Work(64, calls_per_source=1),
                        "1000_clients": Work(1000),
                        "64_clients_5_percent_loops": Work(64, loops_of_20=1),
                    }
                for name, asked in work.items():
                    seconds = 2 * options.seconds if asked.loops_of_20 or asked.connections == 1000 else options.seconds
                    load = asyncio.run(_load(port, pid, asked, seconds))
                    results[kind].setdefault(name, []).append(load)
        port, pid = services["ours"]
        private_bytes = asyncio.run(_private_bytes_per_call(port, pid))
        overshoot = asyncio.run(_worst_overshoot_seconds(port))
        alone, beside = asyncio.run(_p50_beside_loops(port, max(1, options.workers - 1), options.seconds))
    medians = {kind: {name: _median(loads) for name, loads in by.items()} for kind, by in results.items()}
    ours, python = medians["ours"], medians["python"]
    line: dict[str, Any] = {"work": f"realistic tool of {len(realistic_tool())} bytes, {options.workers} workers"}
    line["timeout_overshoot_seconds"] = round(overshoot, 4)
    line["private_bytes_per_call_in_flight"] = round(private_bytes)
    line |= {kind: {name: load.rounded() for name, load in by.items()} for kind, by in medians.items()}
    ratio = {
        "cpu_per_call_of_python": ours["64_clients"].cpu_milliseconds_per_call
        / python["64_clients"].cpu_milliseconds_per_call,
        "throughput_1000_of_64_clients": ours["1000_clients"].calls_per_second / ours["64_clients"].calls_per_second,
        "p99_of_p50_at_64_clients": ours["64_clients"].p99_milliseconds / ours["64_clients"].p50_milliseconds,
        "honest_p50_with_loops_of_clean": ours["64_clients_5_percent_loops"].p50_milliseconds
        / ours["64_clients"].p50_milliseconds,
    }
    ratio["p50_beside_another_clients_loops"] = beside / alone
    for name in ("64_clients", "64_clients_4_calls_a_source", "64_clients_new_sources"):
        # A cold baseline reads and compiles each source anew at every call.
        ratio[f"throughput_of_python_{name}"] = ours[name].calls_per_second / python["64_clients"].calls_per_second
    if "bwrap" in medians:
        bwrap = medians["bwrap"]
        ratio["throughput_of_bwrap"] = ours["64_clients"].calls_per_second / bwrap["64_clients"].calls_per_second
        ratio["latency_at_1_client_of_bwrap"] = ours["1_client"].p50_milliseconds / bwrap["1_client"].p50_milliseconds
    else:
        line["bwrap"] = "missing: install bubblewrap for this baseline"
    line["ratio"] = {name: round(value, 3) for name, value in ratio.items()}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
