"""Charts of a benchmark: a group of bars for each sub-score, the paper's models by size and our runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astra_jax.report.benchmark_tables import Comparison
from astra_jax.report.charts import Tick, figure, nice_ticks
from astra_jax.report.paper import ALL, PaperRow, paper_rows

_STAGES = ("base", "sft", "rl")
_GROUP_SHARE = 0.8
"""Share of a group's width that its bars take."""


@dataclass(frozen=True)
class GroupedBar:
    """One figure of one model."""

    number: int
    """Number of the model, from 1."""
    left_percent: float
    width_percent: float
    height_percent: float
    text: str


@dataclass(frozen=True)
class GroupedBars:
    """Models side by side in every sub-score, ready to be drawn; the y axis is in percent."""

    title: str
    names: list[str]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    bars: list[GroupedBar]


def benchmark_charts(comparison: Comparison) -> list[GroupedBars]:
    """Lay out the bars of a benchmark: the paper's models by size, and our runs beside them, on one scale."""
    paper = _paper_stages(comparison)
    ours = {
        label: {
            **{name: 100 * figure.value for name, figure in results.summary.by_category.items()},
            ALL: 100 * results.summary.score.value,
        }
        for label, results in comparison.runs
    }
    charts = {**{f"Paper, {size}": stages for size, stages in paper.items()}, "Ours": ours}
    highest = max(value for models in charts.values() for found in models.values() for value in found.values())
    columns = comparison.tables[0].columns
    return [grouped_bars(title, models, columns, highest=highest) for title, models in charts.items()]


def grouped_bars(
    title: str, models: Mapping[str, Mapping[str, float]], columns: Sequence[str], *, highest: float
) -> GroupedBars:
    """Lay out the figures of models, in percent, on an axis from zero to `highest` or a little above.

    A model that lacks a figure leaves its place free.

    >>> chart = grouped_bars("Ours", {"a": {"base": 30.0}, "b": {"base": 60.0}}, ["base"], highest=60.0)
    >>> [(bar.number, round(bar.left_percent), bar.width_percent, bar.height_percent) for bar in chart.bars]
    [(1, 10, 40.0, 50.0), (2, 50, 40.0, 100.0)]
    """
    y_values = nice_ticks(0.0, highest)
    group, width = 100 / len(columns), 100 / len(columns) * _GROUP_SHARE / len(models)
    bars = [
        GroupedBar(
            number,
            left_percent=group * (place + (1 - _GROUP_SHARE) / 2) + width * (number - 1),
            width_percent=width,
            height_percent=100 * found[name] / y_values[-1],
            text=f"{model}, {name.replace('_', ' ')}: {found[name]:.1f}",
        )
        for number, (model, found) in enumerate(models.items(), 1)
        for place, name in enumerate(columns)
        if name in found
    ]
    x_ticks = [Tick(group * (place + 0.5), name.replace("_", " ")) for place, name in enumerate(columns)]
    y_ticks = [Tick(100 - 100 * value / y_values[-1], figure(value)) for value in y_values]
    return GroupedBars(title, list(models), x_ticks, y_ticks, bars)


def _paper_stages(comparison: Comparison) -> dict[str, dict[str, dict[str, float]]]:
    """Return the paper's figures by size and stage."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in _staged_rows():
        if figures := row.figures(comparison.benchmark):
            found.setdefault(f"{row.size}", {}).setdefault(_name_of(f"{row.stage}"), figures)
    return found


def _staged_rows() -> list[PaperRow]:
    rows = [row for row in paper_rows() if row.stage]
    # T1 before T2 where both have a model: base and RL stand in T1, SFT in T2 alone.
    return sorted(rows, key=lambda row: (f"{row.size}", _STAGES.index(f"{row.stage}"), row.table))


def _name_of(stage: str) -> str:
    return stage if stage == "base" else stage.upper()
