"""What an ablation's page shows: each arm beside the recipe, the calls that it makes while it learns, and its figures.

`scripts/ablate.py` writes `ablations.json`: one row for each quickstart (a seed) and arm.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from astra_jax.errors import AstraError
from astra_jax.report.charts import LineChart, line_chart

FILE: Final = "ablations.json"
RECIPE: Final = "rl"
_ARMS_OF_A_CHART: Final = 4
"""Beside the recipe: a chart has five colours."""
_COLUMNS: Final = {
    "f1": "F1",
    "recall": "recall",
    "precision": "precision",
    "tool_calls_per_episode": "calls per episode",
    "irrelevant_call_share": "irrelevant calls",
    "answer_accuracy": "answers right",
    "recovered_tool_share": "tools made good",
}


class AblationsUnreadable(AstraError):
    """The rows of an ablation are damaged; the message says where."""


class AblationRow(BaseModel):
    """One arm on one quickstart; further keys are welcome."""

    model_config = ConfigDict(extra="ignore")

    quickstart: str
    arm: str
    figures: dict[str, Any] = Field(validation_alias="with")
    """Held-out, greedily, beside distractors."""
    train_calls_per_episode: list[float] = []
    """Of each step; none where nothing was trained."""


@dataclass(frozen=True)
class ArmFigures:
    """An arm's figures, as means over the quickstarts that it was run on."""

    arm: str
    quickstarts: str
    cells: list[str]


@dataclass(frozen=True)
class Ablations:
    """What the page shows."""

    columns: list[str]
    arms: list[ArmFigures]
    charts: list[LineChart]


def read_ablations(file: Path) -> Ablations:
    """Read the rows that an ablation has written.

    Raises:
        AblationsUnreadable: the file is damaged.
    """
    try:
        rows = TypeAdapter(list[AblationRow]).validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise AblationsUnreadable(
            f"expected the rows of an ablation in {file}, found a fault at {'.'.join(map(str, first['loc']))}: "
            f"{first['msg']}; run scripts/ablate.py again"
        ) from error
    by_arm: dict[str, list[AblationRow]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, []).append(row)
    arms = [
        ArmFigures(arm, ", ".join(row.quickstart for row in of_arm), [_mean(of_arm, name) for name in _COLUMNS])
        for arm, of_arm in by_arm.items()
    ]
    return Ablations(list(_COLUMNS.values()), arms, _charts(calls_by_arm(rows)))


def calls_by_arm(rows: Sequence[AblationRow]) -> dict[str, list[float]]:
    """Return each arm's calls per episode, step by step, as means over the quickstarts; up to the shortest run's end.

    >>> row = {"arm": "rl", "with": {}, "train_calls_per_episode": [2, 1]}
    >>> other = row | {"train_calls_per_episode": [4, 1]}
    >>> calls_by_arm([AblationRow(quickstart="seed0", **row), AblationRow(quickstart="seed1", **other)])
    {'rl': [3.0, 1.0]}
    """
    runs: dict[str, list[list[float]]] = {}
    for row in rows:
        if row.train_calls_per_episode:
            runs.setdefault(row.arm, []).append(row.train_calls_per_episode)
    return {arm: [statistics.fmean(step) for step in zip(*of_arm, strict=False)] for arm, of_arm in runs.items()}


def _charts(calls: dict[str, list[float]]) -> list[LineChart]:
    others = [arm for arm in calls if arm != RECIPE]
    charts = []
    for first in range(0, max(1, len(others)), _ARMS_OF_A_CHART):
        shown = [arm for arm in (RECIPE, *others[first : first + _ARMS_OF_A_CHART]) if arm in calls]
        steps = range(max((len(calls[arm]) for arm in shown), default=0))
        lines = [{"step": step, **{arm: calls[arm][step] for arm in shown if step < len(calls[arm])}} for step in steps]
        charts.append(line_chart("Tool calls per episode", lines, {arm: arm for arm in shown}, from_zero=True))
    return [chart for chart in charts if chart is not None]


def _mean(rows: Sequence[AblationRow], name: str) -> str:
    values = [row.figures[name] for row in rows if name in row.figures]
    # A mean over some of the quickstarts would stand under the names of all.
    return f"{statistics.fmean(values):.3f}" if len(values) == len(rows) else "–"
