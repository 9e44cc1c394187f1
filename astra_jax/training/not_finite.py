"""Steps whose loss or gradient was not finite: not applied, told of, and kept with their batch so that one can look.

    OUT/not_finite/step-000123.npz   the batch as this host made it, by field; step, loss, grad_norm

With several hosts each writes the rows that it made, in RL all of them, where it writes its metrics.

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
    """Too many steps in a row could not be applied; the message says where their batches are."""


class NotFiniteSteps:
    """Follows the steps of one run, whose metrics lie in `folder`."""

    def __init__(self, stage: str, folder: Path, *, most_in_a_row: int):
        """Count from none; `most_in_a_row` steps that were not applied, one after the other, are too many."""
        self._stage = stage
        self._folder = folder / "not_finite"
        self._most_in_a_row = most_in_a_row
        self._in_a_row = 0

    @property
    def are_too_many(self) -> bool:
        """Whether the run is to stop: every host says the same after the same step."""
        return self._in_a_row >= self._most_in_a_row

    def go_on_after(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Count on from the metrics of the steps before: a run that had too many, and goes on, counts anew."""
        in_a_row = 0
        for line in lines:
            in_a_row = 0 if line["applied"] else in_a_row + 1
        self._in_a_row = in_a_row % self._most_in_a_row

    def note(self, step: int, metrics: Mapping[str, Any], batch: Any) -> None:
        """Note whether a step was applied; if not, write its batch down (a NamedTuple of arrays [b, T, …] or None).

        A step of several updates, of which one was not applied, is none that was; the others stay.
        """
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
        whole = f", but for {metrics['updates_applied']:.0f} updates" if metrics.get("updates_applied") else ""
        print(
            f"{self._stage}: step {step} is not applied{whole}: loss {metrics['loss']}, "
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
