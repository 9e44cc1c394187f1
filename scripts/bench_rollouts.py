"""Rollouts of a quickstart's policy on this CPU, tools and sandbox included: one JSON line.

    python scripts/bench_rollouts.py runs/quickstart [--policy sft] [--groups 32] [--at-once 8] [--own-pace]

They are those of the quickstart's RL: groups of 8, 384 + 160 tokens, three turns, temperature 1. Printed are of a
second pass, in which nothing is compiled any more: episodes a second, how many of the row-steps that programs ran for
sampled a token, how many given tokens were read for each distinct one, how many shapes were compiled, and digests of
all tokens and of all log-probs: two runs have the same ones, and those of the tokens are any engine's that is right.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import time
from pathlib import Path

from astra_jax.checkpoints.policy import load_policy
from astra_jax.cli.compile_cache import keep_compiled_programs
from astra_jax.config import CONFIGS, load_config
from astra_jax.engine.interface import Load
from astra_jax.episodes.rollout import Group, RolloutEngine, Start
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.rl.config import RLConfig
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.record_io import RecordSource
from synthesis.records import Environment


def distinct_given_tokens(groups: list[Group]) -> int:
    """Return how many tokens had to be read at least: a prompt once a group, and what was given in each turn."""
    given = 0
    for group in groups:
        given += group[0].ledger.num_prompt_tokens - 1
        for episode in group:
            ledger = episode.ledger
            given += sum(not sampled for sampled in ledger.loss_mask[ledger.num_prompt_tokens :])
    return given


async def measure(run: Path, policy_name: str, num_groups: int, at_once: int, own_pace: bool, url: str) -> dict:
    policy, config = load_policy(run / policy_name / "policy"), load_config(RLConfig, CONFIGS / "tiny_rl.toml")
    limits = config.rollout.model_copy(update={"reproducible": not own_pace})
    async with AsyncSandboxClient(url) as sandbox:
        engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, limits)
        environments = list(RecordSource(run / "environments", Environment))
        random.Random(config.seed).shuffle(environments)
        starts = [
            Start(one, mix_tools(one, irrelevant_per_band=config.irrelevant_per_band, seed=config.seed))
            for one in environments
        ]
        starts = [start for start in starts if engine.can_run(start)][:num_groups]
        for _ in range(2):
            groups: list[Group] = []
            loads: list[Load] = []
            started, cpu_started = time.monotonic(), time.process_time()
            for first in range(0, len(starts), at_once):
                chosen = starts[first : first + at_once]
                groups += await engine.run(policy.params, chosen, group_size=config.group_size, seed=first)
                loads += engine.loads
            seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started
    num_episodes = sum(map(len, groups))
    return {
        "episodes": num_episodes,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "episodes_per_second": round(num_episodes / seconds, 1),
        "useful_row_steps": round(sum(x.sampled_tokens for x in loads) / sum(x.row_steps for x in loads), 3),
        "read_per_distinct_token": round(sum(x.read_tokens for x in loads) / distinct_given_tokens(groups), 3),
        "programs": max(load.programs for load in loads),
        "tokens": _digest([episode.ledger.ids for group in groups for episode in group]),
        "logprobs": _digest([episode.ledger.sampled_logprobs for group in groups for episode in group]),
    }


def _digest(columns: list[list]) -> str:
    return hashlib.md5(json.dumps(columns).encode(), usedforsecurity=False).hexdigest()[:8]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a quickstart that has ended")
    parser.add_argument("--policy", default="sft", choices=("sft", "rl"))
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--own-pace", action="store_true", help="rollout.reproducible = false")
    options = parser.parse_args()
    keep_compiled_programs()
    with local_sandbox() as url:
        found = asyncio.run(
            measure(options.run, options.policy, options.groups, options.at_once, options.own_pace, url)
        )
    print(json.dumps(found))
