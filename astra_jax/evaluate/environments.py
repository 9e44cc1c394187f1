"""Held-out evaluation: a policy's episodes in environments it has never seen, and what they were worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from astra_jax.chat_format import Source
from astra_jax.model.qwen3 import Params
from astra_jax.rl.f1_reward import episode_reward, precision, recall
from astra_jax.rl.tool_mixing import mix_tools
from astra_jax.rollout.engine import Group, RolloutConfig, RolloutEngine, Start
from astra_jax.rollout.episode import Episode
from astra_jax.run_record import EVALUATION, RunRecord, digest_of_policy, digest_of_records, open_run
from synthesis.records import Environment, SimilarityBand


class EvaluationConfig(BaseModel):
    """How a policy is tried out on environments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0, lt=2**31)
    policy: Path
    """The policy folder to evaluate."""
    environments: Path
    """A record directory of environments that the policy has not been trained on."""
    out: Path
    rollout: RolloutConfig
    max_irrelevant_per_band: dict[SimilarityBand, int] = {}
    """K: distractors of each similarity band that an episode is shown."""
    episodes_per_environment: int = Field(default=1, gt=0)
    environments_at_once: int = Field(default=16, gt=0)


_SOURCES = (
    "astra_jax/chat_format.py",
    "astra_jax/evaluate/environments.py",
    "astra_jax/rl/f1_reward.py",
    "astra_jax/rl/tool_mixing.py",
    "astra_jax/rollout/engine.py",
    "astra_jax/rollout/episode.py",
    "synthesis/records.py",
)
"""Files that decide the figures."""


def open_evaluation(config: EvaluationConfig) -> RunRecord:
    """The record of the evaluation in `out`; refused if it was of something else, or something else is there."""
    return open_run(
        EVALUATION,
        config,
        config.out,
        product="figures.json",
        contents={
            "policy": digest_of_policy(config.policy),
            "environments": digest_of_records(config.environments),
        },
        may_change=(),
        sources=_SOURCES,
    )


@dataclass(frozen=True)
class HeldOutFigures:
    """Means over episodes, but for the last two, which are ratios of totals."""

    f1: float
    recall: float
    precision: float
    solved_fraction: float
    """Share of episodes that solved every sub-task."""
    tool_calls_per_episode: float
    tokens_per_turn: float
    """Sampled tokens per assistant message."""
    irrelevant_call_share: float
    """Share of all tool calls that went to a distractor; 0 where there was no call."""


async def evaluate_environments(
    engine: RolloutEngine,
    params: Params,
    environments: Sequence[Environment],
    config: EvaluationConfig,
    *,
    seed: int,
) -> tuple[HeldOutFigures, list[Group]]:
    """Run every environment and return the figures and the episodes.

    Raises:
        SandboxUnavailable: the sandbox is down; there are no figures then.
    """
    groups: list[Group] = []
    for first in range(0, len(environments), config.environments_at_once):
        starts = [
            Start(environment, mix_tools(environment, max_per_band=config.max_irrelevant_per_band, seed=seed))
            for environment in environments[first : first + config.environments_at_once]
        ]
        groups += await engine.run(params, starts, group_size=config.episodes_per_environment, seed=seed + first)
    return held_out_figures([episode for group in groups for episode in group]), groups


def held_out_figures(episodes: Sequence[Episode]) -> HeldOutFigures:
    """Sum up finished episodes.

    Raises:
        ValueError: there are none.
    """
    if not episodes:
        raise ValueError("expected at least one episode to sum up, found none")
    counts = [episode.counts for episode in episodes]
    num_calls = sum(len(episode.outcomes) for episode in episodes)
    num_irrelevant = sum(outcome.irrelevant for episode in episodes for outcome in episode.outcomes)
    num_turns = sum(episode.num_turns for episode in episodes)
    num_sampled = sum(source == Source.MODEL for episode in episodes for source in episode.ledger.sources)
    return HeldOutFigures(
        f1=_mean([episode_reward(episode) for episode in episodes]),
        recall=_mean([recall(each.num_solved, each.num_subtasks) for each in counts]),
        precision=_mean([precision(each.num_solved, each.num_tool_calls) for each in counts]),
        solved_fraction=_mean([float(each.num_solved == each.num_subtasks) for each in counts]),
        tool_calls_per_episode=num_calls / len(episodes),
        tokens_per_turn=num_sampled / num_turns,
        irrelevant_call_share=num_irrelevant / num_calls if num_calls else 0.0,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
