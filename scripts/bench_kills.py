"""RL runs of a tiny policy that are disturbed: one JSON line.

python scripts/bench_kills.py [kills] [--kills 20] [--steps 30] [--seed 0]
python scripts/bench_kills.py soak --run runs/quickstart [--steps 500] [--seed 0]

kills   one run is left alone; each of the others is killed with SIGKILL at a random moment and begun again by the
        same command. Printed: the steps that were done at each kill, and the number of runs that ended with the
        bytes of the first: weights, episodes, metrics without times
soak    a long run from a quickstart's SFT policy through a proxy in front of a real sandbox: of all replies 5 %
        hang, 5 % are HTTP 500 and 2 % are cut, and after a third of the steps the sandbox is killed and started
        again. Steps are small (2 groups of 4) and the learning rate is a tenth. Printed: the longest step, the
        proxy's counts, the resident memory as a median over the second and the last fifth of the steps, its
        growth, the programs compiled by the end of either, and tasks and files left over
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import jax
import psutil

sys.path.append(str(Path(__file__).parents[1]))  # tests/ is no installed package

from astra_jax.cli.compile_cache import keep_compiled_programs
from astra_jax.config import CONFIGS, load_config
from astra_jax.metrics_file import read_metrics
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from astra_jax.testing import tiny_tokenizer
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import ExecuteReply, Limits
from tests.astra_jax.rl.kills import config_with_surplus, measure
from tests.astra_jax.taught import taught_policy
from tests.sandbox.faulty_proxy import SHARES, FaultyProxy, fault_of
from tests.sandbox.processes import service_process

_SMALL = {
    "group_size": 4,
    "groups_per_step": 2,
    "groups_per_rollout": 3,
    "accumulation": 2,
    "checkpoint_every_steps": 50,
}


def faulty_proxy(service: str, shares: Mapping[str, float], seed: int) -> FaultyProxy:
    """Return a proxy that loses such shares of the replies, drawn one after the other."""
    drawn = random.Random(seed)
    return FaultyProxy(lambda _: fault_of(drawn.random(), shares), service)


async def start(services: AsyncExitStack) -> str:
    """Start a sandbox that lives as long as `services`; return its URL."""
    return await asyncio.to_thread(services.enter_context, local_sandbox())


async def kill_and_start_again(proxy: FaultyProxy, services: AsyncExitStack, after_replies: int) -> None:
    """Kill the sandbox behind a proxy once it has answered so often, and start another one."""
    while proxy.replies < after_replies:
        await asyncio.sleep(0.02)
    os.kill(service_process(proxy.service), signal.SIGKILL)
    proxy.lost["killed"] += 1
    proxy.service = await start(services)


class Impatient(AsyncSandboxClient):
    """Gives a tool one second, so that a reply that hangs is asked for again after two."""

    async def execute(self, *arguments: Any, **options: Any) -> ExecuteReply:
        return await super().execute(*arguments, limits=Limits(wall_seconds=1.0), **options)


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a condition holds, at most so long."""
    for _ in range(round(seconds / 0.02)):
        if condition():
            break
        await asyncio.sleep(0.02)


async def watch(metrics: Path, seen: dict[int, tuple[int, int]]) -> None:
    """Note resident bytes and compiled programs after each step."""
    programs = 0

    def note(event: str, _: float, **__: str | int) -> None:
        nonlocal programs
        if event == "/jax/core/compile/backend_compile_duration":
            programs += 1

    jax.monitoring.register_event_duration_secs_listener(note)
    while True:
        if metrics.exists():
            seen[metrics.read_bytes().count(b"\n")] = psutil.Process().memory_info().rss, programs
        await asyncio.sleep(0.2)


async def soak(run: Path, out: Path, steps: int, seed: int) -> dict[str, Any]:
    """Run RL; return the figures."""
    tiny = load_config(RLConfig, CONFIGS / "tiny_rl.toml")
    config = tiny.model_copy(
        update={
            **_SMALL,
            "optimizer": tiny.optimizer.model_copy(update={"learning_rate": tiny.optimizer.learning_rate / 10}),
            "seed": seed,
            "steps": steps,
            "out": out,
            "init": run / "sft/policy",
            "environments": run / "environments",
        }
    )
    tasks, files = asyncio.all_tasks(), psutil.Process().num_fds()
    seen: dict[int, tuple[int, int]] = {}
    watcher = asyncio.ensure_future(watch(out / "metrics.jsonl", seen))
    async with AsyncExitStack() as services:
        proxy = faulty_proxy(await start(services), SHARES, seed)
        async with proxy as url, Impatient(url, grace_seconds=1.0) as sandbox:
            # About two calls an episode: by then a third of the steps are done.
            num_episodes = _SMALL["group_size"] * _SMALL["groups_per_rollout"] * steps
            killer = asyncio.ensure_future(kill_and_start_again(proxy, services, after_replies=2 * num_episodes // 3))
            await run_rl(config, sandbox)
            was_killed = killer.done()
            killer.cancel()
        await until(lambda: proxy.connections == 0)
    watcher.cancel()
    await until(lambda: asyncio.all_tasks() == tasks and psutil.Process().num_fds() <= files)
    lines = read_metrics(out / "metrics.jsonl")
    fifths = [
        [each for step, each in seen.items() if first * steps <= step < stop * steps]
        for first, stop in ((0.2, 0.4), (0.8, 1.0))
    ]
    early, late = (statistics.median(resident for resident, _ in fifth) for fifth in fifths)
    return {
        "steps": len(lines),
        "longest_step_seconds": max(line["seconds"] for line in lines),
        "median_step_seconds": statistics.median(line["seconds"] for line in lines),
        "replies": proxy.replies,
        "lost": dict(proxy.lost),
        "sandbox_was_killed": was_killed,
        "resident_mib": [round(early / 2**20, 1), round(late / 2**20, 1)],
        "grown": round(late / early - 1, 4),
        "programs": [fifth[-1][1] for fifth in fifths],
        "left_over_tasks": len(asyncio.all_tasks() - tasks),
        "left_over_files": max(0, psutil.Process().num_fds() - files),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", choices=["kills", "soak"], default="kills")
    parser.add_argument("--run", type=Path, help="the folder of a quickstart that has ended; soak needs it")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, help="default: 30, soak 500")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    keep_compiled_programs()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.mode == "kills":
            config = config_with_surplus(folder, taught_policy(tiny_tokenizer()), options.steps or 30)
            with local_sandbox() as url:
                found = measure(config, url, kills=options.kills, seed=options.seed)
        elif options.run is None:
            parser.error("soak needs --run, the folder of a quickstart that has ended")
        else:
            found = asyncio.run(soak(options.run, folder / "run", options.steps or 500, options.seed))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
