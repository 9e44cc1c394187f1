"""Statistics of environments, in the figures that the paper gives of its own."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from synthesis.diversity import Diversity, DiversityCounter
from synthesis.questions.decomposition import DecompositionNode, depths
from synthesis.record_io import RecordDirectoryError, RecordSource, read_card
from synthesis.records import Environment, SubQuestion

PAPER: Final[Mapping[str, Any]] = {
    "environments": 6596,
    "sub_questions": 28794,
    "sub_questions_mean": 4.37,
    "sub_questions_median": 4,
    "tool_calls_mean": 3.98,
    "needs_tool_share": 0.913,
    "parallel_share": 0.442,
    "languages": {"en": 0.712, "zh": 0.288},
    "domains": {"real_estate": 0.156, "ecommerce": 0.106, "healthcare": 0.081},
    "scenarios": {"parallel_multi_hop": 0.478},
}
"""Figures of ASTRA's (arXiv 2601.21558) 6,596 environments, under the names of `EnvironmentStatistics`."""

Similarity = Literal["lexical", "local model"]

_HANDED_ON: Final = ("same", "list")


class EnvironmentStatistics(BaseModel):
    """Counts and shares over a set of environments; shares are in [0, 1]."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments: int
    teachers: dict[str, int]
    """Number of environments by teacher."""
    languages: dict[str, float]
    domains: dict[str, float]
    scenarios: dict[str, float]
    sub_questions: int
    sub_questions_mean: float
    """Sub-questions per environment. The paper's 4.37 hops are this mean: 28,794 sub-questions, 6,596 environments."""
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
    difficulties: dict[str, float]
    computed_answers_share: float
    """Share of the environments whose Φ computes, instead of passing on a tool's value."""
    similarity: Similarity | None = None
    """Kind of similarity in the bands of irrelevant tools and in merging; None if the card does not say."""
    irrelevant_tools_by_band: dict[str, int]
    cosine_mean_by_band: dict[str, float]
    """Mean cosine of distractors to the own tool that they are nearest to, before it is normalised."""
    high_with_own_parameter_share: float | None
    """Share of the distractors in the band `high` that take a parameter of one of the environment's own tools."""
    expectations: dict[str, float]
    stateful_share: float
    quality_mean: float
    diversity: Diversity


def environment_statistics(directory: Path) -> EnvironmentStatistics:
    """Count the environments of a record directory.

    Raises:
        RecordDirectoryError: the directory is missing, damaged, of another kind, or holds no record.
    """
    source = RecordSource(directory, Environment)
    if not source:
        raise RecordDirectoryError(f"{directory} has no environment to count; name another directory")
    made_with, counted = read_card(directory).made_with, statistics_of(source)
    if "embedding" not in made_with:
        return counted
    similarity: Similarity = "lexical" if made_with["embedding"] is None else "local model"
    return counted.model_copy(update={"similarity": similarity})


def statistics_of(environments: Iterable[Environment]) -> EnvironmentStatistics:
    """Count a set of environments; each is read once and not kept.

    Raises:
        ValueError: there is none.
    """
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    sizes: defaultdict[str, Counter[int]] = defaultdict(Counter)
    cosines: defaultdict[str, list[float]] = defaultdict(list)
    num_parallel = num_stateful = num_tools = num_computed = num_with_own_parameter = 0
    qualities = []
    diversity = DiversityCounter()
    for environment in environments:
        diversity.add_environment(environment)
        kinds["teacher"][environment.provenance.teacher] += 1
        kinds["language"][environment.language] += 1
        kinds["domain"][environment.domain] += 1
        kinds["scenario"][environment.scenario] += 1
        kinds["expectation"][environment.expectation] += 1
        kinds["difficulty"][environment.difficulty] += 1
        num_computed += environment.composition is not None and environment.composition.operation not in _HANDED_ON
        own_parameters = {name for tool in environment.tools for name in tool.document.required}
        for irrelevant in environment.irrelevant_tools:
            kinds["band"][irrelevant.band] += 1
            if irrelevant.cosine is not None:
                cosines[irrelevant.band].append(irrelevant.cosine)
            if irrelevant.band == "high":
                num_with_own_parameter += not own_parameters.isdisjoint(irrelevant.tool.document.required)
        sizes["sub-questions"][len(environment.sub_questions)] += 1
        sizes["tool calls"][len(environment.sub_tasks)] += 1
        sizes["longest path"][environment.hops] += 1
        num_parallel += num_parallel_calls(environment.sub_tasks)
        num_stateful += environment.is_stateful
        num_tools += len(environment.tools)
        qualities.append(environment.quality.mean)
    if not qualities:
        raise ValueError("there is no environment to count; pass at least one")
    count = len(qualities)
    num_sub_questions, num_calls = sum(sizes["sub-questions"].elements()), sum(sizes["tool calls"].elements())
    return EnvironmentStatistics(
        environments=count,
        teachers=dict(kinds["teacher"].most_common()),
        languages=_shares(kinds["language"]),
        domains=_shares(kinds["domain"]),
        scenarios=_shares(kinds["scenario"]),
        sub_questions=num_sub_questions,
        sub_questions_mean=num_sub_questions / count,
        sub_questions_median=statistics.median(sizes["sub-questions"].elements()),
        sub_questions_histogram=dict(sorted(sizes["sub-questions"].items())),
        tool_calls_mean=num_calls / count,
        tool_calls_histogram=dict(sorted(sizes["tool calls"].items())),
        needs_tool_share=num_calls / max(1, num_sub_questions),
        longest_path_mean=statistics.fmean(sizes["longest path"].elements()),
        longest_path_histogram=dict(sorted(sizes["longest path"].items())),
        parallel_share=num_parallel / max(1, num_calls),
        tools_mean=num_tools / count,
        difficulties=_shares(kinds["difficulty"]),
        computed_answers_share=num_computed / count,
        irrelevant_tools_by_band=dict(sorted(kinds["band"].items())),
        cosine_mean_by_band={band: statistics.fmean(values) for band, values in sorted(cosines.items())},
        high_with_own_parameter_share=num_with_own_parameter / kinds["band"]["high"] if kinds["band"]["high"] else None,
        expectations=_shares(kinds["expectation"]),
        stateful_share=num_stateful / count,
        quality_mean=statistics.fmean(qualities),
        diversity=diversity.result(),
    )


def num_parallel_calls(sub_tasks: Sequence[SubQuestion | DecompositionNode]) -> int:
    """Count the calls that can run beside another one.

    >>> def task(id, *parents): return SubQuestion(id=id, question="", answer=1, depends_on=parents)
    >>> num_parallel_calls((task("q1"), task("q2", "q1"), task("q3", "q1")))
    2
    """
    levels = Counter(depths(sub_tasks).values())
    return sum(count for count in levels.values() if count > 1)


def _shares(counts: Counter[str]) -> dict[str, float]:
    return {value: count / counts.total() for value, count in counts.most_common()}
