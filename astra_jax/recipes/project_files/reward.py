"""The reward of an episode, which rl.toml names; `FinishedEpisode` lists all that it may read."""

from astra_jax.episodes.finished import FinishedEpisode
from astra_jax.episodes.rewards import f1_reward


def calls_and_answer(episode: FinishedEpisode) -> float:
    """Return the mean of the paper's F1 and 1 if the last message tells the answer; in [0, 1]."""
    return (f1_reward(episode) + episode.is_answer_accurate) / 2
