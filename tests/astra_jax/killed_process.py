"""A process that is watched, and killed -9, while it trains."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from astra_jax.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]


def wait_for_steps(
    metrics: Path, steps: int, processes: Sequence[subprocess.Popen[str]], timeout_seconds: float = 540
) -> None:
    """Wait until the metrics of a run have `steps` lines.

    Raises:
        AssertionError: a process ended by itself (its output is shown), or was too slow.
    """
    deadline = time.monotonic() + timeout_seconds
    while len(read_metrics(metrics)) < steps:
        for process in processes:
            assert process.poll() is None, f"ended by itself:\n{process.communicate()[1]}"
        assert time.monotonic() < deadline, f"fewer than {steps} steps in {timeout_seconds} s"
        time.sleep(0.01)


def kill_after_steps(module: str, arguments: list[str], *, metrics: Path, steps: int) -> None:
    """Start `python -m module`, and kill it as soon as its metrics have `steps` lines.

    Raises:
        AssertionError: as `wait_for_steps`.
    """
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_steps(metrics, steps, [process])
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
