"""The file `metrics.jsonl` of a run: one JSON object per step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl` in order; a line that a crash cut short is left out."""
    return [json.loads(line) for line in whole_lines(path)]


def last_metric(path: Path, name: str) -> float | None:
    """Return a figure of the last step that has it; None if no step has it."""
    values = [line.get(name) for line in read_metrics(path)]
    return next((value for value in reversed(values) if value is not None), None)


def metric_totals(path: Path, part: str) -> dict[str, float]:
    """Return the sums over all steps of the figures whose name contains `part`, by name."""
    totals: Counter[str] = Counter()
    for line in read_metrics(path):
        totals.update({name: value for name, value in line.items() if part in name and value is not None})
    return dict(sorted(totals.items()))


def whole_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file that end, since a crash may have cut the last one short; none without a file."""
    if path.exists():
        with path.open() as lines:
            yield from (line for line in lines if line.endswith("\n"))
