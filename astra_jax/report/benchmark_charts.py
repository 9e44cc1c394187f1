"""What is drawn of a benchmark: bars per sub-score, curves over stages of training and over trials that all pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astra_jax.benchmarks.comparison import Comparison
from astra_jax.benchmarks.paper import ALL, PaperRow, paper_rows
from astra_jax.report.charts import Tick, figure, nice_ticks

_STAGES = ("base", "sft", "rl")
_GROUP_SHARE = 0.8
"""Of a group's width that its bars take."""
_MOST_LABEL_LETTERS = 18


@dataclass(frozen=True)
class GroupedBar:
    """One figure of one model."""

    number: int
    """Of the model, from 1."""
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


@dataclass(frozen=True)
class Point:
    """One figure on a curve."""

    x_percent: float
    y_percent: float
    text: str


@dataclass(frozen=True)
class PointCurve:
    """One model's figures; the path is SVG path data in a 100 × 100 box."""

    name: str
    path: str
    points: list[Point]


@dataclass(frozen=True)
class PointChart:
    """Curves through few points, ready to be drawn; the y axis is in percent."""

    title: str
    note: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    curves: list[PointCurve]


@dataclass(frozen=True)
class BenchmarkCharts:
    """All that is drawn of one benchmark."""

    bars: list[GroupedBars]
    curves: list[PointChart]


def benchmark_charts(comparison: Comparison) -> BenchmarkCharts:
    """Lay out the charts of a benchmark: the paper's models by size, ours beside them, on one scale."""
    paper = _paper_stages(comparison)
    ours = {
        label: {
            **{name: fig.value for name, fig in results.summary.by_category.items()},
            ALL: results.summary.score.value,
        }
        for label, results in comparison.runs
    }
    ours = {label: {name: 100 * value for name, value in found.items()} for label, found in ours.items()}
    highest = max(value for found in [*ours.values(), *_figures_of(paper)] for value in found.values())
    bars = [
        grouped_bars(f"Paper, {size}", stages, comparison.columns, highest=highest) for size, stages in paper.items()
    ]
    bars.append(grouped_bars("Ours", ours, comparison.columns, highest=highest))
    return BenchmarkCharts(bars, [*_stage_curves(paper, ours), *_pass_hat_curves(comparison)])


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
    return GroupedBars(title, list(models), x_ticks, _y_ticks(y_values), bars)


def point_chart(
    title: str, note: str, x_labels: Sequence[str], curves: Mapping[str, Mapping[int, float]]
) -> PointChart:
    """Lay out curves from place on the x axis to a figure in percent; there must be one point.

    >>> chart = point_chart("Score", "", ["base", "SFT", "RL"], {"14B": {0: 20.0, 2: 40.0}})
    >>> chart.curves[0].path
    'M0.00 50.00L100.00 0.00'
    """
    y_values = nice_ticks(0.0, max(value for found in curves.values() for value in found.values()))

    def x(place: int) -> float:
        return 100 * place / max(1, len(x_labels) - 1)

    drawn = []
    for name, found in curves.items():
        points = [
            Point(x(place), 100 - 100 * value / y_values[-1], f"{name}, {x_labels[place]}: {value:.1f}")
            for place, value in sorted(found.items())
        ]
        path = "M" + "L".join(f"{point.x_percent:.2f} {point.y_percent:.2f}" for point in points)
        drawn.append(PointCurve(name, path, points))
    x_ticks = [Tick(x(place), _shortened(label)) for place, label in enumerate(x_labels)]
    return PointChart(title, note, x_ticks, _y_ticks(y_values), drawn)


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


def _stage_curves(
    paper: Mapping[str, Mapping[str, Mapping[str, float]]], ours: Mapping[str, Mapping[str, float]]
) -> list[PointChart]:
    names = [_name_of(stage) for stage in _STAGES]
    of_paper = {
        size: {names.index(stage): figures[ALL] for stage, figures in stages.items()} for size, stages in paper.items()
    }
    charts = [point_chart("All, by stage", "paper", names, of_paper)] if of_paper else []
    if len(ours) > 1:
        of_ours = {"ours": {place: found[ALL] for place, found in enumerate(ours.values())}}
        charts.append(point_chart("All, run by run", "ours, in the order given", list(ours), of_ours))
    return charts


def _pass_hat_curves(comparison: Comparison) -> list[PointChart]:
    curves = {
        label: {k - 1: 100 * value for k, value in results.summary.pass_hat.items()}
        for label, results in comparison.runs
        if results.summary.pass_hat
    }
    if not curves:
        return []
    most = max(place for found in curves.values() for place in found) + 1
    return [point_chart("pass^k", "k trials of a task all pass", [str(k) for k in range(1, most + 1)], curves)]


def _figures_of(paper: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Mapping[str, float]]:
    return [figures for stages in paper.values() for figures in stages.values()]


def _y_ticks(values: Sequence[float]) -> list[Tick]:
    return [Tick(100 - 100 * value / values[-1], figure(value)) for value in values]


def _name_of(stage: str) -> str:
    return stage if stage == "base" else stage.upper()


def _shortened(label: str) -> str:
    return label if len(label) <= _MOST_LABEL_LETTERS else label[: _MOST_LABEL_LETTERS - 1] + "…"
