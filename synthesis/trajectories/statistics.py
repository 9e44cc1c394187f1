"""Statistics of a set of trajectories, in the figures of the paper's table."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from synthesis.diversity import Diversity, DiversityCounter
from synthesis.record_io import RecordDirectoryError, RecordSource
from synthesis.records import RewardAxes, TaskScores, Trajectory
from synthesis.trajectories.collection import call_error

PAPER: Final[Mapping[str, Any]] = {
    "trajectories": 54885,
    "messages": 580983,
    "messages_per_trajectory": 10.59,
    "tool_calls_per_trajectory": 4.42,
    "share_with_1_to_5_calls": 0.722,
    "roles": {"tool": 0.418, "assistant": 0.393},
    "distinct_functions_called": 6765,
    "servers": 1585,
    "num_domains": 41,
    "injected_failure_rate": 0.2,
}
"""Figures of ASTRA's (arXiv 2601.21558) SFT data, under the names of `TrajectoryStatistics`."""


class TrajectoryStatistics(BaseModel):
    """Counts and shares over a set of trajectories."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trajectories: int
    teachers: dict[str, int]
    """Trajectories by teacher."""
    messages: int
    messages_per_trajectory: float
    tool_calls_per_trajectory: float
    share_with_1_to_5_calls: float
    share_with_parallel_calls: float
    requests_by_number: dict[int, int]
    """Trajectories by how many requests their user makes."""
    roles: dict[str, float]
    """Share of all messages, by role."""
    distinct_functions: int
    """Distinct (server, tool) pairs that were offered."""
    distinct_functions_called: int
    functions_completed: int
    """Offered tools with parameters that the teacher wrote, since their source has none."""
    tools_of_unknown_parameters: dict[str, int]
    """Tools of unknown parameters by outcome: `completed`, or the reason for which a tool was left out."""
    edges_by_weight: dict[int, int]
    """Edges of the servers' tool graphs by how often they were proposed; empty where the run wrote none down."""
    servers: int
    domains: dict[str, int]
    languages: dict[str, int]
    expectations: dict[str, int]
    augmentations: dict[str, int]
    tool_backends: dict[str, int]
    messages_by_number: dict[int, int]
    """Trajectories by their number of messages."""
    calls_by_number: dict[int, int]
    """Trajectories by their number of calls."""
    injected_failure_rate: float | None
    """Injected failures per call that reached the emulator; None without any.

    Conversations with many failures are rejected more often than others, so a set that was made at a rate of 0.2 lies a
    little below it.
    """
    reward: dict[str, float]
    """Mean of each axis over the trajectories it was judged on, and of the whole reward (`mean`)."""
    reward_tenths: dict[str, tuple[int, ...]]
    """Trajectories by the tenth of [0, 1] that each axis, and the whole reward, lies in."""
    task_scores: dict[str, float]
    """Mean of each of the three scores."""
    task_score_tenths: dict[str, tuple[int, ...]]
    """Trajectories by the tenth of [0, 1] that each score of their task lies in."""
    diversity: Diversity


def tenth(score: float) -> int:
    """Return which tenth of [0, 1] a score lies in, from 0 to 9; 1 lies in the last.

    >>> [tenth(score) for score in (0, 0.1, 0.99, 1)]
    [0, 1, 9, 9]
    """
    return min(9, int(score * 10))


def trajectory_statistics(directory: Path) -> TrajectoryStatistics:
    """Count the trajectories of a record directory.

    Raises:
        RecordDirectoryError: there is no such directory, it holds something else, or nothing.
    """
    source: RecordSource[Trajectory] = RecordSource(directory, Trajectory)
    if not source:
        raise RecordDirectoryError(f"expected at least one trajectory to count in {directory}, found none")
    roles: Counter[str] = Counter()
    teachers: Counter[str] = Counter()
    domains: Counter[str] = Counter()
    languages: Counter[str] = Counter()
    expectations: Counter[str] = Counter()
    augmentations: Counter[str] = Counter()
    backends: Counter[str] = Counter()
    requests_by_number: Counter[int] = Counter()
    messages_by_number: Counter[int] = Counter()
    calls_by_number: Counter[int] = Counter()
    functions: set[tuple[str, str]] = set()
    functions_called: set[tuple[str, str]] = set()
    completed: set[tuple[str, str]] = set()
    emulated_calls = injected = parallel = 0
    axes: defaultdict[str, _Scores] = defaultdict(_Scores)
    task_scores: defaultdict[str, _Scores] = defaultdict(_Scores)
    diversity = DiversityCounter()
    for trajectory in source:
        diversity.add_trajectory(trajectory)
        num_calls = sum(len(message.tool_calls) for message in trajectory.messages)
        roles.update(message.role for message in trajectory.messages)
        teachers[trajectory.provenance.teacher] += 1
        domains[trajectory.domain] += 1
        languages[trajectory.language] += 1
        expectations[trajectory.task.expectation] += 1
        augmentations[trajectory.task.augmentation] += 1
        backends[trajectory.tool_backend] += 1
        messages_by_number[len(trajectory.messages)] += 1
        calls_by_number[num_calls] += 1
        requests_by_number[1 + len(trajectory.task.follow_ups)] += 1
        parallel += any(len(message.tool_calls) > 1 for message in trajectory.messages)
        functions.update((trajectory.server, tool.name) for tool in trajectory.tools)
        completed.update((trajectory.server, t.name) for t in trajectory.tools if t.parameters_status == "completed")
        called = {call.name for message in trajectory.messages for call in message.tool_calls}
        functions_called.update((trajectory.server, name) for name in called)
        if trajectory.tool_backend == "emulator":
            # Unknown tools and wrong arguments never reached the emulator, so it could not fail on them.
            offered = {tool.name: tool for tool in trajectory.tools}
            calls = (call for message in trajectory.messages for call in message.tool_calls)
            emulated_calls += sum(call_error(call, offered) is None for call in calls)
        injected += len(trajectory.injected_failures)
        for axis in RewardAxes.AXES:
            if (score := getattr(trajectory.reward, axis)) is not None:
                axes[axis].add(score)
        axes["mean"].add(trajectory.reward.mean)
        for name in TaskScores.model_fields:
            task_scores[name].add(getattr(trajectory.task.scores, name))
    count, messages = len(source), roles.total()
    unknown, weights = _run_report(directory)
    return TrajectoryStatistics(
        trajectories=count,
        teachers=dict(teachers.most_common()),
        messages=messages,
        messages_per_trajectory=messages / count,
        tool_calls_per_trajectory=fmean(calls_by_number.elements()),
        share_with_1_to_5_calls=sum(calls_by_number[n] for n in range(1, 6)) / count,
        share_with_parallel_calls=parallel / count,
        requests_by_number=dict(sorted(requests_by_number.items())),
        roles={role: number / messages for role, number in roles.most_common()},
        distinct_functions=len(functions),
        distinct_functions_called=len(functions_called & functions),  # without the tools that an agent made up
        functions_completed=len(completed),
        tools_of_unknown_parameters=unknown,
        edges_by_weight=weights,
        servers=len({server for server, _ in functions}),
        domains=dict(domains.most_common()),
        languages=dict(languages.most_common()),
        expectations=dict(expectations.most_common()),
        augmentations=dict(augmentations.most_common()),
        tool_backends=dict(backends.most_common()),
        messages_by_number=dict(sorted(messages_by_number.items())),
        calls_by_number=dict(sorted(calls_by_number.items())),
        injected_failure_rate=injected / emulated_calls if emulated_calls else None,
        reward={axis: axes[axis].mean for axis in (*RewardAxes.AXES, "mean") if axis in axes},
        reward_tenths={axis: tuple(axes[axis].tenths) for axis in (*RewardAxes.AXES, "mean") if axis in axes},
        task_scores={name: scores.mean for name, scores in task_scores.items()},
        task_score_tenths={name: tuple(scores.tenths) for name, scores in task_scores.items()},
        diversity=diversity.result(),
    )


def _run_report(directory: Path) -> tuple[dict[str, int], dict[int, int]]:
    """Read the report beside the records of a run: tools of unknown parameters, and edges by weight."""
    path = directory / "report.json"
    if not path.is_file():
        return {}, {}
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        counts = {"completed": report["unknown_parameters"]["completed"], **report["unknown_parameters"]["rejected"]}
        weights = {int(weight): edges for weight, edges in report["edges_by_weight"].items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise RecordDirectoryError(f"expected the report of a run in {path}, found something else: {error}") from error
    return {outcome: count for outcome, count in counts.items() if count}, weights


class _Scores:
    """The sum and the histogram of scores in [0, 1]."""

    def __init__(self) -> None:
        self.sum = 0.0
        self.tenths = [0] * 10

    def add(self, score: float) -> None:
        self.sum += score
        self.tenths[tenth(score)] += 1

    @property
    def mean(self) -> float:
        return self.sum / sum(self.tenths)
