"""A sandbox service that is killed, or attacked by its calls: one JSON line.

python scripts/bench_sandbox_faults.py healing [--kills 10] [--clients 16]
python scripts/bench_sandbox_faults.py soak [--calls 100000] [--clients 64] [--hostile-percent 5]

healing   workers of a loaded service are killed with signal 9. Healed is when every worker takes calls again by the
          service's own account, which is asked every 5 ms; every answer is checked
soak      very many calls, some hostile, with every answer checked. An honest call doubles a number that no other
          call has, so that a lost or swapped answer shows. Memory, descriptors and processes are compared between
          a tenth of the calls and the end. The exit code is 1 if an answer is wrong or something grew
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1]))  # tests/ is no installed package

from sandbox.client import AsyncSandboxClient, SandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import Limits
from tests.sandbox.processes import children, descendants, descriptors, rss_bytes, zombies

DOUBLE = "def double(x):\n    return 2 * x\n"
HONEST = (
    "import json, re\nTABLE = {str(i): i * i for i in range(200)}\n"
    "def f(x, state):\n    state['seen'] = state.get('seen', 0) + x\n    print('call', x)\n"
    "    return {'x': x, 'double': 2 * x, 'square': TABLE[str(x % 200)], 'digits': re.findall(r'\\d', str(x))}\n"
)
HOSTILE = [  # (source, the kinds it may end with; those that need time may meet that limit first on a busy machine)
    ("def f(x, state):\n    while True: pass\n", {"timeout"}),
    ("import time\ndef f(x, state):\n    time.sleep(9)\n", {"timeout"}),
    ("def f(x, state):\n    return [0] * 10 ** 10\n", {"memory"}),
    ("def f(x, state):\n    kept = []\n    while True: kept.append(bytearray(1 << 20))\n", {"memory", "timeout"}),
    ("def f(x, state):\n    while True: print('x' * 999)\n", {"output_limit"}),
    ("import os\ndef f(x, state):\n    os._exit(0)\n", {"crashed"}),
    ("import ctypes\ndef f(x, state):\n    ctypes.string_at(0)\n", {"crashed"}),
    ("import os\ndef f(x, state):\n    os.fork()\n", {"forbidden"}),
    ("import socket\ndef f(x, state):\n    socket.socket()\n", {"forbidden"}),
    ("import os\ndef f(x, state):\n    for fd in range(3, 64):\n        try: os.write(fd, b'forged')\n"
     "        except OSError: pass\n", {"forbidden"}),
    ("def f(x, state):\n    open('/tmp/leftover', 'wb').write(bytes(1 << 22))\n    return {1}\n", {"invalid_result"}),
    ("import threading, time\ndef f(x, state):\n    threading.stack_size(65536)\n    while True:\n"
     "        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n",
     {"exception", "memory", "timeout"}),
    ("def f(x, state):\n    return f(x, state)\n", {"exception"}),
    ("def f(x, state:\n", {"invalid_source"}),
]  # fmt: skip
LIMITS = Limits(wall_seconds=1.0, cpu_seconds=0.5, memory_bytes=96 << 20, output_bytes=4096)
HONEST_LIMITS = Limits(wall_seconds=30.0, cpu_seconds=5.0)


def heal(url: str, client: httpx.Client, victim: int) -> float:
    """Return the seconds from the death of `victim` until all workers take calls again."""
    restarts = client.get(f"{url}/health").json()["workers"]["restarts"]
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while True:
        workers = client.get(f"{url}/health").json()["workers"]
        if workers["restarts"] > restarts and workers["ready"] == workers["total"]:
            return time.monotonic() - began
        time.sleep(0.005)


def healing(options: argparse.Namespace) -> dict[str, Any]:
    """Kill zygotes and launchers in turn under load."""
    stop, answers, wrong = threading.Event(), [0] * options.clients, [0] * options.clients
    with (
        local_sandbox(2) as url,
        SandboxClient(url) as sandbox,
        httpx.Client(trust_env=False, timeout=60) as client,
        ThreadPoolExecutor(options.clients) as threads,
    ):

        def load(index: int) -> None:
            while not stop.is_set():
                value = sandbox.execute(DOUBLE, "double", {"x": answers[index]}).value
                wrong[index] += value != 2 * answers[index]
                answers[index] += 1

        (front,) = children(os.getpid())
        running = [threads.submit(load, index) for index in range(options.clients)]
        seconds = []
        try:
            for turn in range(options.kills):
                time.sleep(0.5)
                launcher = children(front)[turn % 2]
                zygote = children(launcher)
                seconds.append(heal(url, client, zygote[0] if zygote and turn % 4 < 2 else launcher))
        finally:
            stop.set()
        for future in running:
            future.result(timeout=150)
    return {
        "kills": len(seconds),
        "healed_seconds_median": round(statistics.median(seconds), 3),
        "healed_seconds_max": round(max(seconds), 3),
        "answers": sum(answers),
        "wrong": sum(wrong),
    }


def resources() -> dict[str, int]:
    """Return the resources of the service and its idle jails, which are all processes below this one."""
    pids = descendants(os.getpid())
    return {
        "processes": len(pids),
        "zombies": zombies(pids),
        "descriptors": sum(map(descriptors, pids)),
        "rss_bytes": sum(map(rss_bytes, pids)),
    }


async def calls_of_soak(
    url: str, calls: int, clients: int, hostile_percent: float, stop_at: float
) -> tuple[Counter[str], dict[str, int]]:
    """Return counts of outcomes, and the resources after a tenth of the calls."""
    happened: Counter[str] = Counter()
    rng = random.Random(0)
    hostile_turns = {turn for turn in range(calls) if 100 * rng.random() < hostile_percent}
    turns = iter(range(calls))
    early: dict[str, int] = {}

    async def work(client: AsyncSandboxClient, bar: tqdm) -> None:
        for turn in turns:
            if time.monotonic() > stop_at:
                return
            if turn in hostile_turns:
                source, kinds = HOSTILE[turn % len(HOSTILE)]
                reply = await client.execute(source, "f", {"x": turn}, state={}, limits=LIMITS)
                kind = "ok" if reply.error is None else str(reply.error.kind)
                happened["hostile: as expected" if kind in kinds else f"hostile {turn % len(HOSTILE)}: {kind}"] += 1
            else:
                reply = await client.execute(HONEST, "f", {"x": turn}, state={"seen": 1}, limits=HONEST_LIMITS)
                expected = {"x": turn, "double": 2 * turn, "square": (turn % 200) ** 2, "digits": list(str(turn))}
                right = reply.value == expected and reply.state == {"seen": 1 + turn}
                right = right and reply.stdout == f"call {turn}\n"
                happened["honest: right" if right else f"honest: wrong: {reply.error}"] += 1
            bar.update()

    async with contextlib.AsyncExitStack() as stack:
        open_clients = [
            await stack.enter_async_context(AsyncSandboxClient(url, max_connections=8)) for _ in range(min(8, clients))
        ]
        with tqdm(total=calls, unit="call", mininterval=5) as bar:
            for part in (calls // 10, calls):
                turns = iter(range(0 if part < calls else calls // 10, part))
                await asyncio.gather(*(work(open_clients[index % len(open_clients)], bar) for index in range(clients)))
                if part < calls:
                    await asyncio.sleep(1.0)
                    early = resources()
    return happened, early


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Check every answer, and compare resources."""
    with local_sandbox(options.workers) as url:
        began = time.monotonic()
        stop_at = began + 60 * options.max_minutes
        happened, early = asyncio.run(
            calls_of_soak(url, options.calls, options.clients, options.hostile_percent, stop_at)
        )
        seconds = time.monotonic() - began
        time.sleep(2.0)
        late = resources()
    calls = happened.total()
    wrong = calls - happened["honest: right"] - happened["hostile: as expected"]
    flat = late["descriptors"] <= early["descriptors"] and late["processes"] == early["processes"]
    return {
        "work": f"{calls} calls, {options.hostile_percent:g} % hostile, {options.clients} clients",
        "seconds": round(seconds, 1),
        "calls_per_second": round(calls / seconds, 1),
        "happened": dict(sorted(happened.items())),
        "wrong": wrong,
        "early": early,
        "late": late,
        "rss_growth": round(late["rss_bytes"] / early["rss_bytes"] - 1, 4),
        "sound": not wrong and flat and not late["zombies"],
    }


def main() -> None:
    """Read the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["healing", "soak"])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--clients", type=int, help="callers at once; default: 16 beside kills, 64 of the soak")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--hostile-percent", type=float, default=5.0)
    parser.add_argument("--max-minutes", type=float, default=60.0, help="stop a soak early and report it")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="of the soak's service")
    options = parser.parse_args()
    options.clients = options.clients or (64 if options.mode == "soak" else 16)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    modes: dict[str, Callable[[], dict[str, Any]]] = {
        "healing": lambda: healing(options),
        "soak": lambda: soak(options),
    }
    line = modes[options.mode]()
    print(json.dumps({**line, "load_average": os.getloadavg()[0]}))
    raise SystemExit(not line.get("sound", True))


if __name__ == "__main__":
    main()
