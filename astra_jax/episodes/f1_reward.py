"""The reward of an episode: the F1 of solved sub-tasks (ASTRA, section on RL). Solve all, and call no tool in vain.

Another reward is tried by editing this function. Evaluations show it as `reward`, beside the paper's `f1`.
"""

from __future__ import annotations

from astra_jax.episodes.episode import Episode
from astra_jax.episodes.figures import f1


def episode_reward(episode: Episode) -> float:
    """R = 2pr / (p + r) of a finished episode; the formula, with r and p, stands in `rollout.figures`."""
    return f1(**episode.counts._asdict())
