"""Steps whose loss or gradient was not finite: they are not applied, but reported and kept with their batch.

    OUT/not_finite/step-000123.npz   the batch as this host made it, by field; step, loss, grad_norm

Each of several hosts writes the rows that it made (in RL all of them) beside its metrics.

Decided: docs/decisions/runs.md, “A step that is not finite is no update”.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from astra_jax.errors import AstraError
from synthesis.run.destination import whole_file


class NotFinite(AstraError):
    """Too many steps in a row could not be applied; the message names the folder of their batches."""


class NotFiniteSteps:
    """Counts the steps of one run, whose metrics are in `folder`, that were not finite."""

    def __init__(self, stage: str, folder: Path, *, most_in_a_row: int):
        """Begin at 0; `most_in_a_row` consecutive steps that were not applied are too many."""
        self._stage = stage
        self._folder = folder / "not_finite"
        self._most_in_a_row = most_in_a_row
        self._in_a_row = 0

    @property
    def are_too_many(self) -> bool:
        """Whether the run must stop; all hosts agree after each step."""
        return self._in_a_row >= self._most_in_a_row

    def go_on_after(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Continue the count of the steps before, by their metrics; a run that had too many begins at 0 again."""
        in_a_row = 0
        for line in lines:
            in_a_row = 0 if line["applied"] else in_a_row + 1
        self._in_a_row = in_a_row % self._most_in_a_row

    def note(self, step: int, metrics: Mapping[str, Any], batch: Any) -> None:
        """Note whether a step was applied; if not, write its batch, a NamedTuple of arrays [b, T, …] or None."""
        if metrics["applied"]:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        figures = {"step": step, "loss": metrics["loss"], "grad_norm": metrics["grad_norm"]}
        kept = {name: value for name, value in (batch._asdict() | figures).items() if value is not None}
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in kept.items()}
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"step-{step:06d}.npz"
        with whole_file(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)
        print(
            f"{self._stage}: step {step} is not applied: loss {metrics['loss']}, "
            f"gradient norm {metrics['grad_norm']}; its batch is {path}",
            file=sys.stderr,
            flush=True,
        )

    def error(self) -> NotFinite:
        """Return the error that ends the run."""
        return NotFinite(
            f"expected finite losses and gradients, found {self._in_a_row} steps in a row without; their batches are "
            f"in {self._folder}. The parameters that they left are saved; the same command goes on after them; with a "
            "lower learning rate, start anew in another `out`"
        )
