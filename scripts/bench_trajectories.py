"""Throughput and memory of trajectory synthesis on this machine: one JSON line.

    python scripts/bench_trajectories.py                          all of it, minutes
    python scripts/bench_trajectories.py --counts 100 300 --calls 512        a quick look

With the embedded teacher, for each count a run in a process of its own, from tool documents to the record directory:
trajectories per second, peak RSS, and the share of emulated calls that were made to fail. With the OpenAI teacher, a
mock endpoint that takes half a second per call, in a process of its own too, asked at concurrency 256: the share of the
throughput that the latency alone would allow, the first seconds included, in which the concurrency grows.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
LATENCY_SECONDS, CONCURRENCY = 0.5, 256


def embedded_run(count: int, settings: dict[str, Any]) -> dict[str, float | int | None]:
    """Synthesise `count` trajectories with the embedded teacher, and count them."""
    from synthesis.procedural.teacher import ProceduralTeacher
    from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
    from synthesis.trajectories.statistics import trajectory_statistics

    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        config = TrajectoriesConfig(count=count, out=out, **settings)
        started = time.monotonic()
        report = asyncio.run(synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO()))
        seconds = time.monotonic() - started
        peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "trajectories": report.kept,
            "seconds": seconds,
            "cpu_seconds": time.process_time(),
            "trajectories_per_second": report.kept / seconds,
            "peak_rss_bytes": peak_rss_bytes,
            "injected_failure_rate": trajectory_statistics(out).injected_failure_rate,
        }


async def endpoint_run(url: str, num_calls: int) -> dict[str, float]:
    """Ask an endpoint `num_calls` different questions."""
    from synthesis.prompts.task_scoring import ScoreTask
    from synthesis.teacher.config import OpenAITeacherConfig
    from synthesis.teacher.openai import OpenAITeacher

    os.environ["BENCH_KEY"] = "none"
    teacher = OpenAITeacher(
        OpenAITeacherConfig(model="mock", base_url=url, api_key_env="BENCH_KEY", max_concurrency=CONCURRENCY)
    )
    started, started_cpu = time.monotonic(), time.process_time()
    questions = (
        ScoreTask(text=f"Task {number}", language="en", slots={}, hidden_slots=(), tools=())
        for number in range(num_calls)
    )

    async def worker() -> None:  # a stage's workers take its items in turn, too
        for question in questions:
            await teacher.ask(question, seed=0)

    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - started_cpu
    await teacher.close()
    ideal_seconds = num_calls * LATENCY_SECONDS / CONCURRENCY
    return {
        "calls": num_calls,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "calls_per_second": num_calls / seconds,
        "share_of_ideal": ideal_seconds / seconds,
    }


def in_own_process(*arguments: str) -> Any:
    """Run a part of this benchmark in a process of its own; return the JSON line that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def with_mock_endpoint(num_calls: int) -> Any:
    """Start the mock endpoint, measure, and end it."""
    script = ROOT / "tests" / "synthesis" / "teacher" / "mock_endpoint.py"
    with subprocess.Popen(
        [sys.executable, script, "0", str(LATENCY_SECONDS)], stdout=subprocess.PIPE, text=True
    ) as endpoint:
        try:
            assert endpoint.stdout is not None
            return in_own_process("--endpoint", endpoint.stdout.readline().strip(), "--calls", str(num_calls))
        finally:
            endpoint.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--calls", type=int, default=32_768)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON keys of the trajectories config")
    parser.add_argument("--embedded", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.embedded:
        print(json.dumps(embedded_run(arguments.embedded, arguments.settings)))
    elif arguments.endpoint:
        print(json.dumps(asyncio.run(endpoint_run(arguments.endpoint, arguments.calls))))
    else:
        settings = json.dumps(arguments.settings)
        runs = [in_own_process("--embedded", str(count), "--settings", settings) for count in arguments.counts]
        ratio = runs[-1]["peak_rss_bytes"] / runs[0]["peak_rss_bytes"]
        endpoint = with_mock_endpoint(arguments.calls)
        print(
            json.dumps(
                {"work": "trajectories", "ours": runs, "peak_rss_ratio": round(ratio, 3), "mock_endpoint": endpoint}
            )
        )


if __name__ == "__main__":
    main()
