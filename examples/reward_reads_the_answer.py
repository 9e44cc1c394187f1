"""A reward that reads the answer: half for the tool calls, half for a short final message that tells the truth.

    astra rl configs/tiny_rl.toml reward=examples.reward_reads_the_answer:calls_and_answer
    astra rescore runs/quickstart/rl --reward examples.reward_reads_the_answer:calls_and_answer

The paper's F1 compares tool replies with gold answers and never reads the final message. A reward is given the whole
episode (`FinishedEpisode` in astra_jax/episodes/finished.py lists its fields) and returns a finite number.
"""

from astra_jax.episodes.finished import FinishedEpisode
from astra_jax.episodes.rewards import f1_reward

MOST_WORDS = 60


def calls_and_answer(episode: FinishedEpisode) -> float:
    """Return the mean of F1 and 1 for an accurate, short message that rests on a tool's reply; in [0, 1].

    >>> calls_and_answer(FinishedEpisode(num_subtasks=1, final_text="It is 2150.", is_answer_accurate=True))
    0.0
    """
    is_short = len(episode.final_text.split()) <= MOST_WORDS
    is_grounded = episode.expectation != "answer" or any(call.ok for call in episode.calls)
    is_told = episode.is_answer_accurate and is_short and is_grounded
    return (f1_reward(episode) + is_told) / 2
