"""The Python interface: a policy, environments, and episodes of the one in the others.

>>> import astra_jax
>>> astra_jax.roll_out.__module__
'astra_jax.recipes.interface'
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from astra_jax.checkpoints import policy as policies
from astra_jax.checkpoints.policy import Policy
from astra_jax.config import ConfigError
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.finished import FinishedEpisode, finished_episode
from astra_jax.episodes.rewards import earned, reward_named
from astra_jax.episodes.rollout import EvaluationRollout, RolloutEngine, Start
from astra_jax.episodes.tool_mixing import mix_tools
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.answers.counting import has_sub_task
from synthesis.record_io import RecordSource
from synthesis.records import Environment, SimilarityBand

NO_DISTRACTORS: Final[Mapping[SimilarityBand, int]] = {}


@dataclass(frozen=True)
class RolledOut:
    """One episode: what was said and done, its tokens, and its reward."""

    episode: FinishedEpisode
    reward: float
    ids: list[int]
    """Tokens of the whole episode, prompt first."""
    is_sampled: np.ndarray
    """Whether the policy sampled each token [T]; the others are of the prompt, the template or a tool."""
    logprobs: list[float]
    """The log-prob with which each token was sampled; 0 for the others."""


def load_policy(folder: str | Path) -> Policy:
    """Read a policy folder onto the first device: `params`, `model_config` and `tokenizer`.

    Raises:
        CheckpointError: the weights are missing or damaged.
        TokenizerError: the tokenizer is missing or is not a Qwen3 one.
    """
    return policies.load_policy(Path(folder))


def load_environments(folder: str | Path) -> list[Environment]:
    """Read a record directory of environments.

    Raises:
        RecordDirectoryError: it is none, or it is damaged.
    """
    return list(RecordSource(Path(folder), Environment))


def roll_out(
    policy: Policy,
    environments: Sequence[Environment],
    *,
    episodes: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    reward: str = "f1",
    distractors: Mapping[SimilarityBand, int] = NO_DISTRACTORS,
    max_prompt_tokens: int = 4096,
    max_response_tokens: int = 1024,
    max_turns: int = 8,
    sandbox_url: str | None = None,
) -> list[list[RolledOut]]:
    """Run a policy in environments and return its episodes, those of each environment together.

    The same arguments give the same tokens. A sandbox is started for the call unless `sandbox_url` names one.

    Args:
      episodes: in each environment.
      temperature: 0 takes the likeliest token.
      reward: a built-in one, or `MODULE:FUNCTION` of your own (docs/variants.md).
      distractors: irrelevant tools of each similarity band that an environment's tools are mixed with, at most.

    Raises:
        PromptTooLong: an environment does not fit into `max_prompt_tokens`.
        ConfigError: the limits exceed the model's context, there is no such reward, or an environment has no sub-task.
        SandboxUnavailable: the sandbox does not answer, or does not start.
    """
    try:
        reward_named(reward)
    except ValueError as error:
        raise ConfigError(f"reward: {error}") from None
    if empty := [each.id for each in environments if not has_sub_task(each)]:
        raise ConfigError(f"nothing is to be solved in {', '.join(empty)}; leave them out")
    limits = EvaluationRollout(
        max_prompt_tokens=max_prompt_tokens,
        max_response_tokens=max_response_tokens,
        max_turns=max_turns,
        temperature=temperature,
    )

    async def run(url: str) -> list[list[RolledOut]]:
        async with AsyncSandboxClient(url) as sandbox:
            engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, limits)
            starts = [Start(each, mix_tools(each, irrelevant_per_band=distractors, seed=seed)) for each in environments]
            groups = await engine.run(policy.params, starts, group_size=episodes, seed=seed)
        return [[_rolled_out(episode, policy, reward) for episode in group] for group in groups]

    started = local_sandbox() if sandbox_url is None else contextlib.nullcontext(sandbox_url)
    # In a thread of its own, since a notebook has an event loop that runs already.
    with started as url, ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run(url)).result()


def _rolled_out(episode: Episode, policy: Policy, reward: str) -> RolledOut:
    finished, ledger = finished_episode(episode, policy.tokenizer), episode.ledger
    return RolledOut(finished, earned(reward, finished), ledger.ids, ledger.loss_mask > 0, ledger.sampled_logprobs)
