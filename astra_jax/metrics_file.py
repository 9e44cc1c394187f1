"""The file `metrics.jsonl` of a run: one JSON object per step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

CAUSES: Final = ("useful", "tools", "hosts", "compile", "evaluation", "save", "restore", "other")
"""Causes in the order in which they are told. `tools`: the time of rollouts outside the decoder's calls, the wait for
tools and the host's own work. `hosts`: calls of the decoder to which other hosts had not come. `other`: all between two
steps that has no other name, such as a stopped run's wait for its next command, and steps that were lost."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl` in order; a line that a crash cut short is left out."""
    return [json.loads(line) for line in whole_lines(path)]


def last_metric(path: Path, name: str) -> float | None:
    """Return a figure of the last step that has it; None if no step has it."""
    values = [line.get(name) for line in read_metrics(path)]
    return next((value for value in reversed(values) if value is not None), None)


def metric_totals(path: Path, part: str) -> dict[str, float]:
    """Return the sums over all steps of the figures whose name contains `part`, by name."""
    totals: Counter[str] = Counter()
    for line in read_metrics(path):
        totals.update({name: value for name, value in line.items() if part in name and value is not None})
    return dict(sorted(totals.items()))


def whole_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file that end, since a crash may have cut the last one short; none without a file."""
    if path.exists():
        with path.open() as lines:
            yield from (line for line in lines if line.endswith("\n"))


def goodput(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of each of `CAUSES` in the time of all lines; nothing where a line does not tell its time.

    >>> names = ("seconds", "compile_seconds", "restore_seconds", "save_seconds", "ended_unix_seconds")
    >>> lines = [dict(zip(names, values)) for values in ((30, 20, 2, 0, 100), (6, 0, 0, 1, 108))]
    >>> {cause: share for cause, share in goodput(lines).items() if share}
    {'useful': 0.4, 'compile': 0.5, 'save': 0.025, 'restore': 0.05, 'other': 0.025}
    """
    if not lines or any("ended_unix_seconds" not in line for line in lines):
        return {}
    spent, before = dict.fromkeys(CAUSES, 0.0), None
    for line in lines:
        seconds, ended = line["seconds"], line["ended_unix_seconds"]
        of_line = {
            "hosts": (waited := line.get("hosts_seconds", 0.0)),
            "tools": max(0.0, line.get("rollout_seconds", 0.0) - line.get("decode_seconds", 0.0) - waited),
            "evaluation": line.get("held_out_seconds", 0.0),
            "save": line["save_seconds"],
            "restore": line["restore_seconds"],
        }
        of_line["compile"] = min(line["compile_seconds"], seconds - of_line["tools"] - waited)
        of_line["useful"] = seconds - of_line["tools"] - waited - of_line["compile"]
        if before is not None:
            between = seconds + of_line["evaluation"] + of_line["save"] + of_line["restore"]
            of_line["other"] = max(0.0, ended - before - between)
        for cause, of_cause in of_line.items():
            spent[cause] += of_cause
        before = ended
    whole = sum(spent.values())
    return {cause: of_cause / whole for cause, of_cause in spent.items()}


def told_goodput(shares: Mapping[str, float]) -> str:
    """Return the shares in words, those of less than half a percent left out.

    >>> told_goodput({"useful": 0.91, "compile": 0.07, "save": 0.02, "other": 0.001})
    'useful 91 %, compile 7 %, save 2 %'
    """
    return ", ".join(f"{cause} {share:.0%}".replace("%", " %") for cause, share in shares.items() if share >= 0.005)
