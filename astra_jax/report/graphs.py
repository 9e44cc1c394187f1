"""Drawings of directed graphs: columns by what must come before, edges as wide as they are heavy; pixels, no script.

A column is a generation of the graph whose circles are drawn together (networkx's condensation), so that every edge
leads to the right but for those inside of a circle.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import networkx

MAX_NODES: Final = 24
"""Of a larger graph the nodes with the heaviest edges are drawn."""
_COLUMN, _ROW, _BOX_WIDTH, _BOX_HEIGHT, _MARGIN = 210, 44, 160, 26, 8
_MAX_LABEL, _MAX_WIDTH = 22, 5.0


@dataclass(frozen=True)
class Box:
    """A node: its upper left corner in pixels, its label, and what is said of it."""

    x: float
    y: float
    label: str
    title: str


@dataclass(frozen=True)
class Arrow:
    """An edge: SVG path data, stroke width in pixels, and what is said of it."""

    path: str
    width: float
    title: str


@dataclass(frozen=True)
class Drawing:
    """A graph that is ready to be drawn."""

    title: str
    note: str
    width: int
    height: int
    box_width: int
    box_height: int
    boxes: list[Box]
    arrows: list[Arrow]


def draw(title: str, graph: Any, note: str = "") -> Drawing:
    """Lay out a `DiGraph`; an edge without a `weight` has 1.

    >>> graph = networkx.DiGraph([("find", "book"), ("book", "pay")])
    >>> [(box.x, box.label) for box in draw("Hotels", graph).boxes]
    [(8, 'find'), (218, 'book'), (428, 'pay')]
    """
    num_all = graph.number_of_nodes()
    heaviest = sorted(graph.nodes, key=lambda node: (-graph.degree(node, weight="weight"), str(node)))[:MAX_NODES]
    graph = graph.subgraph(heaviest)
    if num_all > len(heaviest):
        note = "; ".join(filter(None, [note, f"{len(heaviest)} of {num_all} nodes, those with the heaviest edges"]))
    places = {
        node: (_MARGIN + column * _COLUMN, _MARGIN + row * _ROW)
        for column, nodes in enumerate(_columns(graph))
        for row, node in enumerate(nodes)
    }
    boxes = [
        Box(x, y, name if len(name) <= _MAX_LABEL else f"{name[: _MAX_LABEL - 1]}…", _said(name, graph.nodes[node]))
        for node, (x, y) in places.items()
        for name in [str(node)]
    ]
    most = max((weight for _, _, weight in graph.edges(data="weight", default=1)), default=1)
    arrows = [
        Arrow(_path(places[a], places[b]), round(1 + (_MAX_WIDTH - 1) * weight / most, 2), f"{a} → {b}: {weight}")
        for a, b, weight in sorted(graph.edges(data="weight", default=1), key=lambda edge: (edge[0], edge[1]))
    ]
    width = 2 * _MARGIN + _BOX_WIDTH + int(max((x for x, _ in places.values()), default=_MARGIN)) - _MARGIN + _ROW
    height = 2 * _MARGIN + _BOX_HEIGHT + int(max((y for _, y in places.values()), default=_MARGIN)) - _MARGIN
    return Drawing(title, note, width, height, _BOX_WIDTH, _BOX_HEIGHT, boxes, arrows)


def _columns(graph: Any) -> list[list[Any]]:
    """Return the nodes column by column, each near the mean row of those before it."""
    parts = networkx.condensation(graph)
    rows: dict[Any, int] = {}
    columns = []
    for generation in networkx.topological_generations(parts):
        nodes = [node for part in generation for node in parts.nodes[part]["members"]]
        nodes.sort(
            key=lambda node: (fmean([rows[each] for each in graph.pred[node] if each in rows] or [0]), str(node))
        )
        rows |= {node: row for row, node in enumerate(nodes)}
        columns.append(nodes)
    return columns


def _said(name: str, found: dict[str, Any]) -> str:
    return "; ".join([name, *(f"{key}: {value}" for key, value in found.items() if value)])


def _path(start: tuple[float, float], end: tuple[float, float]) -> str:
    middle = _BOX_HEIGHT / 2
    x, y, to_x, to_y = start[0] + _BOX_WIDTH, start[1] + middle, end[0], end[1] + middle
    if to_x > start[0]:
        bend = (to_x - x) / 2
        return f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
    to_x += _BOX_WIDTH  # in the same column: out to the right and back
    return f"M{x} {y}C{x + _ROW} {y} {to_x + _ROW} {to_y} {to_x} {to_y}"
