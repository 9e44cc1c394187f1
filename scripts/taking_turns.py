"""The same work by several systems, each in a process of its own, which take turns (A B A B …).

Side by side on one machine only ratios mean something, and CPU seconds move less than wall seconds when others use the
machine too. A system is a function that prepares the work and returns another that does it once.
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


class Turn(NamedTuple):
    """What one turn of one system cost, and the most memory its process has ever held."""

    seconds: float
    cpu_seconds: float
    peak_rss_bytes: float


def compare(
    description: str, systems: Mapping[str, System], *, work: str, tokens: int, against: Sequence[str], rounds: int
) -> None:
    """The command line of a benchmark of `systems["ours"]` against the others; prints one JSON line.

    `work` names what is done, `tokens` says over how many; `against` and `rounds` are what the command line may leave
    out. A system may have an interpreter of its own, so this file and the caller's import the standard library alone.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = [name for name in systems if name != "ours"]
    parser.add_argument("--against", nargs="*", choices=others, default=against)
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each system")
    parser.add_argument(
        "--python", action="append", default=[], metavar="SYSTEM=PATH", help="interpreter of a system, if not this one"
    )
    parser.add_argument("--serve", choices=list(systems), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        _serve(systems[arguments.serve])
        return
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, found {arguments.rounds}")
    interpreters = dict.fromkeys(systems, sys.executable)
    for setting in arguments.python:
        name, _, path = setting.partition("=")
        if name not in systems or not Path(path).is_file():
            parser.error(f"--python: expected SYSTEM=PATH with a system of {list(systems)}, found {setting!r}")
        interpreters[name] = path
    names = ["ours", *dict.fromkeys(arguments.against)]
    turns = _take_turns({name: [interpreters[name], sys.argv[0], "--serve", name] for name in names}, arguments.rounds)
    print(json.dumps({"work": work, **_report(turns, tokens)}))


def _serve(system: System) -> None:
    """Answers each line on stdin with the cost of one turn."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is not an answer
    work = system()
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(Turn(seconds, cpu_seconds, peak)), file=answers, flush=True)


def _take_turns(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[Turn]]:
    """The turns of each command but its first, in which it compiles or warms its caches."""
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
                    sys.exit(f"{name}: expected the figures of a turn, found that it ended (exit {process.wait()})")
                turns[name].append(Turn(*json.loads(answer)))
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return {name: rows[1:] for name, rows in turns.items()}


def _report(turns: Mapping[str, Sequence[Turn]], tokens: int) -> dict[str, object]:
    """Medians of each system, and how many times as long as ours each other one takes (> 1: ours is faster)."""
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
