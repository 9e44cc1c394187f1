"""The metrics of a run: one JSON line per step in `metrics.jsonl`, without gaps or repeats after a resume.

The same figures are TensorBoard scalars in `tensorboard/` beside it; TensorBoard shows the steps that a resumed run
writes anew once. If the config asks for it, they are sent to Weights & Biases as well.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from astra_jax.metrics_file import whole_lines
from astra_jax.training.wandb_run import WandbConfig, WandbRun
from synthesis.run.destination import write_whole

_LINES_PER_RUN = 20


def _summary_writer() -> Any:
    """Return tensorboardX's writer, loaded without torch, whose import takes half of the time of a command's start."""
    is_hidden = "torch" not in sys.modules
    if is_hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]  # makes Python refuse the import
    try:
        from tensorboardX import SummaryWriter
    finally:
        if is_hidden:
            del sys.modules["torch"]
    return SummaryWriter


class Progress:
    """Prints about twenty lines on standard error over the length of a run: its step, figures and estimated end."""

    def __init__(
        self, stage: str, steps: int, shown: Sequence[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Follow a run of `steps` steps; `shown` are the metrics of its lines, each with its newest value."""
        self._stage, self._steps, self._shown, self._clock = stage, steps, shown, clock
        self._first: tuple[int, float] | None = None
        self._newest: dict[str, Any] = {}

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Print the line of a finished step, if it is one of the twenty or the last.

        The remaining time is estimated from all steps of this process except the first, which compiled.
        """
        now, left = self._clock(), self._steps - step - 1
        self._newest |= metrics
        first_step, first_seconds = self._first = self._first or (step, now)
        if (step + 1) % max(1, self._steps // _LINES_PER_RUN) and left:
            return
        figures = "  ".join(f"{name} {self._newest[name]:.4g}" for name in self._shown if name in self._newest)
        if left and step > first_step:
            seconds = (now - first_seconds) / (step - first_step) * left
            figures += f"  ETA {timedelta(seconds=round(seconds))}"
        print(f"{self._stage}: step {step + 1}/{self._steps}  {figures}", file=sys.stderr, flush=True)


class MetricsLog:
    """Appends one line per step; opened at step k, it first drops the lines of an interrupted run from k on.

    At the end of its `with` block every TensorBoard scalar is written. W&B shows `hyperparameters` beside the curves.
    """

    def __init__(
        self,
        path: Path,
        *,
        first_step: int,
        wandb: WandbConfig | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in whole_lines(path) if json.loads(line)["step"] < first_step]
        write_whole(path, "".join(kept))
        self._path = path
        events = path.parent / "tensorboard"
        self._events = _summary_writer()(str(events), purge_step=first_step or None, flush_secs=10)
        lines = map(json.loads, kept)
        self._wandb_run = None if wandb is None else WandbRun(wandb, path.parent, hyperparameters or {}, lines)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._events.close()
        if self._wandb_run is not None:
            # A run that ends on a signal (SystemExit) has not failed.
            self._wandb_run.finish(failed=not (error is None or isinstance(error, SystemExit)))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of one step; a figure that is not finite is null in the file."""
        line = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        # Opened anew for each line, so that every line is on disk when a process is killed.
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **line}, allow_nan=False) + "\n")
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step)
        if self._wandb_run is not None:
            self._wandb_run.log(step, metrics)
