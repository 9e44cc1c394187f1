"""A data set as it is shown: figures beside the paper's, and the shares of its sizes, scores and kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

MAX_BARS = 12
"""Number of bars; a longer distribution ends in one bar for all the rest."""


@dataclass(frozen=True)
class Figure:
    """One line of a data set's table."""

    name: str
    value: str
    paper: str = ""
    """The paper's figure of its own data; empty if it gives none."""


@dataclass(frozen=True)
class Bar:
    """One value of a distribution."""

    label: str
    amount: float
    text: str
    """The amount in words."""


@dataclass(frozen=True)
class Distribution:
    """The share of each value."""

    title: str
    bars: list[Bar]


@dataclass(frozen=True)
class DataSet:
    """A described record directory."""

    kind: str
    """The kind of its records, in the plural."""
    figures: list[Figure]
    distributions: dict[str, list[Distribution]]
    """Distributions by the heading over them."""
    by_construction: Sequence[str] = ()
    """Sentences on figures that follow from how the records were made, and say nothing of their quality."""

    def table(self) -> str:
        """Return the data set as text for a terminal.

        >>> print(DataSet("trajectories", [Figure("messages each", "7.71", "10.59")], {}).table())
                                             trajectories    paper
        messages each                                7.71    10.59
        """
        rows = [("", self.kind, "paper"), *((each.name, each.value, each.paper) for each in self.figures)]
        lines = [f"{name:36}{value:>13}{paper:>9}".rstrip() for name, value, paper in rows]
        if self.by_construction:
            lines += ["", "So by construction"]
            lines += [fill(said, 96, initial_indent="  - ", subsequent_indent="    ") for said in self.by_construction]
        for title, distributions in self.distributions.items():
            shown = [each for each in distributions if each.bars]
            lines += ["", title] if shown else []
            for each in shown:
                shares = ", ".join(f"{bar.label}: {bar.text}" for bar in each.bars)
                lines.append(fill(f"{each.title:34}  {shares}", 96, initial_indent="  ", subsequent_indent=" " * 38))
        return "\n".join(lines)


def distribution(title: str, amounts: Mapping[str, float]) -> Distribution:
    """Lay out the shares of kinds, most frequent first, equally frequent ones by name.

    >>> [bar.text for bar in distribution("Roles", {"user": 1, "tool": 3}).bars]
    ['75.0%', '25.0%']
    """
    ranked = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
    if len(ranked) > MAX_BARS:
        rest = ranked[MAX_BARS - 1 :]
        ranked = [*ranked[: MAX_BARS - 1], (f"{len(rest)} others", sum(amount for _, amount in rest))]
    return _shares(title, [(in_words(label), amount) for label, amount in ranked])


def number_distribution(title: str, counts: Mapping[int, int]) -> Distribution:
    """Lay out the share of each whole number, or of each range of numbers if they lie far apart.

    >>> [(bar.label, bar.text) for bar in number_distribution("Calls", {1: 3, 3: 1}).bars]
    [('1', '75.0%'), ('2', '0.0%'), ('3', '25.0%')]
    """
    low, high = min(counts), max(counts)
    step = math.ceil((high - low + 1) / MAX_BARS)
    inside = []
    for start in range(low, high + 1, step):
        label = f"{start}" if step == 1 else f"{start}–{start + step - 1}"
        inside.append((label, sum(counts.get(number, 0) for number in range(start, start + step))))
    mean = sum(number * count for number, count in counts.items()) / sum(counts.values())
    return _shares(f"{title}, mean {mean:.2f}", inside)


def score_distribution(title: str, tenths: Sequence[int], *, mean: float) -> Distribution:
    """Lay out the share of scores in each tenth of [0, 1]; empty tenths are left out."""
    inside = [(f"{tenth / 10:.1f}–{(tenth + 1) / 10:.1f}", count) for tenth, count in enumerate(tenths) if count]
    return _shares(f"{title}, mean {mean:.3f}", inside)


def _shares(title: str, amounts: Sequence[tuple[str, float]]) -> Distribution:
    total = sum(amount for _, amount in amounts)
    return Distribution(title, [Bar(label, each / total, f"{each / total:.1%}") for label, each in amounts])


def in_words(name: str) -> str:
    """Return the name of a kind in words.

    >>> in_words("parallel_multi_hop"), in_words("zh")
    ('parallel multi hop', 'Chinese')
    """
    names = {"en": "English", "zh": "Chinese", "mcp": "real MCP servers", "procedural": "procedural (templates)"}
    return names.get(name, name.replace("_", " "))
