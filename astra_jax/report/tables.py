"""Tables of a page: rows and columns of cells, each with its interval in small letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Figures: TypeAlias = Mapping[str, float | tuple[float, float]]
"""Figures by name; `NAME_interval` is the 95 % interval of NAME."""
SHARE: Final = "{:.1%}"


@dataclass(frozen=True)
class Cell:
    """A figure, or the label of a row or a column."""

    text: str
    detail: str = ""
    """Interval of a figure, or remark on a label, in small letters."""


MISSING: Final = Cell("–")


@dataclass(frozen=True)
class Row:
    """Figures that share a label."""

    label: Cell
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """Rows under one heading; without a title the table follows the heading of its section."""

    title: str
    columns: list[Cell]
    rows: list[Row]
    note: str = ""


def number(figures: Figures, name: str) -> float | None:
    """Return a figure; None if it is missing."""
    value = figures.get(name)
    return value if isinstance(value, int | float) else None


def figure_cell(figures: Figures, name: str, form: str) -> Cell:
    """Return the cell of a figure with its interval, if it has one.

    >>> figure_cell({"f1": 0.5, "f1_interval": (0.45, 0.54)}, "f1", "{:.2f}")
    Cell(text='0.50', detail='0.45–0.54')
    """
    value, interval = number(figures, name), figures.get(f"{name}_interval")
    if value is None:
        return MISSING
    return Cell(form.format(value), "–".join(map(form.format, interval)) if isinstance(interval, tuple) else "")
