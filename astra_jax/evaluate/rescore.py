"""Scores logged episodes by other rewards, without model, tools or sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from astra_jax.episodes.log import EpisodeLogError, LoggedEpisode, read_episodes
from astra_jax.episodes.rewards import earned


class Rescored(NamedTuple):
    """One log."""

    log: Path
    num_episodes: int
    logged: float
    """Mean reward as the run had it."""
    means: dict[str, float]
    """Mean of each reward that was asked for."""


def all_logs(run: Path) -> list[Path]:
    """Return every episode log of a run's folder, of training steps in order; or `run` itself where it is a log.

    Raises:
        EpisodeLogError: there is none.
    """
    if run.is_file():
        return [run]
    logs = [*run.glob("episodes.jsonl"), *sorted(run.glob("episodes/step_*.jsonl"))]
    if not logs:
        raise EpisodeLogError(f"expected a log, or episodes.jsonl or episodes/step_*.jsonl in {run}, found none")
    return logs


def with_reward(episodes: Sequence[LoggedEpisode], reward: str) -> list[LoggedEpisode]:
    """Return the episodes of a log with another reward.

    Raises:
        ConfigError: the reward is no finite number.
    """
    return [each.model_copy(update={"reward": earned(reward, each)}) for each in episodes]


def rescore(path: Path, rewards: Sequence[str]) -> Rescored:
    """Apply each of `rewards` to the episodes of a log.

    Raises:
        EpisodeLogError: the log is empty or damaged.
        ConfigError: a reward is no finite number.
    """
    episodes = read_episodes(path)
    if not episodes:
        raise EpisodeLogError(f"expected an episode in {path}, found none")
    return Rescored(
        path,
        len(episodes),
        logged=_mean_reward(episodes),
        means={reward: _mean_reward(with_reward(episodes, reward)) for reward in rewards},
    )


def _mean_reward(episodes: Sequence[LoggedEpisode]) -> float:
    return sum(episode.reward for episode in episodes) / len(episodes)
