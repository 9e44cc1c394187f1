"""Statistics of environments, in the figures that the paper gives of its own."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from synthesis.environments.decomposition import DecompositionNode, depths
from synthesis.record_io import RecordSource
from synthesis.records import Environment, SubQuestion

PAPER: Final[Mapping[str, Any]] = {
    "sub_questions_mean": 4.37,
    "sub_questions_median": 4,
    "tool_calls_mean": 3.98,
    "needs_tool_share": 0.913,
    "parallel_share": 0.442,
    "languages": {"en": 0.712, "zh": 0.288},
    "domains": {"real_estate": 0.156, "ecommerce": 0.106, "healthcare": 0.081},
    "scenarios": {"parallel_multi_hop": 0.478},
}
"""What ASTRA (arXiv 2601.21558) says of its 6,596 environments, under the names of `EnvironmentStatistics`."""


class EnvironmentStatistics(BaseModel):
    """Counts and shares over a set of environments; shares are in [0, 1]."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments: int
    languages: dict[str, float]
    domains: dict[str, float]
    scenarios: dict[str, float]
    sub_questions: int
    sub_questions_mean: float
    """The paper's "hops" per sample: its 28,794 sub-questions over 6,596 environments are its 4.37."""
    sub_questions_median: float
    sub_questions_histogram: dict[int, int]
    tool_calls_mean: float
    tool_calls_histogram: dict[int, int]
    needs_tool_share: float
    """Share of the sub-questions that need a tool."""
    longest_path_mean: float
    longest_path_histogram: dict[int, int]
    parallel_share: float
    """Share of the tool calls that can run beside another one: their dependency level has several."""
    tools_mean: float
    irrelevant_tools_by_band: dict[str, int]
    expectations: dict[str, float]
    stateful_share: float
    quality_mean: float


def environment_statistics(directory: Path) -> EnvironmentStatistics:
    """Count what a record directory of environments holds.

    Raises:
        RecordDirectoryError: the directory is missing, damaged or of another kind.
        ValueError: it holds no record.
    """
    return statistics_of(RecordSource(directory, Environment))


def statistics_of(environments: Iterable[Environment]) -> EnvironmentStatistics:
    """Count a set of environments, of which there must be at least one."""
    listed = list(environments)
    if not listed:
        raise ValueError("expected at least one environment to count, found none")
    sub_questions = [len(environment.sub_questions) for environment in listed]
    tool_calls = [len(environment.sub_tasks) for environment in listed]
    longest_paths = [environment.hops for environment in listed]
    bands = [irrelevant.band for environment in listed for irrelevant in environment.irrelevant_tools]
    return EnvironmentStatistics(
        environments=len(listed),
        languages=_shares(environment.language for environment in listed),
        domains=_shares(environment.domain for environment in listed),
        scenarios=_shares(environment.scenario for environment in listed),
        sub_questions=sum(sub_questions),
        sub_questions_mean=statistics.fmean(sub_questions),
        sub_questions_median=statistics.median(sub_questions),
        sub_questions_histogram=_histogram(sub_questions),
        tool_calls_mean=statistics.fmean(tool_calls),
        tool_calls_histogram=_histogram(tool_calls),
        needs_tool_share=sum(tool_calls) / max(1, sum(sub_questions)),
        longest_path_mean=statistics.fmean(longest_paths),
        longest_path_histogram=_histogram(longest_paths),
        parallel_share=sum(num_parallel_calls(item.sub_tasks) for item in listed) / max(1, sum(tool_calls)),
        tools_mean=statistics.fmean(len(environment.tools) for environment in listed),
        irrelevant_tools_by_band=dict(sorted(Counter(bands).items())),
        expectations=_shares(environment.expectation for environment in listed),
        stateful_share=sum(environment.state is not None for environment in listed) / len(listed),
        quality_mean=statistics.fmean(environment.quality.mean for environment in listed),
    )


def num_parallel_calls(sub_tasks: Sequence[SubQuestion | DecompositionNode]) -> int:
    """Count the calls that can run beside another one.

    >>> def task(id, *parents): return SubQuestion(id=id, question="", answer=1, depends_on=parents)
    >>> num_parallel_calls((task("q1"), task("q2", "q1"), task("q3", "q1")))
    2
    """
    levels = Counter(depths(sub_tasks).values())
    return sum(count for count in levels.values() if count > 1)


def _shares(values: Iterable[str]) -> dict[str, float]:
    counts = Counter(values)
    return {value: count / counts.total() for value, count in counts.most_common()}


def _histogram(values: Iterable[int]) -> dict[int, int]:
    return dict(sorted(Counter(values).items()))
