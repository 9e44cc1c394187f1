"""A process that is killed -9 while it trains."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from astra_jax.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]


def kill_after_steps(
    module: str, arguments: list[str], *, metrics: Path, steps: int, timeout_seconds: float = 540
) -> None:
    """Start `python -m module`, kill it as soon as its metrics tell of `steps` steps.

    Raises:
        AssertionError: it ended by itself, or was too slow; its output is shown.
    """
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + timeout_seconds
    try:
        while len(read_metrics(metrics)) < steps:
            assert process.poll() is None, f"ended by itself:\n{process.communicate()[1]}"
            assert time.monotonic() < deadline, f"fewer than {steps} steps in {timeout_seconds} s"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
