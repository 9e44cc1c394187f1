"""Figures of finished episodes: the paper's F1, and those that are reported beside it.

    recall         r = n̂ / n          share of sub-tasks solved
    precision      p = n̂ / (c + ε)    share of tool calls that solved one
    f1             2pr / (p + r)
    solved_fraction, answer_accuracy       share of episodes that solve all; whose final message tells the gold answer
    tool_calls_per_episode, tokens_per_turn             calls; sampled tokens per assistant message
    irrelevant_call_share, invalid_call_share, failed_call_share      calls to a distractor; that no tool could take,
                                           the policy's mistakes; that a tool took and answered with an error

n̂, n and c are counted from tool outputs (`answers.counting`): F1 says nothing of the final message, which has a
figure of its own, `answer_accuracy`. These formulas are the paper's, even if a run names another reward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from astra_jax.chat.format import Source
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.rewards import f1, precision, recall
from sandbox.client import ServiceError

Terms: TypeAlias = dict[str, tuple[float, float]]
"""Name of a figure to its numerator and denominator."""


def terms_of(episode: Episode) -> Terms:
    """Return the numerator and the denominator that a finished episode adds to each figure but the reward."""
    counts, outcomes = episode.counts, episode.outcomes
    num_calls = len(outcomes)
    return {
        "f1": (f1(**counts._asdict()), 1),
        "recall": (recall(counts.num_solved, counts.num_subtasks), 1),
        "precision": (precision(counts.num_solved, counts.num_tool_calls), 1),
        "solved_fraction": (counts.num_solved == counts.num_subtasks, 1),
        "answer_accuracy": (episode.is_answer_accurate, 1),
        "tool_calls_per_episode": (num_calls, 1),
        # A program that learns nothing has no tokens, so it has no figure of them.
        "tokens_per_turn": (num_sampled_tokens(episode), episode.num_turns if episode.ledger.ids else 0),
        "irrelevant_call_share": (num_irrelevant_calls(episode), num_calls),
        "invalid_call_share": (sum(not outcome.is_valid for outcome in outcomes), num_calls),
        "failed_call_share": (sum(outcome.is_valid and not outcome.ok for outcome in outcomes), num_calls),
    }


def episode_figures(episodes: Sequence[Episode], rewards: Sequence[float]) -> dict[str, float]:
    """Return the figures of finished episodes, and as `reward` the mean of their rewards; shares are 0 without a call.

    Raises:
        ValueError: there are none.
    """
    if not episodes:
        raise ValueError("there is no episode to sum up; pass at least one")
    of_each = [terms_of(episode) for episode in episodes]
    sums = {
        name: [sum(column) for column in zip(*(terms[name] for terms in of_each), strict=True)] for name in of_each[0]
    }
    # Ratios of totals: a mean of ratios would let an episode of one turn weigh as much as one of thirty.
    figures = {name: above / max(1, below) for name, (above, below) in sums.items()}
    return {**figures, "reward": sum(rewards) / len(rewards)}


def call_errors(episodes: Iterable[Episode]) -> Counter[str]:
    """Count failed calls by name: `model_errors_KIND` if the call was wrong, `tool_errors_KIND` if the tool was."""
    return Counter(
        f"{'tool' if outcome.is_valid else 'model'}_errors_{outcome.error_kind}"
        for episode in episodes
        for outcome in episode.outcomes
        if not outcome.ok
    )


def service_errors(now: Mapping[ServiceError, int], before: Mapping[ServiceError, int]) -> Counter[str]:
    """Count the attempts that the sandbox gave no whole reply to between two looks at its client, by name."""
    return Counter({f"service_errors_{kind}": count for kind, count in (Counter(now) - Counter(before)).items()})


def num_sampled_tokens(episode: Episode) -> int:
    """Return how many tokens the policy wrote."""
    return sum(source == Source.MODEL for source in episode.ledger.sources)


def num_irrelevant_calls(episode: Episode) -> int:
    """Return how many tool calls went to a distractor."""
    return sum(outcome.irrelevant for outcome in episode.outcomes)
