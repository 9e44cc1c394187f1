"""RL of a tiny policy with and without rollouts that overlap the update: one JSON line.

    python scripts/bench_overlap.py [--steps 10] [--seed 0]

The policy of `scripts/bench_kills.py`, groups of four, two groups an update; tools that answer at once, and tools that
take exp(N(ln 0.5, 0.7²)) seconds, 2 at most, drawn by a seed. Without overlap rollouts are not reproducible either, and
both have the same importance cap, so that the overlap is all that differs. Printed of each: the median over steps of
the seconds of a step, of what was waited for its rollouts, of its update, and of its rollouts that lay within the one
before; the first two steps, which compile, are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from astra_jax.cli.compile_cache import keep_compiled_programs
from astra_jax.metrics_file import read_metrics
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from astra_jax.testing import InProcessSandbox
from sandbox.protocol import ExecuteReply
from scripts.bench_kills import config_with_surplus, gold_policy

_COMPILING_STEPS = 2
_FIGURES = ("seconds", "rollout_seconds", "learn_seconds", "overlapped_seconds")


class SlowSandbox(InProcessSandbox):
    """Tools that take their time, lognormal, 2 s at most."""

    def __init__(self, median_seconds: float, seed: int):
        super().__init__()
        self._median_seconds, self._drawn = median_seconds, random.Random(seed)

    async def execute(self, *arguments: Any, **options: Any) -> ExecuteReply:
        if self._median_seconds:
            await asyncio.sleep(min(2.0, self._drawn.lognormvariate(math.log(self._median_seconds), 0.7)))
        return await super().execute(*arguments, **options)


def measure(config: RLConfig, median_seconds: float, seed: int) -> dict[str, float]:
    """Make a run; return the medians of its figures."""
    asyncio.run(run_rl(config, SlowSandbox(median_seconds, seed)))
    lines = read_metrics(config.out / "metrics.jsonl")[_COMPILING_STEPS:]
    medians = {name: statistics.median(line.get(name, 0.0) for line in lines) for name in _FIGURES}
    apart = statistics.median(line["mean_abs_logprob_difference"] for line in lines)
    return {name: round(value, 3) for name, value in medians.items()} | {"logprob_difference": float(f"{apart:.2g}")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="of each run (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of how long tools take (default: 0)")
    arguments = parser.parse_args()
    keep_compiled_programs()
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="overlap-") as name:
        folder = Path(name)
        plain = config_with_surplus(folder, gold_policy(), steps=_COMPILING_STEPS + arguments.steps)
        values = plain.model_dump() | {"groups_per_rollout": 2, "importance_cap": 2.0, "checkpoint_every_steps": 100}
        values["rollout"] = plain.rollout.model_dump() | {"reproducible": False}
        for tools, median_seconds in (("at_once", 0.0), ("lognormal", 0.5)):
            for order in ("in_turn", "overlapped"):
                of_run = {"out": folder / f"{tools}_{order}", "overlap_rollouts": order == "overlapped"}
                config = RLConfig.model_validate(values | of_run)
                found.setdefault(tools, {})[order] = measure(config, median_seconds, arguments.seed)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
