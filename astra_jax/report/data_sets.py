"""A data set as it is shown: figures beside the paper's, histograms of sizes and scores, the shares of its kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from astra_jax.report.charts import Histogram
from synthesis.record_io import RecordSource
from synthesis.records import Environment

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
    paper: float | None = None
    """The amount in the paper's data, if it gives one."""


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
    histograms: dict[str, list[Histogram]]
    """Histograms by the heading over them."""
    distributions: list[Distribution]
    by_construction: Sequence[str] = ()
    """Sentences on figures that follow from how the records were made, and say nothing of their quality."""

    @property
    def has_paper_shares(self) -> bool:
        """Whether a bar is marked with the paper's share."""
        return any(bar.paper is not None for distribution in self.distributions for bar in distribution.bars)

    def table(self) -> str:
        """Return the data set as text for a terminal.

        >>> print(DataSet("trajectories", [Figure("messages each", "7.71", "10.59")], {}, []).table())
                                             trajectories    paper
        messages each                                7.71    10.59
        """
        rows = [("", self.kind, "paper"), *((each.name, each.value, each.paper) for each in self.figures)]
        lines = [f"{name:36}{value:>13}{paper:>9}".rstrip() for name, value, paper in rows]
        if self.by_construction:
            lines += ["", "So by construction"]
            lines += [fill(said, 96, initial_indent="  - ", subsequent_indent="    ") for said in self.by_construction]
        for title, charts in self.histograms.items():
            lines += ["", title]
            for chart in charts:
                columns = (f"{column.name}: {column.share:.1%}" for column in chart.columns if column.share)
                lines.append(f"  {chart.title:34}  {', '.join(columns)}")
        for distribution in self.distributions:
            lines += ["", distribution.title] if distribution.bars else []
            lines += [f"  {bar.label:34}{bar.text:>13}" for bar in distribution.bars]
        return "\n".join(lines)


def distribution(title: str, amounts: Mapping[str, float], paper: Mapping[str, float] | None = None) -> Distribution:
    """Lay out the shares of kinds, most frequent first, equally frequent ones by name; `paper` holds shares.

    >>> [bar.text for bar in distribution("Roles", {"user": 1, "tool": 3}).bars]
    ['75.0%', '25.0%']
    """
    total = sum(amounts.values())
    shares = {label: amount / total for label, amount in amounts.items()}
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    if len(ranked) > MAX_BARS:
        rest = ranked[MAX_BARS - 1 :]
        ranked = [*ranked[: MAX_BARS - 1], (f"{len(rest)} others", sum(share for _, share in rest))]
    return Distribution(
        title, [Bar(in_words(label), share, f"{share:.1%}", (paper or {}).get(label)) for label, share in ranked]
    )


def in_words(name: str) -> str:
    """Return the name of a kind in words.

    >>> in_words("parallel_multi_hop"), in_words("zh")
    ('parallel multi hop', 'Chinese')
    """
    names = {"en": "English", "zh": "Chinese", "mcp": "real MCP servers", "procedural": "procedural (templates)"}
    return names.get(name, name.replace("_", " "))


def mean_subtasks(directory: Path) -> float:
    """Return the mean number of tool calls of a perfect episode over a directory of environments."""
    source = RecordSource(directory, Environment)
    return sum(len(environment.sub_tasks) for environment in source) / len(source)
