"""A long RL run on a sandbox that fails: does it hang, does it leak? One JSON line.

    python scripts/soak_rl.py runs/quickstart [--steps 500] [--seed 0]

A run from the quickstart's SFT policy, with small steps (2 groups of 4 episodes), a tenth of its learning rate and the
quickstart's other settings, through a proxy in front of a real sandbox: of all replies 5 % hang, 5 % are HTTP 500 and
2 % are cut, and after a third of the steps the sandbox is killed with SIGKILL and started again. With all of the
learning rate the run ended at step 414, where the rewards of no group out of 48 varied any more.

Printed: steps that ended, the longest step, what the proxy did, the run's resident memory as a median over the second
fifth of the steps and over the last, how much it grew, the same of what malloc's callers had in use (what else is
resident malloc keeps), how many programs were compiled by the end of either (each stays: rows of a new length are a
new one), and how many files and tasks are left over.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import psutil
from bench_faults import GRACE_SECONDS, faulty_proxy, kill_and_start_again, start, until

from astra_jax.cli.compile_cache import keep_compiled_programs
from astra_jax.config import CONFIGS, load_config
from astra_jax.metrics_file import read_metrics
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from sandbox.client import AsyncSandboxClient
from sandbox.protocol import ExecuteReply, Limits
from tests.sandbox.faulty_proxy import SHARES

_SMALL = {
    "group_size": 4,
    "groups_per_step": 2,
    "groups_per_rollout": 3,
    "accumulation": 2,
    "checkpoint_every_steps": 50,
}


class Impatient(AsyncSandboxClient):
    """Gives a tool one second, so that a reply that hangs is asked for again after two."""

    async def execute(self, *arguments: Any, **options: Any) -> ExecuteReply:
        return await super().execute(*arguments, limits=Limits(wall_seconds=1.0), **options)


class Seen(NamedTuple):
    """What stays with the process."""

    resident_bytes: int
    in_use_bytes: int
    programs: int


class Mallinfo(ctypes.Structure):
    """What glibc says of its heaps, in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def malloc_in_use() -> int:
    """Return how many bytes are allocated; glibc 2.33 or newer."""
    said = ctypes.CDLL(None).mallinfo2
    said.restype = Mallinfo
    heaps = said()
    return heaps.uordblks + heaps.hblkhd


async def watch(metrics: Path, seen: dict[int, Seen]) -> None:
    """Note what there is after each step, as often as one can look."""
    programs = 0

    def note(event: str, _: float, **__: str | int) -> None:
        nonlocal programs
        if event == "/jax/core/compile/backend_compile_duration":
            programs += 1

    jax.monitoring.register_event_duration_secs_listener(note)
    while True:
        if metrics.exists():
            seen[metrics.read_bytes().count(b"\n")] = Seen(
                psutil.Process().memory_info().rss, malloc_in_use(), programs
            )
        await asyncio.sleep(0.2)


async def soak(run: Path, out: Path, steps: int, seed: int) -> dict[str, Any]:
    """Run it; return what is printed."""
    tiny = load_config(RLConfig, CONFIGS / "tiny_rl.toml")
    config = tiny.model_copy(
        update={
            **_SMALL,
            "optimizer": tiny.optimizer.model_copy(update={"learning_rate": tiny.optimizer.learning_rate / 10}),
            "seed": seed,
            "steps": steps,
            "out": out,
            "init": run / "sft/policy",
            "environments": run / "rl_environments",
        }
    )
    tasks, files = asyncio.all_tasks(), psutil.Process().num_fds()
    seen: dict[int, Seen] = {}
    watcher = asyncio.ensure_future(watch(out / "metrics.jsonl", seen))
    async with AsyncExitStack() as services:
        proxy = faulty_proxy(await start(services), SHARES, seed)
        async with proxy as url, Impatient(url, grace_seconds=GRACE_SECONDS) as sandbox:
            # About two calls an episode: by then a third of the steps are done.
            num_episodes = _SMALL["group_size"] * _SMALL["groups_per_rollout"] * steps
            killer = asyncio.ensure_future(kill_and_start_again(proxy, services, after_replies=2 * num_episodes // 3))
            await run_rl(config, sandbox)
            was_killed = killer.done()
            killer.cancel()
        await until(lambda: proxy.connections == 0, 10)
    watcher.cancel()
    await until(lambda: asyncio.all_tasks() == tasks and psutil.Process().num_fds() <= files, 10)
    lines = read_metrics(out / "metrics.jsonl")
    fifths = [
        [each for step, each in seen.items() if first * steps <= step < stop * steps]
        for first, stop in ((0.2, 0.4), (0.8, 1.0))
    ]
    resident, in_use = (
        [statistics.median(getattr(each, name) for each in fifth) for fifth in fifths]
        for name in ("resident_bytes", "in_use_bytes")
    )
    return {
        "steps": len(lines),
        "longest_step_seconds": max(line["seconds"] for line in lines),
        "median_step_seconds": statistics.median(line["seconds"] for line in lines),
        "replies": proxy.replies,
        "lost": dict(proxy.lost),
        "sandbox_was_killed": was_killed,
        **{
            f"{name}_mib": [round(early / 2**20, 1), round(late / 2**20, 1)]
            for name, (early, late) in (("resident", resident), ("in_use", in_use))
        },
        "grown": round(resident[1] / resident[0] - 1, 4),
        "in_use_grown": round(in_use[1] / in_use[0] - 1, 4),
        "programs": [fifth[-1].programs for fifth in fifths],
        "left_over_tasks": len(asyncio.all_tasks() - tasks),
        "left_over_files": max(0, psutil.Process().num_fds() - files),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a quickstart that has ended")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    keep_compiled_programs()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(soak(options.run, Path(folder) / "run", options.steps, options.seed))))
