"""The paper's figures, by their table, and its claims over Qwen3."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

Benchmark = Literal["bfcl", "tau2", "acebench", "aime", "aime_no_top_k"]
ALL: Final = "all"
"""The column of the unweighted mean."""


class PaperRow(BaseModel):
    """One model of one table; figures in percent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    table: Literal["T1", "T2", "README"]
    size: Literal["14B", "32B"] | None = None
    """Size of a model that a claim is about."""
    stage: Literal["base", "sft", "rl"] | None = None
    bfcl: dict[str, float] = {}
    tau2: dict[str, float] = {}
    acebench: dict[str, float] = {}
    aime: dict[str, float] = {}
    aime_no_top_k: dict[str, float] = {}

    def figures(self, benchmark: Benchmark) -> dict[str, float]:
        """Return its figures of a benchmark, with their mean; empty where it has none.

        >>> paper_rows()[0].figures("aime")
        {'2024': 80.0, '2025': 66.9, 'all': 73.45}
        """
        found: dict[str, float] = getattr(self, benchmark)
        return {**found, ALL: found.get(ALL, round(sum(found.values()) / len(found), 2))} if found else {}


class PaperEffort(BaseModel):
    """One row of T4: steps and tokens of a model in BFCL's multi-turn cases. A sub-job is a turn of the user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    steps_per_turn: float
    tokens_per_step: float
    tokens_per_turn: float


class Claim(BaseModel):
    """The points that a stage adds to Qwen3 of its size, by the paper's tables."""

    model_config = ConfigDict(frozen=True)

    label: str
    deltas: dict[str, float]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rows: tuple[PaperRow, ...]
    bfcl_effort: tuple[PaperEffort, ...]


@cache
def _table() -> _Table:
    text = files("astra_jax.report").joinpath("paper.toml").read_text(encoding="utf-8")
    return _Table.model_validate(tomllib.loads(text))


def paper_rows() -> tuple[PaperRow, ...]:
    """Return all rows, in the order in which they are shown."""
    return _table().rows


def bfcl_effort() -> tuple[PaperEffort, ...]:
    """Return T4, in its order.

    >>> bfcl_effort()[0].tokens_per_turn
    1096.7
    """
    return _table().bfcl_effort


def claims(benchmark: Benchmark) -> list[Claim]:
    """Return the points that the paper's stages add to Qwen3.

    >>> claims("bfcl")[1].label, claims("bfcl")[1].deltas["all"]
    ('14B, RL (T1) − Qwen3-14B (T1)', 13.63)
    """
    staged = {(row.size, row.stage, row.table): row for row in paper_rows() if row.stage and row.figures(benchmark)}
    found = []
    for (size, stage, table), row in staged.items():
        if stage is None or stage == "base":
            continue
        # Of its own table, where the base stands there too: the tables have other figures for one model.
        base = staged.get((size, "base", table)) or staged[size, "base", "T1"]
        before, after = base.figures(benchmark), row.figures(benchmark)
        found.append(
            Claim(
                label=f"{size}, {stage.upper()} ({row.table}) − {base.model} ({base.table})",
                deltas={name: round(after[name] - before[name], 2) for name in after if name in before},
            )
        )
    return found
