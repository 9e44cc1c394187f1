"""Runs very many calls, some hostile, through one service and checks every answer; prints one JSON line.

    python scripts/soak_sandbox.py [--calls 100000] [--clients 64] [--hostile-percent 5]

An honest call doubles a number that no other call has, so a lost or swapped answer shows. Resident memory and open
descriptors of the service and its jails are compared from a tenth of the way to the end; zombies are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import Limits

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


def service_processes() -> list[int]:
    """The service that this process started, and everything below it."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = [], [os.getpid()]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return sorted(found)


def resources() -> dict[str, int]:
    """What the service and its idle jails hold now."""
    pids = service_processes()
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
    return {
        "processes": len(pids),
        "zombies": states.count("Z"),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "rss_bytes": sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids),
    }


async def soak(
    url: str, calls: int, clients: int, hostile_percent: float, stop_at: float
) -> tuple[Counter[str], dict[str, int]]:
    """Counts of what happened, and the resources held a tenth of the way in, when everything has been used once."""
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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--hostile-percent", type=float, default=5.0)
    parser.add_argument("--max-minutes", type=float, default=60.0, help="stop early and report what was done")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    with local_sandbox(options.workers) as url:
        began = time.monotonic()
        stop_at = began + 60 * options.max_minutes
        happened, early = asyncio.run(soak(url, options.calls, options.clients, options.hostile_percent, stop_at))
        seconds = time.monotonic() - began
        time.sleep(2.0)
        late = resources()
    calls = sum(happened.values())
    good = happened["honest: right"] + happened["hostile: as expected"]
    line = {
        "work": f"{calls} calls, {options.hostile_percent:g} % hostile, {options.clients} clients",
        "seconds": round(seconds, 1),
        "calls_per_second": round(calls / seconds, 1),
        "happened": dict(sorted(happened.items())),
        "wrong": calls - good,
        "early": early,
        "late": late,
        "rss_growth": round(late["rss_bytes"] / early["rss_bytes"] - 1, 4),
    }
    print(json.dumps(line))
    flat = late["descriptors"] <= early["descriptors"] and late["processes"] == early["processes"]
    raise SystemExit(0 if good == calls and flat and late["zombies"] == 0 else 1)


if __name__ == "__main__":
    main()
