"""Curves over steps: scales, ticks and paths, in percent of the plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_POINTS = 400
"""Number of points of a curve; a longer one is drawn as means of consecutive steps."""

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
class LineChart:
    """A chart that is ready to be drawn."""

    title: str
    unit: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    curves: list[Curve]
    notes: list[str]
    """Remarks on values that the drawing leaves out or sums up."""


def line_chart(
    title: str, rows: Sequence[Mapping[str, Any]], keys: Mapping[str, str], *, unit: str = "", from_zero: bool = False
) -> LineChart | None:
    """Lay out one curve per `{name: key}` over the `step` of the rows; None if no row has a finite value of any key.

    Values that are not finite are left out, and the chart says how many.
    """
    steps_per_point = math.ceil(len(rows) / MAX_POINTS)
    series = {name: points for name, key in keys.items() if (points := _points(rows, key, steps_per_point))}
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
    return LineChart(title, unit, x_ticks, y_ticks, curves, notes)


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
