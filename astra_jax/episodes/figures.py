"""What finished episodes come to: the paper's F1, and the figures that are reported beside it.

    recall         r = n̂ / n          share of sub-tasks solved
    precision      p = n̂ / (c + ε)    share of tool calls that solved one
    f1             2pr / (p + r)

n̂, n and c are counted from tool outputs (`answers.counting`): F1 says nothing of the final message, which has a
figure of its own, `answer_accuracy`. These formulas are the paper's, whatever a run names as its reward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from astra_jax.chat.format import Source
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.rewards import f1, precision, recall
from sandbox.client import ServiceError


@dataclass(frozen=True)
class EpisodeFigures:
    """Means over episodes, but for `tokens_per_turn` and shares of calls, which are ratios of totals."""

    f1: float
    """The paper's, from n̂, n and c, whatever the reward is."""
    recall: float
    precision: float
    solved_fraction: float
    """Share of episodes that solved every sub-task."""
    answer_accuracy: float
    """Share of episodes whose final message tells the gold answer (`synthesis.answers.final_answer`)."""
    reward: float
    """What the run that rolled them out names as its reward; evaluations: F1."""
    tool_calls_per_episode: float
    tokens_per_turn: float
    """Sampled tokens per assistant message."""
    irrelevant_call_share: float
    """Share of all tool calls that went to a distractor; 0 where there was no call."""
    invalid_call_share: float
    """Share of all tool calls that no tool could take: the policy's mistakes; 0 where there was no call."""
    failed_call_share: float
    """Share of all tool calls that a tool could take and answered with an error; 0 where there was no call."""


def episode_figures(episodes: Sequence[Episode], rewards: Sequence[float]) -> EpisodeFigures:
    """Sum up finished episodes and their rewards.

    Raises:
        ValueError: there are none.
    """
    if not episodes:
        raise ValueError("expected at least one episode to sum up, found none")
    counts = [episode.counts for episode in episodes]
    outcomes = [outcome for episode in episodes for outcome in episode.outcomes]
    num_calls = len(outcomes)
    num_turns = sum(episode.num_turns for episode in episodes)
    return EpisodeFigures(
        f1=_mean([f1(**each._asdict()) for each in counts]),
        recall=_mean([recall(each.num_solved, each.num_subtasks) for each in counts]),
        precision=_mean([precision(each.num_solved, each.num_tool_calls) for each in counts]),
        solved_fraction=_mean([float(each.num_solved == each.num_subtasks) for each in counts]),
        answer_accuracy=_mean([float(episode.is_answer_accurate) for episode in episodes]),
        reward=_mean(rewards),
        tool_calls_per_episode=num_calls / len(episodes),
        # Ratios of totals: a mean of ratios would let an episode of one turn weigh as much as one of thirty.
        tokens_per_turn=sum(map(num_sampled_tokens, episodes)) / num_turns,
        irrelevant_call_share=sum(outcome.irrelevant for outcome in outcomes) / max(1, num_calls),
        invalid_call_share=sum(not outcome.is_valid for outcome in outcomes) / max(1, num_calls),
        failed_call_share=sum(outcome.is_valid and not outcome.ok for outcome in outcomes) / max(1, num_calls),
    )


def call_errors(episodes: Iterable[Episode]) -> Counter[str]:
    """Count the calls that failed: `model_errors_KIND` where the call was wrong, `tool_errors_KIND` where a tool was.

    What did not happen has no name.
    """
    return Counter(
        f"{'tool' if outcome.is_valid else 'model'}_errors_{outcome.error_kind}"
        for episode in episodes
        for outcome in episode.outcomes
        if not outcome.ok
    )


def service_errors(now: Mapping[ServiceError, int], before: Mapping[ServiceError, int]) -> Counter[str]:
    """Count the attempts that the sandbox gave no whole reply to between two looks at its client, by name.

    >>> service_errors({"http_429": 3, "reply_cut": 1}, before={"http_429": 1, "reply_cut": 1})
    Counter({'service_errors_http_429': 2})
    """
    return Counter({f"service_errors_{kind}": count for kind, count in (Counter(now) - Counter(before)).items()})


def num_sampled_tokens(episode: Episode) -> int:
    """Return how many tokens the policy wrote."""
    return sum(source == Source.MODEL for source in episode.ledger.sources)


def num_irrelevant_calls(episode: Episode) -> int:
    """Return how many tool calls went to a distractor."""
    return sum(outcome.irrelevant for outcome in episode.outcomes)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
