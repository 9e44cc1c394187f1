"""Where RL's signal stands out of its noise: what each kind of update gains at one distance from the policy.

    python scripts/gradient_signal.py [--run runs/quickstart] [--groups 128]

Rolls out groups of the run's SFT policy and takes the gradient of each. An update is made from one half of the groups,
its gain measured on the other half, at one mean squared change of the sampled tokens' log-probs; four random halves.
Gain per root of twice the Kullback-Leibler distance is printed: what a noisy run can keep goes with its square.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from astra_jax.checkpoints.policy import Policy, load_policy
from astra_jax.config import load_config
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import Group, RolloutEngine, Start
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.rl.advantage import is_valid_group
from astra_jax.rl.batch import make_rl_batch
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import rl_loss
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.record_io import RecordSource
from synthesis.records import Environment

MEAN_SQUARED_CHANGE = 0.005
HALVES = 4
Direction = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From the mean gradient and its root mean square, both [parameters]."""


async def valid_groups(policy: Policy, config: RLConfig, run: Path, count: int, url: str) -> list[ScoredGroup[Group]]:
    """Roll out environments in order until `count` groups have reward variance."""
    found: list[ScoredGroup[Group]] = []
    environments = RecordSource(run / "environments", Environment)
    async with AsyncSandboxClient(url) as sandbox:
        engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config.rollout)
        for first in range(0, len(environments), config.groups_per_rollout):
            chosen = [environments[i] for i in range(first, min(first + config.groups_per_rollout, len(environments)))]
            starts = [
                Start(each, mix_tools(each, irrelevant_per_band=config.irrelevant_per_band, seed=config.seed))
                for each in chosen
            ]
            for group in await engine.run(policy.params, starts, group_size=config.group_size, seed=first):
                rewards = tuple(map(episode_reward, group))
                if is_valid_group(rewards, min_reward_std=config.min_reward_std):
                    found.append(ScoredGroup(group, rewards, 0))
            if len(found) >= count:
                return found[:count]
    raise SystemExit(f"expected {count} groups with reward variance, found {len(found)}: ask for fewer by --groups")


def directions(places: Mapping[str, slice], size: int) -> dict[str, Direction]:
    """The updates that are compared."""

    def only(chosen: Callable[[str], bool], direction: Direction) -> Direction:
        mask = np.zeros(size, np.float32)
        for name, place in places.items():
            mask[place] = chosen(name)
        return lambda gradient, rms: mask * direction(gradient, rms)

    def plain(gradient: np.ndarray, rms: np.ndarray) -> np.ndarray:
        return gradient

    def adam(gradient: np.ndarray, rms: np.ndarray) -> np.ndarray:
        return gradient / (rms + 1e-8)

    matrices = sorted(name for name in places if name.endswith("proj"))
    return {
        "gradient": plain,
        "Adam": adam,
        "gradient, embedding": only(lambda name: name == "embedding", plain),
        "Adam, all norms": only(lambda name: name.endswith("norm"), adam),
        "Adam, final norm": only(lambda name: name == "final_norm", adam),
        **{f"gradient, {matrix}": only(lambda name, matrix=matrix: name == matrix, plain) for matrix in matrices},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="a finished quickstart")
    parser.add_argument("--groups", type=int, default=128)
    options = parser.parse_args()
    config = load_config(RLConfig, Path(__file__).parents[1] / "configs" / "tiny_rl.toml")
    policy = load_policy(options.run / "sft" / "policy")
    with local_sandbox(workers=2) as url:
        groups = asyncio.run(valid_groups(policy, config, options.run, options.groups, url))
    columns = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    flat, unravel = ravel_pytree(policy.params)
    objective = Objective(config.rollout.temperature, config.clip_epsilon, config.logprob_chunk_tokens)
    loss_of = functools.partial(rl_loss, model_config=policy.model_config, objective=objective)

    @jax.jit
    def gradient_sum(batch):  # type: ignore[no-untyped-def]
        gradient = jax.grad(lambda params: loss_of(params, batch)[0])(policy.params)
        return ravel_pytree(gradient)[0] * batch.loss_mask_BT.sum()

    batches = [make_rl_batch([group], length_bucket_tokens=columns, pad_id=policy.tokenizer.pad_id) for group in groups]
    tokens_per_group = np.mean([float(batch.loss_mask_BT.sum()) for batch in batches])
    gradients = np.stack([np.asarray(gradient_sum(batch)) for batch in batches]) / tokens_per_group
    mean, noise = gradients.mean(0), gradients.var(0, ddof=1).sum() / len(gradients)
    print(f"{len(groups)} groups: power of the mean gradient {(mean**2).sum():.3g}, of noise alone {noise:.3g}")

    probe = make_rl_batch(groups[::8], length_bucket_tokens=64, pad_id=policy.tokenizer.pad_id)
    sampled = np.asarray(probe.loss_mask_BT) > 0

    @jax.jit
    def logprobs(moved):  # type: ignore[no-untyped-def]
        return loss_of(unravel(moved), probe)[1]

    before = np.asarray(logprobs(flat))[sampled]
    places, start = {}, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(policy.params):
        places[path[-1].key] = slice(start, start + leaf.size)
        start += leaf.size
    for name, direction in directions(places, start).items():
        rng, gains = np.random.default_rng(0), []
        for _ in range(HALVES):
            half, other = np.array_split(rng.permutation(len(gradients)), 2)
            step = -direction(gradients[half].mean(0), np.sqrt((gradients[half] ** 2).mean(0)))
            step *= 1e-3 * np.linalg.norm(flat) / np.linalg.norm(step)
            change = np.asarray(logprobs(jnp.asarray(flat + step)))[sampled] - before
            step *= np.sqrt(MEAN_SQUARED_CHANGE / (change**2).mean())
            change = np.asarray(logprobs(jnp.asarray(flat + step)))[sampled] - before
            gains.append(-(gradients[other].mean(0) @ step) / np.sqrt((change**2).mean()))
        print(f"{name:24} {np.mean(gains):.4f} ± {np.std(gains) / np.sqrt(HALVES):.4f}", flush=True)


if __name__ == "__main__":
    main()
