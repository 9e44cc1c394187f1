"""Rollouts of a quickstart's policy while the sandbox fails: one JSON line.

    python scripts/bench_faults.py runs/quickstart [--policy sft] [--groups 8] [--seed 0]

Three rollouts of the same episodes, those of the quickstart's RL, each through a proxy in front of a real sandbox:

    without_faults  the proxy passes everything on
    faults          of all replies 5 % hang, 5 % are HTTP 500 and 2 % are cut; and once the sandbox is killed with
                    SIGKILL and started again
    cut_off         the same faults without the kill, and episodes that may wait for tools for --max-tool-seconds

Printed of each: episodes by stop reason, what the proxy did to how many replies, the longest call and the longest wait
of an episode for its tools, whose limits stand beside them, and what was left behind: pages, tasks, connections and
open files; of the last two, whether the episodes that ended have the tokens of the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil

from astra_jax.checkpoints.policy import Policy, load_policy
from astra_jax.cli.compile_cache import keep_compiled_programs
from astra_jax.config import CONFIGS, load_config
from astra_jax.episodes.rollout import Group, RolloutConfig, RolloutEngine, Start, decode_limits, finished
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.rl.config import RLConfig
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import ExecuteReply
from synthesis.record_io import RecordSource
from synthesis.records import Environment
from tests.sandbox.faulty_proxy import SHARES, FaultyProxy, fault_of

CALL_DEADLINE_SECONDS, GRACE_SECONDS = 120.0, 1.0
NONE: dict[str, float] = {}


def faulty_proxy(service: str, shares: Mapping[str, float], seed: int) -> FaultyProxy:
    """Return a proxy that loses such shares of the replies, drawn one after the other."""
    drawn = random.Random(seed)
    return FaultyProxy(lambda _: fault_of(drawn.random(), shares), service)


class Timed(AsyncSandboxClient):
    """Remembers how long its longest call took."""

    longest_seconds = 0.0

    async def execute(self, *arguments: Any, **options: Any) -> ExecuteReply:
        started = time.monotonic()
        try:
            return await super().execute(*arguments, **options)
        finally:
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds, at most so long; say whether it does."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return condition()


async def kill_and_start_again(proxy: FaultyProxy, services: AsyncExitStack, after_replies: int) -> None:
    """End the sandbox that a proxy passes calls on to, and start another one."""
    while proxy.replies < after_replies:
        await asyncio.sleep(0.02)
    port = int(proxy.service.rpartition(":")[2])
    (service,) = (child for child in psutil.Process().children() if port in listens_on(child))
    os.kill(service.pid, signal.SIGKILL)
    proxy.lost["killed"] += 1
    proxy.service = await start(services)


def listens_on(process: psutil.Process) -> set[int]:
    """Return the ports on which a process takes connections."""
    sockets = process.net_connections("tcp")
    return {socket.laddr.port for socket in sockets if socket.status == psutil.CONN_LISTEN}


async def start(services: AsyncExitStack) -> str:
    """Start a sandbox that lives as long as `services`."""
    return await asyncio.to_thread(services.enter_context, local_sandbox())  # type: ignore[arg-type]


async def roll_out(
    policy: Policy,
    starts: Sequence[Start],
    config: RolloutConfig,
    *,
    group_size: int,
    seed: int,
    shares: dict[str, float],
    kill_after_replies: int | None = None,
) -> tuple[list[Group], dict[str, Any]]:
    """Roll out through a faulty proxy; return the groups, and what they and the proxy came to."""
    tasks, files = asyncio.all_tasks(), psutil.Process().num_fds()
    async with AsyncExitStack() as services:
        proxy = faulty_proxy(await start(services), shares, seed)
        killer = None
        async with (
            proxy as url,
            Timed(url, deadline_seconds=CALL_DEADLINE_SECONDS, grace_seconds=GRACE_SECONDS) as sandbox,
        ):
            if kill_after_replies is not None:
                killer = asyncio.ensure_future(kill_and_start_again(proxy, services, kill_after_replies))
            engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config)
            groups = await engine.run(policy.params, starts, group_size=group_size, seed=seed)
            if killer is not None:
                await killer
        await until(lambda: proxy.connections == 0, 10)
        connections = proxy.connections
    await until(lambda: asyncio.all_tasks() == tasks and psutil.Process().num_fds() <= files, 10)
    limits = decode_limits(config, -(-len(starts) // len(engine.loads)), group_size)
    episodes = [episode for group in groups for episode in group]
    return groups, {
        "stop_reasons": dict(Counter(str(episode.stop_reason) for episode in episodes)),
        "whole_groups": len(finished(groups)),
        "replies": proxy.replies,
        "lost": dict(proxy.lost),
        "service_errors": dict(sandbox.service_errors),
        "longest_call_seconds": round(sandbox.longest_seconds, 2),
        "longest_tool_seconds": round(max(episode.tool_seconds for episode in episodes), 2),
        "left_over": {
            "pages": sum(limits.num_pages - load.free_pages for load in engine.loads),
            "tasks": len(asyncio.all_tasks() - tasks),
            "connections": connections,
            "open_files": max(0, psutil.Process().num_fds() - files),
        },
    }


def are_same(groups: Sequence[Group], expected: Sequence[Group], column: str) -> bool:
    """Say whether all episodes that have ended have the tokens, or the log-probs, that they should have."""
    pairs = (pair for both in zip(groups, expected, strict=True) for pair in zip(*both, strict=True))
    return all(
        one.is_unfinished or getattr(one.ledger, column) == getattr(other.ledger, column) for one, other in pairs
    )


async def measure(
    policy: Policy,
    starts: Sequence[Start],
    config: RolloutConfig,
    *,
    group_size: int,
    seed: int,
    max_tool_seconds: float,
) -> dict[str, Any]:
    """Roll out without faults, with them, and with them and a limit; return what is printed."""
    how: dict[str, Any] = {"group_size": group_size, "seed": seed}
    expected, without = await roll_out(policy, starts, config, shares=NONE, **how)
    third = without["replies"] // 3
    found, faults = await roll_out(policy, starts, config, shares=SHARES, kill_after_replies=third, **how)
    limited = config.model_copy(update={"max_tool_seconds": max_tool_seconds})
    limited_groups, cut_off = await roll_out(policy, starts, limited, shares=SHARES, **how)
    for groups, figures in ((found, faults), (limited_groups, cut_off)):
        figures["same_tokens"] = are_same(groups, expected, "ids")
    faults["same_logprobs"] = are_same(found, expected, "sampled_logprobs")
    return {
        "episodes": len(starts) * group_size,
        "call_deadline_seconds": CALL_DEADLINE_SECONDS,
        "max_tool_seconds": max_tool_seconds,
        "without_faults": without,
        "faults": faults,
        "cut_off": cut_off,
    }


def starts_of(run: Path, config: RLConfig, engine: RolloutEngine, count: int) -> list[Start]:
    """Return the first environments, in seeded order, with the tools that the run's RL would show."""
    environments = list(RecordSource(run / "environments", Environment))
    random.Random(config.seed).shuffle(environments)
    mixed = (
        Start(one, mix_tools(one, irrelevant_per_band=config.irrelevant_per_band, seed=config.seed))
        for one in environments
    )
    return [start for start in mixed if engine.can_run(start)][:count]


async def measure_run(run: Path, policy_name: str, num_groups: int, seed: int, max_tool_seconds: float) -> dict:
    policy, config = load_policy(run / policy_name / "policy"), load_config(RLConfig, CONFIGS / "tiny_rl.toml")
    async with AsyncSandboxClient("http://unused") as sandbox:
        engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config.rollout)
        starts = starts_of(run, config, engine, num_groups)
    return await measure(
        policy, starts, config.rollout, group_size=config.group_size, seed=seed, max_tool_seconds=max_tool_seconds
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a quickstart that has ended")
    parser.add_argument("--policy", default="sft", choices=("sft", "rl"))
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tool-seconds", type=float, default=3.0)
    options = parser.parse_args()
    keep_compiled_programs()
    found = measure_run(options.run, options.policy, options.groups, options.seed, options.max_tool_seconds)
    print(json.dumps(asyncio.run(found)))
