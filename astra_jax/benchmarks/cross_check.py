"""Two harnesses beside one another: the same cases, by their ids, and where the scores differ.

Both ask the endpoint anew: above temperature 0 cases differ by chance, too. What is told is which they are, not why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from astra_jax.benchmarks.results import BenchmarkResults, HarnessDocument


@dataclass(frozen=True)
class CaseScores:
    """The mean score of a case's trials by each harness."""

    id: str
    category: str
    first: float
    second: float


@dataclass(frozen=True)
class CrossCheck:
    """What two harnesses say of one model."""

    harnesses: tuple[HarnessDocument, HarnessDocument]
    both: tuple[CaseScores, ...]
    """In the order of the first."""
    only_first: tuple[str, ...]
    """Cases that the second did not run, or lost an answer of."""
    only_second: tuple[str, ...]

    @property
    def differing(self) -> tuple[CaseScores, ...]:
        """The cases that the two score otherwise."""
        return tuple(case for case in self.both if case.first != case.second)

    def to_json(self) -> dict[str, Any]:
        """Return what a command prints for programs."""
        return {
            "harnesses": [f"{harness.package} {harness.version}" for harness in self.harnesses],
            "both": len(self.both),
            "differing": [asdict(case) for case in self.differing],
            "only_first": self.only_first,
            "only_second": self.only_second,
        }


def cross_check(first: BenchmarkResults, second: BenchmarkResults) -> CrossCheck:
    """Join two runs by the ids of their cases; a case is one harness's where an answer of it was lost.

    Raises:
        ValueError: they are of two benchmarks.
    """
    if first.run.benchmark != second.run.benchmark:
        raise ValueError(f"expected two runs of {first.run.benchmark}, found one of {second.run.benchmark}")
    ours, theirs = _means(first), _means(second)
    category_of = {sample.id: sample.category for sample in first.samples}
    return CrossCheck(
        harnesses=(first.run.harness, second.run.harness),
        both=tuple(
            CaseScores(id_, category_of[id_], score, theirs[id_]) for id_, score in ours.items() if id_ in theirs
        ),
        only_first=tuple(id_ for id_ in ours if id_ not in theirs),
        only_second=tuple(id_ for id_ in theirs if id_ not in ours),
    )


def _means(results: BenchmarkResults) -> dict[str, float]:
    """Return the mean score of every case none of whose answers was lost."""
    scores: dict[str, list[float]] = {}
    for sample in results.samples:
        scores.setdefault(sample.id, []).append(sample.score)
    lost = {sample.id for sample in results.samples if sample.failure == "transport"}
    return {id_: sum(each) / len(each) for id_, each in scores.items() if id_ not in lost}


def table(check: CrossCheck) -> str:
    """Return the table that a command prints."""
    names = [f"{harness.package} {harness.version}" for harness in check.harnesses]
    rows = [("", "cases", *names, "differ")]
    categories = list(dict.fromkeys(case.category for case in check.both))
    for name in [*categories, "all"] if len(categories) > 1 else categories:
        cases = [case for case in check.both if name in (case.category, "all")]
        means = [f"{100 * sum(scores) / len(cases):.1f} %" for scores in _columns(cases)]
        rows.append((name, str(len(cases)), *means, str(sum(case.first != case.second for case in cases))))
    lines = _aligned(rows)
    for case in check.differing:
        lines.append(f"differs: {case.id}: {case.first:g} and {case.second:g}")
    for name, only in zip(names, (check.only_first, check.only_second), strict=True):
        if only:
            lines.append(f"only by {name}: {', '.join(only)}")
    return "\n".join(lines)


def _columns(cases: Sequence[CaseScores]) -> tuple[list[float], list[float]]:
    return [case.first for case in cases], [case.second for case in cases]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) if number == 0 else cell.rjust(width) for number, (cell, width) in pairs).rstrip()
        for pairs in (enumerate(zip(row, widths, strict=True)) for row in rows)
    ]
