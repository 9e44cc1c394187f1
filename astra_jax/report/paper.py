"""The paper's figures, by their table, and its claims over Qwen3."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Final, Literal

from pydantic import TypeAdapter

from astra_jax.config import Frozen

Benchmark = Literal["bfcl", "bfcl_single_turn", "tau2", "acebench", "aime", "aime_no_top_k"]
ALL: Final = "all"
"""The column of the unweighted mean."""


class PaperRow(Frozen):
    """One model of one table; figures in percent."""

    model: str
    table: Literal["T1", "T2", "README"]
    size: Literal["14B", "32B"] | None = None
    """Size of a model that a claim is about."""
    stage: Literal["base", "sft", "rl"] | None = None
    measured: dict[Benchmark, dict[str, float]]
    """Figures by benchmark, and by column."""

    def figures(self, benchmark: Benchmark) -> dict[str, float]:
        """Return the figures of a benchmark, with their mean; empty if the row has none.

        >>> PAPER_ROWS[0].figures("aime")
        {'2024': 80.0, '2025': 66.9, 'all': 73.45}
        """
        found = self.measured.get(benchmark, {})
        return {**found, ALL: found.get(ALL, round(sum(found.values()) / len(found), 2))} if found else {}


PAPER_ROWS: Final = TypeAdapter(tuple[PaperRow, ...]).validate_python(
    tomllib.loads(files("astra_jax.report").joinpath("paper.toml").read_text(encoding="utf-8"))["rows"]
)
"""All rows, in the order in which they are shown."""


def claims(benchmark: Benchmark) -> dict[str, dict[str, float]]:
    """Return the points that the paper's stages add to Qwen3 of their size: by label, and by column.

    >>> claims("bfcl")["14B, RL (T1) − Qwen3-14B (T1)"]["all"]
    13.63
    """
    staged = {(row.size, row.stage, row.table): row for row in PAPER_ROWS if row.stage and row.figures(benchmark)}
    found = {}
    for (size, stage, table), row in staged.items():
        if stage is None or stage == "base":
            continue
        # The base is taken from the same table if it stands there: the tables have other figures for one model.
        base = staged.get((size, "base", table)) or staged[size, "base", "T1"]
        before, after = base.figures(benchmark), row.figures(benchmark)
        label = f"{size}, {stage.upper()} ({row.table}) − {base.model} ({base.table})"
        found[label] = {name: round(after[name] - before[name], 2) for name in after if name in before}
    return found
