"""What is in the record directories of a run: the figures and distributions that describe a data set."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from synthesis.record_io import RecordSource
from synthesis.records import Environment, RewardAxes, Trajectory

MAX_BARS = 12
"""Longer distributions end in one bar for all the rest."""


@dataclass(frozen=True)
class Bar:
    """One value of a distribution."""

    label: str
    amount: float
    text: str
    """The amount in words."""


@dataclass(frozen=True)
class Distribution:
    """How often each value occurs, or how large each figure is."""

    title: str
    bars: list[Bar]


@dataclass(frozen=True)
class DataSet:
    """A described record directory."""

    title: str
    figures: dict[str, str]
    """Name to value, in the order in which they are read."""
    distributions: list[Distribution]


def describe_trajectories(directory: Path) -> DataSet:
    """Describe a record directory of trajectories.

    Raises:
        RecordDirectoryError: it is damaged or holds other records.
    """
    source = RecordSource(directory, Trajectory)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    calls_each: Counter[int] = Counter()
    axis_sums: Counter[str] = Counter()
    axis_counts: Counter[str] = Counter()
    functions: set[tuple[str, str]] = set()
    num_emulated_calls = num_failures = 0
    reward_sum = 0.0
    for trajectory in source:
        called = [call.name for message in trajectory.messages for call in message.tool_calls]
        calls_each[len(called)] += 1
        counts["Domains"][trajectory.domain] += 1
        counts["Message roles"].update(message.role for message in trajectory.messages)
        counts["Languages"][trajectory.language] += 1
        counts["Tools answered by"][trajectory.tool_backend] += 1
        counts["Expected of the agent"][trajectory.task.expectation] += 1
        counts["Stop reasons"][trajectory.stop_reason] += 1
        functions.update((trajectory.server, name) for name in called)
        if trajectory.tool_backend == "emulator":
            num_emulated_calls += len(called)
            num_failures += len(trajectory.injected_failures)
        for axis in RewardAxes.AXES:
            if (value := getattr(trajectory.reward, axis)) is not None:
                axis_sums[axis] += value
                axis_counts[axis] += 1
        reward_sum += trajectory.reward.mean
    count = len(source)
    num_calls = sum(calls * times for calls, times in calls_each.items())
    figures = {
        "trajectories": f"{count:,}",
        "messages each": _ratio(counts["Message roles"].total(), count),
        "tool calls each": _ratio(num_calls, count),
        "with 1–5 calls": _share(sum(calls_each[calls] for calls in range(1, 6)), count),
        "distinct functions": f"{len(functions):,}",
        "mean reward": _ratio(reward_sum, count, digits=3),
        "emulated calls made to fail": _share(num_failures, num_emulated_calls),
        **_rejections(source.card.rejected),
    }
    axes = [
        Bar(_words(axis), axis_sums[axis] / axis_counts[axis], f"{axis_sums[axis] / axis_counts[axis]:.3f}")
        for axis in RewardAxes.AXES
        if axis_counts[axis]
    ]
    return DataSet(
        "Trajectories",
        figures,
        [
            _histogram("Tool calls per trajectory", calls_each),
            Distribution("Mean reward axes", axes),
            *(_distribution(title, labels) for title, labels in counts.items()),
        ],
    )


def describe_environments(directory: Path, *, title: str) -> DataSet:
    """Describe a record directory of environments.

    Raises:
        RecordDirectoryError: it is damaged or holds other records.
    """
    source = RecordSource(directory, Environment)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    hops: Counter[int] = Counter()
    subtasks_each: Counter[int] = Counter()
    num_tools = num_sub_questions = 0
    quality_sum = 0.0
    for environment in source:
        counts["Scenarios"][environment.scenario] += 1
        counts["Domains"][environment.domain] += 1
        counts["Languages"][environment.language] += 1
        counts["Irrelevant tools by band"].update(irrelevant.band for irrelevant in environment.irrelevant_tools)
        hops[environment.hops] += 1
        subtasks_each[len(environment.sub_tasks)] += 1
        num_tools += len(environment.tools)
        num_sub_questions += len(environment.sub_questions)
        quality_sum += environment.quality.mean
    count = len(source)
    num_subtasks = sum(number * times for number, times in subtasks_each.items())
    figures = {
        "environments": f"{count:,}",
        "sub-tasks each": _ratio(num_subtasks, count),
        "hops, mean": _ratio(sum(number * times for number, times in hops.items()), count),
        "sub-questions that need a tool": _share(num_subtasks, num_sub_questions),
        "own tools each": _ratio(num_tools, count),
        "irrelevant tools each": _ratio(counts["Irrelevant tools by band"].total(), count),
        "mean quality score": _ratio(quality_sum, count, digits=3),
        **_rejections(source.card.rejected),
    }
    return DataSet(
        title,
        figures,
        [
            _histogram("Hops", hops),
            _histogram("Sub-tasks per environment", subtasks_each),
            *(_distribution(heading, labels) for heading, labels in counts.items()),
        ],
    )


def mean_subtasks(directory: Path) -> float:
    """Return how many tool calls a perfect episode makes, on average over a directory of environments."""
    source = RecordSource(directory, Environment)
    return sum(len(environment.sub_tasks) for environment in source) / len(source)


def _distribution(title: str, counts: Mapping[str, int]) -> Distribution:
    """Most frequent first; equally frequent ones by name."""
    total = sum(counts.values())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if len(ranked) > MAX_BARS:
        rest = ranked[MAX_BARS - 1 :]
        ranked = [*ranked[: MAX_BARS - 1], (f"{len(rest)} others", sum(number for _, number in rest))]
    return Distribution(title, [Bar(_words(label), number, _share(number, total)) for label, number in ranked])


def _histogram(title: str, counts: Mapping[int, int]) -> Distribution:
    """Every whole number from the least to the greatest, those that never occur included."""
    total = sum(counts.values())
    numbers: Iterable[int] = range(min(counts, default=0), max(counts, default=-1) + 1)
    bars = [Bar(str(number), counts.get(number, 0), _share(counts.get(number, 0), total)) for number in numbers]
    return Distribution(title, bars)


def _rejections(rejected: Mapping[str, int]) -> dict[str, str]:
    return {"rejected on the way": f"{sum(rejected.values()):,}"} if rejected else {}


def _words(name: str) -> str:
    names = {"en": "English", "zh": "Chinese", "mcp": "real MCP servers"}
    return names.get(name, name.replace("_", " "))


def _ratio(total: float, count: int, *, digits: int = 2) -> str:
    return f"{total / count:.{digits}f}" if count else "–"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"
