"""Kills workers of a loaded sandbox with signal 9 and prints how long the pool took to heal, as one JSON line.

    python scripts/bench_sandbox_healing.py [--kills 10] [--clients 16]

Healed is when every worker takes calls again by the service's own account, which is asked every 5 ms. Every answer is
checked; the calls that were in flight are repeated by their clients.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from sandbox.client import SandboxClient
from sandbox.local import local_sandbox

DOUBLE = "def double(x):\n    return 2 * x\n"


def children(pid: int) -> list[int]:
    """The processes that `pid` started."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry))
    return found


def heal(url: str, client: httpx.Client, victim: int) -> float:
    """Seconds from the death of `victim` until all workers take calls again."""
    restarts = client.get(f"{url}/health").json()["workers"]["restarts"]
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while True:
        workers = client.get(f"{url}/health").json()["workers"]
        if workers["restarts"] > restarts and workers["ready"] == workers["total"]:
            return time.monotonic() - began
        time.sleep(0.005)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
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

        (service,) = (pid for pid in children(os.getpid()))
        running = [threads.submit(load, index) for index in range(options.clients)]
        seconds = []
        try:
            for turn in range(options.kills):
                time.sleep(0.5)
                launcher = children(service)[turn % 2]
                inside = children(launcher)  # a jail's zygote; its launcher in every second turn
                seconds.append(heal(url, client, inside[0] if inside and turn % 4 < 2 else launcher))
        finally:
            stop.set()
        for future in running:
            future.result(timeout=150)
    line = {
        "kills": len(seconds),
        "healed_seconds_median": round(statistics.median(seconds), 3),
        "healed_seconds_max": round(max(seconds), 3),
        "answers": sum(answers),
        "wrong": sum(wrong),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
