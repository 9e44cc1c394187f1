"""Statistics of a set of trajectories, in the figures of the paper's table."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from synthesis.diversity import Diversity, DiversityCounter
from synthesis.record_io import RecordDirectoryError, RecordSource
from synthesis.records import RewardAxes, TaskScores, Trajectory
from synthesis.trajectories.collection import call_error
from synthesis.trajectories.data_flow import has_data_flow, has_several_calls

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

_AXES: Final = (*RewardAxes.AXES, "mean")


class TrajectoryStatistics(BaseModel):
    """Counts and shares over a set of trajectories."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trajectories: int
    teachers: dict[str, int]
    """Number of trajectories by teacher."""
    messages: int
    messages_per_trajectory: float
    tool_calls_per_trajectory: float
    share_with_1_to_5_calls: float
    share_with_parallel_calls: float
    share_with_data_flow: float | None
    """Share of the trajectories with several different calls in which a call uses a value of an earlier response; None
    if no trajectory has several."""
    requests_by_number: dict[int, int]
    """Number of trajectories by the number of requests that their user makes."""
    roles: dict[str, float]
    """Share of all messages, by role."""
    distinct_functions: int
    """Number of distinct (server, tool) pairs that were offered."""
    distinct_functions_called: int
    tools_of_unknown_parameters: dict[str, int]
    """Number of tools of unknown parameters by outcome: `completed`, or the reason for which a tool was left out."""
    edges_by_weight: dict[int, int]
    """Number of edges of the tool graphs by the number of proposals; empty without a report of the run."""
    servers: int
    domains: dict[str, int]
    languages: dict[str, int]
    expectations: dict[str, int]
    augmentations: dict[str, int]
    tool_backends: dict[str, int]
    messages_by_number: dict[int, int]
    """Number of trajectories by their number of messages."""
    calls_by_number: dict[int, int]
    """Number of trajectories by their number of calls."""
    injected_failure_rate: float | None
    """Injected failures per call that reached the emulator; None without any. Conversations with many failures are
    rejected more often, so a set that was made at a rate of 0.2 lies a little below it."""
    reward: dict[str, float]
    """Mean of each axis over the trajectories it was judged on, and of the whole reward (`mean`)."""
    reward_tenths: dict[str, tuple[int, ...]]
    """Number of trajectories by the tenth of [0, 1] that each axis, and the whole reward, lies in."""
    task_scores: dict[str, float]
    """Mean of each of the three scores."""
    task_score_tenths: dict[str, tuple[int, ...]]
    """Number of trajectories by the tenth of [0, 1] that each score of their task lies in."""
    diversity: Diversity


def trajectory_statistics(directory: Path) -> TrajectoryStatistics:
    """Count the trajectories of a record directory.

    Raises:
        RecordDirectoryError: there is no such directory, it holds something else, or nothing.
    """
    source: RecordSource[Trajectory] = RecordSource(directory, Trajectory)
    if not source:
        raise RecordDirectoryError(f"{directory} has no trajectory to count; name another directory")
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    numbers: defaultdict[str, Counter[int]] = defaultdict(Counter)
    scores: defaultdict[str, list[float]] = defaultdict(list)
    offered: set[tuple[str, str]] = set()
    called: set[tuple[str, str]] = set()
    emulated_calls = injected = parallel = flowing = several = 0
    diversity = DiversityCounter()
    for trajectory in source:
        diversity.add_trajectory(trajectory)
        task, server = trajectory.task, trajectory.server
        documents = {tool.name: tool for tool in trajectory.tools}
        calls = [call for message in trajectory.messages for call in message.tool_calls]
        kinds["roles"].update(message.role for message in trajectory.messages)
        kinds["teachers"][trajectory.provenance.teacher] += 1
        kinds["domains"][trajectory.domain] += 1
        kinds["languages"][trajectory.language] += 1
        kinds["expectations"][task.expectation] += 1
        kinds["augmentations"][task.augmentation] += 1
        kinds["tool_backends"][trajectory.tool_backend] += 1
        numbers["messages_by_number"][len(trajectory.messages)] += 1
        numbers["calls_by_number"][len(calls)] += 1
        numbers["requests_by_number"][1 + len(task.follow_ups)] += 1
        several += has_several_calls(trajectory)
        flowing += has_data_flow(trajectory)
        parallel += any(len(message.tool_calls) > 1 for message in trajectory.messages)
        offered.update((server, name) for name in documents)
        called.update((server, call.name) for call in calls)
        if trajectory.tool_backend == "emulator":
            # Unknown tools and wrong arguments never reached the emulator, so it could not fail on them.
            emulated_calls += sum(call_error(call, documents) is None for call in calls)
        injected += len(trajectory.injected_failures)
        for scored, names in ((trajectory.reward, _AXES), (task.scores, tuple(TaskScores.model_fields))):
            for name in names:
                if (score := getattr(scored, name)) is not None:
                    scores[name].append(score)
    roles, calls_by_number = kinds.pop("roles"), numbers["calls_by_number"]
    count, messages = len(source), roles.total()
    axes, qualities = (
        {name: scores[name] for name in names if name in scores} for names in (_AXES, TaskScores.model_fields)
    )
    unknown, weights = _run_report(directory)
    counted: dict[str, Any] = {name: dict(counts.most_common()) for name, counts in kinds.items()}
    counted |= {name: dict(sorted(counts.items())) for name, counts in numbers.items()}
    return TrajectoryStatistics(
        trajectories=count,
        messages=messages,
        messages_per_trajectory=messages / count,
        tool_calls_per_trajectory=fmean(calls_by_number.elements()),
        share_with_1_to_5_calls=sum(calls_by_number[n] for n in range(1, 6)) / count,
        share_with_parallel_calls=parallel / count,
        share_with_data_flow=flowing / several if several else None,
        roles={role: number / messages for role, number in roles.most_common()},
        distinct_functions=len(offered),
        distinct_functions_called=len(called & offered),  # without the tools that an agent made up
        tools_of_unknown_parameters=unknown,
        edges_by_weight=weights,
        servers=len({server for server, _ in offered}),
        **counted,
        injected_failure_rate=injected / emulated_calls if emulated_calls else None,
        reward={name: fmean(found) for name, found in axes.items()},
        reward_tenths={name: _tenths(found) for name, found in axes.items()},
        task_scores={name: fmean(found) for name, found in qualities.items()},
        task_score_tenths={name: _tenths(found) for name, found in qualities.items()},
        diversity=diversity.result(),
    )


def _tenths(scores: Sequence[float]) -> tuple[int, ...]:
    """Count scores in [0, 1] by the tenth that they lie in; 1 lies in the last."""
    counts = Counter(min(9, int(score * 10)) for score in scores)
    return tuple(counts[tenth] for tenth in range(10))


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
        raise RecordDirectoryError(f"the report of the run in {path} cannot be read: {error}") from error
    return {outcome: count for outcome, count in counts.items() if count}, weights
