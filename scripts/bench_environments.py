"""Synthesises environments offline, replays all of them, and counts: seconds, memory, and shares beside the paper's.

    python scripts/bench_environments.py [--config configs/paper_environments.toml] [--count 6596] [--seed 0]

The last line is JSON. `median_seconds` is that of the one run: everything from knowledge to the record directory, with
all proofs in the sandbox; `verify_seconds` replays every promise of the finished records. Memory is that of the whole
process tree, the sandbox included. Exit code 1 where an environment was lost, did not verify, or a share is more than
two points from the paper's. Quotas set those shares, and sizes too: that they are near the paper's shows that nothing
was lost on the way, no more. No language model is asked, so seconds are those of the machinery.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astra_jax.config import load_config
from astra_jax.recipes.process_memory import PeakMemory
from sandbox.local import local_sandbox
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.selection.statistics import PAPER, EnvironmentStatistics, environment_statistics
from synthesis.environments.verification import verify_environments
from synthesis.procedural.teacher import ProceduralTeacher

POINTS = 2.0


def beside_paper(counted: EnvironmentStatistics) -> Iterator[tuple[str, float, float, float | None]]:
    """Yield each of the paper's figures: its name, ours, the paper's, and for a share how many points lie between."""
    ours = counted.model_dump()
    for name, figure in PAPER.items():
        if isinstance(figure, Mapping):
            for choice, share in figure.items():
                found = ours[name].get(choice, 0.0)
                yield f"{name}.{choice}", found, share, 100 * abs(found - share)
        else:
            points = 100 * abs(ours[name] - figure) if name.endswith("_share") else None
            yield name, ours[name], figure, points


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/paper_environments.toml"))
    parser.add_argument("--count", type=int, default=6596)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="of the sandbox")
    parser.add_argument("--out", type=Path, help="keep the records here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, PeakMemory() as memory, local_sandbox(options.workers) as url:
        out = options.out or Path(folder) / "environments"
        overrides = [f"count={options.count}", f"seed={options.seed}", f"out={json.dumps(str(out))}"]
        config = load_config(EnvironmentsConfig, options.config, overrides)
        started = time.monotonic()
        report = asyncio.run(synthesize_environments(config, ProceduralTeacher(), url))
        if report.already_complete:
            parser.error(f"expected a new --out to measure, found finished records in {out}")
        seconds = time.monotonic() - started
        verified = asyncio.run(verify_environments(out, url))
        verify_seconds = time.monotonic() - started - seconds
        figures = list(beside_paper(environment_statistics(out)))
    for name, ours, paper, points in figures:
        print(f"{name:32} {ours:8.3f}   paper {paper:6.3f}" + ("" if points is None else f"   {points:4.1f} points"))
    print(report.closing_line())
    print(verified.closing_line())
    greatest = max(points for *_, points in figures if points is not None)
    line: dict[str, Any] = {
        "work": f"{options.count} environments of {options.config.name}, seed {options.seed}",
        "ours": {
            "median_seconds": round(seconds, 1),
            "verify_seconds": round(verify_seconds, 1),
            "environments_per_second": round(report.kept / seconds, 2),
            "peak_rss_bytes": memory.peak_bytes,
        },
        "kept": report.kept,
        "rejected": dict(sorted(report.rejected.items())),
        "verified": f"{verified.read - len({name for name, _ in verified.failures})}/{verified.read}",
        "figures": {name: {"ours": round(ours, 4), "paper": paper} for name, ours, paper, _ in figures},
        "greatest_difference_points": round(greatest, 2),
    }
    print(json.dumps(line))
    return int(report.kept < options.count or bool(verified.failures) or greatest > POINTS)


if __name__ == "__main__":
    sys.exit(main())
