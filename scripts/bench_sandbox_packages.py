"""What packages cost: the CPU of a call without packages, and beside packages that are loaded before the calls.

    pip install --target FOLDER numpy
    python scripts/bench_sandbox_packages.py FOLDER [--rounds 20] [--module numpy]

Two services of one worker take turns, call by call, so that a noisy neighbour hits both. CPU is the kernel's count for
the process of a call. Prints one JSON line: medians in milliseconds and each service's seconds until it was healthy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time

from sandbox.client import SandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import Limits

PLAIN = "def f():\n    return 1\n"
ROOMY = Limits(wall_seconds=60, cpu_seconds=30)


def main() -> None:
    """Measure, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("folder")
    parser.add_argument("--module", default="numpy")
    options = parser.parse_args()
    using = f"import {options.module}\ndef f():\n    return bool(dir({options.module}))\n"
    services: dict[str, tuple[str, ...]] = {"none": (), "packages": ("--packages", options.folder)}
    milliseconds: dict[str, dict[str, list[float]]] = {name: {"plain": [], "using": []} for name in services}
    started: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        clients = {}
        for name, words in services.items():
            began = time.monotonic()
            url = stack.enter_context(local_sandbox(workers=1, options=words))
            started[name] = round(time.monotonic() - began, 2)
            clients[name] = stack.enter_context(SandboxClient(url))
        for number in range(options.rounds + 2):
            for name, client in clients.items():
                for what, source in (("plain", PLAIN), ("using", using)):
                    if what == "using" and name == "none":
                        continue
                    reply = client.execute(source, "f", {}, limits=ROOMY)
                    if not reply.ok:
                        raise SystemExit(f"{name}: {reply.error}")
                    if number >= 2:  # sources are compiled, caches warm
                        milliseconds[name][what].append(1000 * reply.usage.cpu_seconds)
    medians = {
        name: {what: round(statistics.median(values), 2) for what, values in found.items() if values}
        for name, found in milliseconds.items()
    }
    print(json.dumps({"module": options.module, "cpu_ms": medians, "seconds_to_start": started}))


if __name__ == "__main__":
    main()
