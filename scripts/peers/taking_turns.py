"""Several systems do the same work, each in a process of its own, and take turns (A B A B …).

On one machine only their ratios mean something. CPU seconds move less than wall seconds if others use the machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

System = Callable[[], Callable[[], object]]
"""Prepares the work; returns the function that does it once."""


class Work(NamedTuple):
    """Work that several systems do."""

    title: str
    tokens: int
    """Tokens that one turn makes or reads: `tokens_per_second` counts them."""
    systems: Mapping[str, System]
    """Ours is named `ours`."""
    against: tuple[str, ...]
    """Peers, if the command line names none."""
    rounds: int = 3


class Turn(NamedTuple):
    """The cost of one turn of one system, and the most memory that its process has held so far."""

    seconds: float
    cpu_seconds: float
    peak_rss_bytes: float


def main(description: str, works: Mapping[str, Work]) -> None:
    """Read the command line, measure one kind of work and print one JSON line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=list(works))
    parser.add_argument("--against", nargs="*", metavar="PEER", help="peers to measure beside ours")
    parser.add_argument("--rounds", type=int, help="turns of each system")
    parser.add_argument(
        "--python", action="append", default=[], metavar="SYSTEM=PATH", help="interpreter of a system, if not this one"
    )
    parser.add_argument("--serve", metavar="SYSTEM", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    work = works[arguments.work]
    if arguments.serve:
        _serve(work.systems[arguments.serve])
        return
    rounds = work.rounds if arguments.rounds is None else arguments.rounds
    if rounds < 1:
        parser.error(f"--rounds must be at least 1, found {rounds}")
    names = ["ours", *dict.fromkeys(work.against if arguments.against is None else arguments.against)]
    if unknown := [name for name in names if name not in work.systems]:
        parser.error(f"--against: expected peers among {[*work.systems][1:]}, found {unknown}")
    interpreters = dict.fromkeys(work.systems, sys.executable)
    for setting in arguments.python:
        name, _, path = setting.partition("=")
        if name not in work.systems or not Path(path).is_file():
            parser.error(f"--python: expected SYSTEM=PATH with a system of {list(work.systems)}, found {setting!r}")
        interpreters[name] = path
    commands = {name: [interpreters[name], sys.argv[0], arguments.work, "--serve", name] for name in names}
    print(json.dumps({"work": work.title, **_report(_take_turns(commands, rounds), work.tokens)}))


def _serve(system: System) -> None:
    """Answer each line on stdin with the cost of one turn."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library may print, too
    work = system()
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(Turn(seconds, cpu_seconds, peak)), file=answers, flush=True)


def _take_turns(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[Turn]]:
    """Return the turns of each command without its first, which compiles and fills caches."""
    # A waiting process must not spin: the others would pay for it.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "JAX_PLATFORMS": "cpu"}
    processes = {
        name: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
        )
        for name, command in commands.items()
    }
    turns: dict[str, list[Turn]] = {name: [] for name in processes}
    try:
        for _ in range(1 + rounds):
            for name, process in processes.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                answer = process.stdout.readline()
                if not answer:
                    sys.exit(
                        f"{name} ended before its turn was over (exit code {process.wait()}); its error stands above"
                    )
                turns[name].append(Turn(*json.loads(answer)))
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return {name: rows[1:] for name, rows in turns.items()}


def _report(turns: Mapping[str, Sequence[Turn]], tokens: int) -> dict[str, object]:
    """Return each system's medians, and each peer's time over ours (above 1, ours is faster)."""
    medians = {name: Turn(*map(statistics.median, zip(*rows, strict=True))) for name, rows in turns.items()}
    systems = {
        name: {
            "median_seconds": median.seconds,
            "median_cpu_seconds": median.cpu_seconds,
            "tokens_per_second": tokens / median.seconds,
            "peak_rss_bytes": int(max(turn.peak_rss_bytes for turn in turns[name])),
        }
        for name, median in medians.items()
    }
    ours = medians["ours"]
    ratio = {
        name: {"wall": median.seconds / ours.seconds, "cpu": median.cpu_seconds / ours.cpu_seconds}
        for name, median in medians.items()
        if name != "ours"
    }
    return {**systems, "ratio": ratio}
