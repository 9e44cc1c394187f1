"""Statistics of a set of trajectories: the paper's table (ASTRA, SFT data), read in one pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from synthesis.record_io import RecordSource
from synthesis.records import RewardAxes, Trajectory


class TrajectoryStatistics(BaseModel):
    """What a set of trajectories holds; the paper's set has 10.59 messages and 4.42 calls per conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trajectories: int
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
    """Injected failures per emulated call; None without emulated calls."""
    reward: dict[str, float]
    """Mean of each axis over the trajectories it was judged on, and of the whole reward."""

    def table(self) -> str:
        """Return the statistics for a person to read, one line per figure."""
        lines = []
        for name, value in self.model_dump().items():
            if isinstance(value, dict):
                parts = (f"{key} {_figure(inner)}" for key, inner in value.items())
                lines.append(f"{name:28}{', '.join(parts)}")
            else:
                lines.append(f"{name:28}{_figure(value)}")
        return "\n".join(lines)


def _figure(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def trajectory_statistics(directory: Path) -> TrajectoryStatistics:
    """Read a record directory of trajectories and count.

    Raises:
        RecordDirectoryError: there is no such directory, or it holds something else.
    """
    roles: Counter[str] = Counter()
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
    emulated_calls = injected = parallel = 0
    axis_sums: defaultdict[str, float] = defaultdict(float)
    axis_counts: Counter[str] = Counter()
    source: RecordSource[Trajectory] = RecordSource(directory, Trajectory)
    for trajectory in source:
        num_calls = sum(len(message.tool_calls) for message in trajectory.messages)
        roles.update(message.role for message in trajectory.messages)
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
        called = {call.name for message in trajectory.messages for call in message.tool_calls}
        functions_called.update((trajectory.server, name) for name in called)
        emulated_calls += num_calls * (trajectory.tool_backend == "emulator")
        injected += len(trajectory.injected_failures)
        for axis in RewardAxes.AXES:
            if (score := getattr(trajectory.reward, axis)) is not None:
                axis_sums[axis] += score
                axis_counts[axis] += 1
        axis_sums["mean"] += trajectory.reward.mean
        axis_counts["mean"] += 1
    count, messages = len(source), roles.total()
    return TrajectoryStatistics(
        trajectories=count,
        messages=messages,
        messages_per_trajectory=messages / count if count else 0.0,
        tool_calls_per_trajectory=fmean(calls_by_number.elements()) if count else 0.0,
        share_with_1_to_5_calls=sum(calls_by_number[n] for n in range(1, 6)) / count if count else 0.0,
        share_with_parallel_calls=parallel / count if count else 0.0,
        requests_by_number=dict(sorted(requests_by_number.items())),
        roles={role: number / messages for role, number in roles.most_common()},
        distinct_functions=len(functions),
        distinct_functions_called=len(functions_called & functions),
        servers=len({server for server, _ in functions}),
        domains=dict(domains.most_common()),
        languages=dict(languages.most_common()),
        expectations=dict(expectations.most_common()),
        augmentations=dict(augmentations.most_common()),
        tool_backends=dict(backends.most_common()),
        messages_by_number=dict(sorted(messages_by_number.items())),
        calls_by_number=dict(sorted(calls_by_number.items())),
        injected_failure_rate=injected / emulated_calls if emulated_calls else None,
        reward={axis: axis_sums[axis] / axis_counts[axis] for axis in (*RewardAxes.AXES, "mean") if axis_counts[axis]},
    )
