"""The metrics of a run: one JSON line per step in `metrics.jsonl`, without gaps or repeats after a resume.

The same figures lie beside it as TensorBoard scalars, in `tensorboard/`; what a resumed run writes anew, TensorBoard
shows once. On request they are also sent to Weights & Biases.
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
from synthesis.run.destination import whole_file

_LINES_PER_RUN = 20


def _summary_writer() -> Any:
    """Return tensorboardX's writer, loaded without torch.

    Where torch is installed tensorboardX imports it, half of what a command's start costs, and asks it nothing of a
    plain number.
    """
    is_hidden = "torch" not in sys.modules
    if is_hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]  # how Python is told that an import fails
    try:
        from tensorboardX import SummaryWriter
    finally:
        if is_hidden:
            del sys.modules["torch"]
    return SummaryWriter


class Progress:
    """Says on standard error where a run stands and when it will end, some twenty times over its length."""

    def __init__(
        self, stage: str, steps: int, shown: Sequence[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Follow a run of `steps` steps in all; `shown` are the metrics that the lines name.

        A metric that some steps lack is named with its newest value, from the first step on that has one.
        """
        self._stage, self._steps, self._shown, self._clock = stage, steps, shown, clock
        self._first: tuple[int, float] | None = None
        self._newest: dict[str, Any] = {}

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Tell of a step that is done, if it is one of the twenty or the last.

        The time that is left is estimated from all steps of this process but the first, which compiled.
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
    """Appends one line per step; opened at step k, it first lets go of what an interrupted run wrote from k on.

    Left as a context, it has written every TensorBoard scalar. `hyperparameters` are what W&B shows beside the curves.

    Raises:
        ConfigError: W&B refuses the key or the project.
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
        with whole_file(path) as partial:
            partial.write_text("".join(kept))
        self._path = path
        events = path.parent / "tensorboard"
        self._events = _summary_writer()(str(events), purge_step=first_step or None, flush_secs=10)
        self._wandb_run = None
        if wandb is not None:
            lines = map(json.loads, kept)
            self._wandb_run = WandbRun(wandb, path.parent, hyperparameters=hyperparameters or {}, lines=lines)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._events.close()
        if self._wandb_run is not None:
            self._wandb_run.finish(
                failed=not (error is None or isinstance(error, SystemExit))
            )  # to end on a signal is not to fail

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write down the metrics of one step; in the file, what is not finite is null."""
        line = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        # Opened anew for each line: what a killed process has written stands, without a flush of ours.
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **line}, allow_nan=False) + "\n")
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step)
        if self._wandb_run is not None:
            self._wandb_run.log(step, metrics)
