"""Curves over steps, histograms, bars with intervals: scales, ticks, paths, in percent of the plot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_POINTS = 400
"""Number of points of a curve; a longer one is drawn as means of consecutive steps."""

_MAX_HOVER_BANDS = 80
_MIN_POINTS_TO_SMOOTH = 20


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    percent: float
    label: str


@dataclass(frozen=True)
class Curve:
    """One metric over steps; paths are SVG path data in a 100 × 100 box."""

    name: str
    raw_path: str
    smooth_path: str
    """Path of the moving mean; empty if there are too few points to smooth."""
    last: str
    """The last drawn value, in words."""


@dataclass(frozen=True)
class HoverBand:
    """A stretch of the x axis, and the values of the curves there in words."""

    left_percent: float
    width_percent: float
    text: str


@dataclass(frozen=True)
class LineChart:
    """A chart that is ready to be drawn."""

    title: str
    unit: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    curves: list[Curve]
    bands: list[HoverBand]
    notes: list[str]
    """Remarks on values that the drawing leaves out or sums up."""


def line_chart(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    keys: Mapping[str, str],
    *,
    unit: str = "",
    from_zero: bool = False,
) -> LineChart | None:
    """Lay out one curve per `{name: key}` over the `step` of the rows; None if no row has a finite value of any key.

    Values that are not finite are left out, and the chart says how many.
    """
    keys = {name: key for name, key in keys.items() if any(key in row for row in rows)}
    steps_per_point = math.ceil(len(rows) / MAX_POINTS)
    series = {name: _points(rows, key, steps_per_point) for name, key in keys.items()}
    series = {name: points for name, points in series.items() if points}
    if not series:
        return None
    steps = sorted({step for points in series.values() for step, _ in points})
    values = [value for points in series.values() for _, value in points]
    x_low, x_high = steps[0], max(steps[-1], steps[0] + 1)
    y_values = nice_ticks(min(0.0, *values) if from_zero else min(values), max(values))
    y_low, y_high = y_values[0], y_values[-1]

    def x(step: float) -> float:
        return 100 * (step - x_low) / (x_high - x_low)

    def y(value: float) -> float:
        return 100 - 100 * (value - y_low) / (y_high - y_low)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x(step):.2f} {y(value):.2f}" for step, value in points)

    curves = []
    for name, points in series.items():
        smooth = smoothed([value for _, value in points])
        smooth_points = [(step, value) for (step, _), value in zip(points, smooth, strict=True)]
        is_smoothed = len(points) >= _MIN_POINTS_TO_SMOOTH
        curves.append(Curve(name, path(points), path(smooth_points) if is_smoothed else "", figure(smooth[-1])))
    notes = []
    num_not_finite = sum(not _is_finite(row[key]) for key in keys.values() for row in rows if key in row)
    if num_not_finite:
        are = "value is not finite and is" if num_not_finite == 1 else "values are not finite and are"
        notes.append(f"{num_not_finite} {are} left out")
    if steps_per_point > 1:
        notes.append(f"each point is the mean of {steps_per_point} steps")
    x_ticks = [
        Tick(x(step), figure(step))
        for step in nice_ticks(x_low, x_high, at_most=7)
        if x_low <= step <= x_high and step.is_integer()
    ]
    y_ticks = [Tick(y(value), figure(value)) for value in y_values]
    return LineChart(title, unit, x_ticks, y_ticks, curves, _hover_bands(series, steps, x), notes)


@dataclass(frozen=True)
class Column:
    """The share of values in one interval of a histogram."""

    name: str
    share: float
    left_percent: float
    width_percent: float
    height_percent: float


@dataclass(frozen=True)
class Mark:
    """A value that is marked on the x axis."""

    name: str
    percent: float
    text: str


@dataclass(frozen=True)
class Histogram:
    """A histogram that is ready to be drawn; the y axis is in percent of all."""

    title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    columns: list[Column]
    marks: list[Mark]
    """The mean, and the paper's mean if it gives one."""


_MIN_COLUMNS, _MAX_COLUMNS = 5, 40


def number_histogram(title: str, counts: Mapping[int, int], *, paper_mean: float | None = None) -> Histogram:
    """Lay out the share of each whole number; a long range has wider columns. `counts` must not be empty.

    >>> [column.share for column in number_histogram("Calls", {1: 3, 3: 1}).columns]
    [0.75, 0.0, 0.25, 0.0, 0.0]
    """
    low = min(counts)
    high = max(*counts, low + _MIN_COLUMNS - 1)
    step = math.ceil((high - low + 1) / _MAX_COLUMNS)
    starts = range(low, high + 1, step)
    inside = [sum(counts.get(number, 0) for number in range(start, start + step)) for start in starts]
    names = [f"{start}" if step == 1 else f"{start}–{start + step - 1}" for start in starts]
    edges = [start - 0.5 for start in (*starts, starts[-1] + step)]
    mean = sum(number * count for number, count in counts.items()) / sum(counts.values())
    ticks = [tick for tick in nice_ticks(low, high, at_most=8) if low <= tick <= high and tick.is_integer()]
    marks = {"mean": mean} | ({} if paper_mean is None else {"paper": paper_mean})
    return _histogram(title, names, inside, edges, ticks, marks, "{:.2f}")


def score_histogram(title: str, tenths: Sequence[int], *, mean: float) -> Histogram:
    """Lay out the share of scores in each tenth of [0, 1]."""
    edges = [tenth / 10 for tenth in range(11)]
    names = [f"{low:.1f}–{high:.1f}" for low, high in itertools.pairwise(edges)]
    return _histogram(title, names, tenths, edges, [0.0, 0.5, 1.0], {"mean": mean}, "{:.3f}")


def _histogram(
    title: str,
    names: Sequence[str],
    counts: Sequence[int],
    edges: Sequence[float],
    ticks: Sequence[float],
    marks: Mapping[str, float],
    mark_form: str,
) -> Histogram:
    total = sum(counts)
    low, high = min(edges[0], *marks.values()), max(edges[-1], *marks.values())
    y_values = nice_ticks(0, 100 * max(counts) / total, at_most=5)

    def x(value: float) -> float:
        return 100 * (value - low) / (high - low)

    columns = [
        Column(name, count / total, x(left), x(right) - x(left), 100 * (100 * count / total) / y_values[-1])
        for name, count, (left, right) in zip(names, counts, itertools.pairwise(edges), strict=True)
    ]
    return Histogram(
        title,
        x_ticks=[Tick(x(value), figure(value)) for value in ticks],
        y_ticks=[Tick(100 - 100 * value / y_values[-1], f"{value:g} %") for value in y_values],
        columns=columns,
        marks=[Mark(name, x(value), mark_form.format(value)) for name, value in marks.items()],
    )


@dataclass(frozen=True)
class IntervalBar:
    """A figure as a bar from zero, and its interval as a whisker."""

    label: str
    key: int
    """Index of the bar's key in the chart's keys."""
    text: str
    width_percent: float
    low_percent: float
    high_percent: float


@dataclass(frozen=True)
class IntervalBars:
    """Bars below one another, ready to be drawn; the x axis begins at zero."""

    title: str
    ticks: list[Tick]
    keys: list[str]
    bars: list[IntervalBar]


def interval_bars(
    title: str, figures: Sequence[tuple[str, str, float, tuple[float, float]]], *, in_percent: bool = False
) -> IntervalBars:
    """Lay out bars of label, key, value and interval; there must be one, and no value below zero.

    >>> chart = interval_bars("F1", [("sft", "greedy", 0.5, (0.25, 1.0))])
    >>> [(bar.text, bar.width_percent, bar.low_percent, bar.high_percent) for bar in chart.bars]
    [('0.500', 50.0, 25.0, 100.0)]
    """
    keys = list(dict.fromkeys(key for _, key, _, _ in figures))
    ticks = nice_ticks(0.0, max(max(value, interval[1]) for _, _, value, interval in figures))
    bars = [
        IntervalBar(
            label,
            keys.index(key),
            f"{value:.1%}" if in_percent else f"{value:.3f}",
            width_percent=100 * value / ticks[-1],
            low_percent=100 * interval[0] / ticks[-1],
            high_percent=100 * interval[1] / ticks[-1],
        )
        for label, key, value, interval in figures
    ]
    labels = [f"{100 * tick:g} %" if in_percent else figure(tick) for tick in ticks]
    at = [100 * tick / ticks[-1] for tick in ticks]
    return IntervalBars(title, list(map(Tick, at, labels)), keys, bars)


_NOTHING = 1e-12
"""The least difference that is drawn; below it the logarithms run out of floats."""


def nice_ticks(low: float, high: float, *, at_most: int = 5) -> list[float]:
    """Return round, evenly spaced values that cover an interval.

    >>> nice_ticks(0, 0.43)
    [0.0, 0.2, 0.4, 0.6]
    >>> nice_ticks(0, 299)
    [0.0, 100.0, 200.0, 300.0]
    """
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _NOTHING):
        low, high = (low - abs(low) / 2, low + abs(low) / 2) if abs(low) > _NOTHING else (0.0, 1.0)
    step = 10.0 ** math.floor(math.log10((high - low) / at_most))
    step *= next(m for m in (1, 2, 5, 10, 20) if math.ceil(high / (m * step)) - math.floor(low / (m * step)) < at_most)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, digits) for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the centred moving mean over about a twentieth of the values; shorter windows at both ends.

    >>> smoothed([1, 2, 6])
    [1.0, 2.0, 6.0]
    >>> smoothed([0.0] * 20 + [1.0] * 20)[18:22]
    [0.0, 0.3333333333333333, 0.6666666666666666, 1.0]
    """
    reach = len(values) // 40
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def figure(value: float) -> str:
    """Return a number in about three figures.

    >>> figure(1234567), figure(0.48213), figure(-3), figure(2.5e-05), figure(12.04)
    ('1.23M', '0.482', '−3', '2.5e-5', '12')
    """
    if value < 0:
        return f"−{figure(-value)}"
    if value == 0:
        return "0"
    if value < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            divisor = 1e3 if suffix == "k" else limit
            return f"{value / divisor:.3g}{suffix}"
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _points(rows: Sequence[Mapping[str, Any]], key: str, steps_per_point: int) -> list[tuple[float, float]]:
    points = []
    for first in range(0, len(rows), steps_per_point):
        together = [row for row in rows[first : first + steps_per_point] if key in row and _is_finite(row[key])]
        if together:
            mean_step = sum(row["step"] for row in together) / len(together)
            points.append((mean_step, sum(float(row[key]) for row in together) / len(together)))
    return points


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _hover_bands(
    series: Mapping[str, Sequence[tuple[float, float]]], steps: Sequence[float], x: Any
) -> list[HoverBand]:
    stride = math.ceil(len(steps) / _MAX_HOVER_BANDS)
    value_at = {name: dict(points) for name, points in series.items()}
    bands = []
    for first in range(0, len(steps), stride):
        step = steps[first]
        said = [f"{name} {figure(values[step])}" for name, values in value_at.items() if step in values]
        end = steps[first + stride] if first + stride < len(steps) else steps[-1]
        bands.append(HoverBand(x(step), x(end) - x(step), f"step {figure(step)}: {', '.join(said)}"))
    return bands
