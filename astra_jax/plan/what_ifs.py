"""The time line of a run's update beside those of other rows, groups, tools and chips: `astra plan --time-line`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from astra_jax.config import ConfigError
from astra_jax.plan.chips import CHIPS, GPUS, Chip, slices_and_kind
from astra_jax.plan.planned_clock import PlannedClock
from astra_jax.plan.time_line import Phases, TimeLine, time_line
from astra_jax.plan.workload import Workload
from astra_jax.rl.config import RLConfig

_HEADS = (*(name for name in Phases._fields), "update", "rollouts", "tokens/s", "rows busy", "cost")


@dataclasses.dataclass(frozen=True)
class Case:
    """A run as it is, or with one thing changed."""

    words: str
    config: RLConfig
    workload: Workload
    chip: Chip | None = None
    """Another chip than that of the topology; nothing says whether the run fits its memory."""
    groups_with_rows: int | None = None
    """Groups that have rows at once; None: as the run has them."""


def cases(config: RLConfig, workload: Workload, topology: str) -> Iterator[Case]:
    """Yield the run as it is, then what may be changed; a change that the config's rules refuse is left out."""
    yield Case("as configured", config, workload)
    with_rows, size = config.groups_with_rows, config.group_size
    for groups in (max(1, with_rows // 2), 2 * with_rows):
        yield Case(f"rows for {groups} groups, not {with_rows}", config, workload, groups_with_rows=groups)
    changes: dict[str, dict[str, Any]] = {
        f"groups of {size // 2}": {
            "group_size": size // 2,
            "episodes_per_row": min(config.episodes_per_row, size // 2),
        },
        f"groups of {2 * size}": {"group_size": 2 * size},
        "no more groups than an update takes": {"groups_per_rollout": config.groups_per_step},
        "a row for each episode": {"episodes_per_row": 1},
        "moments stay" if config.optimizer_waits_on_host else "moments wait on the host": {
            "optimizer_waits_on_host": not config.optimizer_waits_on_host
        },
    }
    for words, change in changes.items():
        if all(getattr(config, key) == value for key, value in change.items()):
            continue
        try:
            yield Case(words, RLConfig.model_validate({**config.model_dump(), **change}), workload)
        except ValueError:
            continue
    times = dataclasses.replace(workload.tool_seconds, median=10 * workload.tool_seconds.median)
    slower = dataclasses.replace(workload, tool_seconds=times, most_tool_seconds=10 * workload.most_tool_seconds)
    yield Case("tools ten times as slow", config, slower)
    _, kind, _ = slices_and_kind(topology)
    for other, chip in (GPUS if kind in GPUS else CHIPS).items():
        if other != kind:
            yield Case(f"as many {other}, if it fits", config, workload, chip)


def time_lines(
    config: RLConfig, workload: Workload, topology: str, chip_hour: float | None
) -> tuple[dict[str, TimeLine], str]:
    """Return the time line of each case, and a table of them; `chip_hour` is the price of a chip for an hour.

    Raises:
        ConfigError, CheckpointError, CompilerMissing: as `plan.plan`.
    """
    found: dict[str, TimeLine] = {}
    table = []
    for case in cases(config, workload, topology):
        print(f"astra: time line: {case.words}", file=sys.stderr)
        try:
            clock = PlannedClock(case.config, topology, chip=case.chip, groups_with_rows=case.groups_with_rows)
        except ConfigError:
            if not found:
                raise
            continue  # the run would refuse this layout
        line = found[case.words] = time_line(case.config, case.workload, clock)
        cost = "" if chip_hour is None else f"{line.seconds / 3600 * clock.num_chips * chip_hour:.2f}"
        cells = [f"{seconds:.1f}" for seconds in (*line.phases, line.seconds)]
        rate = f"{line.sampled_tokens / line.seconds:,.0f}"
        table.append([case.words, *cells, f"{line.rollouts:.2f}", rate, f"{line.row_steps_share:.0%}", cost])
    tools = found["as configured"]
    heads = [f"{head:>11}" for head in _HEADS]
    width = max(len(row[0]) for row in table)
    lines = [
        f"\nan update on {topology}, in seconds at best, by the schedule on a clock: {workload.words}",
        " " * width + "".join(heads),
        *(row[0].ljust(width) + "".join(f"{cell:>11}" for cell in row[1:]) for row in table),
        f"the sandbox runs tools of at most {tools.most_tools} episodes at once, of {tools.mean_tools:.1f} on average",
    ]
    return found, "\n".join(lines)
