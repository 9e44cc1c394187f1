"""Rollouts of a quickstart's policy on this CPU, tools and sandbox included: one JSON line.

    python scripts/bench_rollouts.py runs/quickstart [--policy sft] [--groups 40] [--at-once 20] [--own-pace]
        [--kv-share 0.5] [--host-share 0.5]

They are those of the quickstart's RL: groups of 8, 20 at once, 288 + 256 tokens, five turns, temperature 0.5.
Printed are of a second pass, in which nothing is compiled any more: episodes a second, how many of the row-steps that
programs ran for sampled a token, how many given tokens were read for each distinct one, and digests of all tokens and
of all log-probs: two runs have the same ones, and those of the tokens are any engine's that is right. Of both passes:
how many shapes calls had, and how many programs were compiled for them.
`logprob_gap` says how far the sampled log-probs are from those of the full forward pass on the same tokens, in nats:
what a learner sees of the rounding of cached keys and values.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import time
from pathlib import Path

import jax
import numpy as np

from astra_jax.checkpoints.policy import Policy, load_policy
from astra_jax.cli.compile_cache import keep_compiled_programs
from astra_jax.config import CONFIGS, load_config
from astra_jax.engine.interface import Load
from astra_jax.episodes.rollout import Group, RolloutEngine, Start
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import bind
from astra_jax.rl.config import RLConfig
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.record_io import RecordSource
from synthesis.records import Environment

_ROWS = 32


def programs_compiled_from_now_on() -> list[str]:
    """Return a list that grows by one for each program that JAX compiles or finds on disk."""
    compiled: list[str] = []

    def note(event: str, _: float, **__: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    return compiled


def distinct_given_tokens(groups: list[Group]) -> int:
    """Return how many tokens had to be read at least: a prompt once a group, and what was given in each turn."""
    given = 0
    for group in groups:
        given += group[0].ledger.num_prompt_tokens - 1
        for episode in group:
            ledger = episode.ledger
            given += sum(not sampled for sampled in ledger.loss_mask[ledger.num_prompt_tokens :])
    return given


def logprob_gap(policy: Policy, groups: list[Group], temperature: float) -> dict[str, float]:
    """Return mean, 95th percentile and maximum of |sampled log-prob − log-prob of the full forward pass|."""

    @jax.jit
    def logprobs(tokens_BT: jax.Array, positions_BT: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
        model = bind(policy.model_config, policy.params)
        hidden_BTD = model(tokens_BT[:, :-1], positions_BT[:, :-1], segment_ids_BT[:, :-1])
        return token_logprobs(hidden_BTD / temperature, model.output_embedding, tokens_BT[:, 1:])

    ledgers = [episode.ledger for group in groups for episode in group]
    longest, apart = max(len(ledger.ids) for ledger in ledgers), []
    for first in range(0, len(ledgers), _ROWS):
        rows = ledgers[first : first + _ROWS]
        tokens_BT, sampled_BT = np.zeros((2, _ROWS, longest), np.int32)
        of_sampler_BT = np.zeros((_ROWS, longest), np.float32)
        for row, ledger in enumerate(rows):
            count = len(ledger.ids)
            tokens_BT[row, :count], sampled_BT[row, :count] = ledger.ids, ledger.loss_mask
            of_sampler_BT[row, :count] = ledger.sampled_logprobs
        positions_BT = np.broadcast_to(np.arange(longest), tokens_BT.shape)
        of_learner_BT = np.asarray(logprobs(tokens_BT, positions_BT, np.ones_like(tokens_BT)))
        apart.append(np.abs(of_learner_BT - of_sampler_BT[:, 1:])[sampled_BT[:, 1:] == 1])
    gaps = np.concatenate(apart)
    found = {"mean": gaps.mean(), "p95": np.quantile(gaps, 0.95), "max": gaps.max()}
    return {name: float(f"{gap:.3g}") for name, gap in found.items()}


async def measure(
    run: Path, policy_name: str, num_groups: int, at_once: int, rollout: dict[str, object], url: str
) -> dict:
    policy, config = load_policy(run / policy_name / "policy"), load_config(RLConfig, CONFIGS / "tiny_rl.toml")
    limits = config.rollout.model_copy(update=rollout)
    async with AsyncSandboxClient(url) as sandbox:
        engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, limits)
        environments = list(RecordSource(run / "rl_environments", Environment))
        random.Random(config.seed).shuffle(environments)
        starts = [
            Start(one, mix_tools(one, irrelevant_per_band=config.irrelevant_per_band, seed=config.seed))
            for one in environments
        ]
        starts = [start for start in starts if engine.can_run(start)][:num_groups]
        compiled = programs_compiled_from_now_on()
        for _ in range(2):
            groups: list[Group] = []
            loads: list[Load] = []
            started, cpu_started = time.monotonic(), time.process_time()
            for first in range(0, len(starts), at_once):
                chosen = starts[first : first + at_once]
                groups += await engine.run(policy.params, chosen, group_size=config.group_size, seed=first)
                loads += engine.loads
            seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started
    num_episodes, num_compiled = sum(map(len, groups)), len(compiled)
    return {
        "episodes": num_episodes,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "episodes_per_second": round(num_episodes / seconds, 1),
        "useful_row_steps": round(sum(x.sampled_tokens for x in loads) / sum(x.row_steps for x in loads), 3),
        "read_per_distinct_token": round(sum(x.read_tokens for x in loads) / distinct_given_tokens(groups), 3),
        "shapes": max(load.programs for load in loads),
        "compiled": num_compiled,
        "tokens": _digest([episode.ledger.ids for group in groups for episode in group]),
        "logprob_gap": logprob_gap(policy, groups, config.rollout.temperature),
        "logprobs": _digest([episode.ledger.sampled_logprobs for group in groups for episode in group]),
    }


def _digest(columns: list[list]) -> str:
    return hashlib.md5(json.dumps(columns).encode(), usedforsecurity=False).hexdigest()[:8]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a quickstart that has ended")
    parser.add_argument("--policy", default="sft", choices=("sft", "rl"))
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--own-pace", action="store_true", help="rollout.reproducible = false")
    parser.add_argument("--kv-share", type=float, default=1.0, help="rollout.kv_share")
    options = parser.parse_args()
    rollout = {
        "reproducible": not options.own_pace,
        "kv_share": options.kv_share,
    }
    keep_compiled_programs()
    with local_sandbox() as url:
        found = asyncio.run(measure(options.run, options.policy, options.groups, options.at_once, rollout, url))
    print(json.dumps(found))
