"""The reward of an episode: the F1 of solved sub-tasks (ASTRA, section on RL), and rewards to compare it with.

F1 says: solve all, and call no tool in vain.

    n̂   sub-tasks solved: a tool that the sub-task names returned its gold answer; one call solves at most one
    n   sub-questions of the environment that need a tool call (`Environment.sub_tasks`)
    c   tool calls asked for, failed and malformed ones included; none in the reasoning or in a message cut off

Arguments are not compared, only what tools return. Where more is checked (a final state, a refusal, a question
back) n and c are one more, and n̂ too if it is right; messages without a call are read for a refusal or a question,
never for an answer. Where a tool is missing, n counts what the others allow: F1 is 1 for doing that and refusing the
rest, and 2 / (2 + k) for refusing at once where k sub-questions could have been answered.
`synthesis/answers/counting.py` counts all three.

The others are functions of the same counts and of little else (`EpisodeResult`), so that `astra rescore` can apply
them to logged episodes. A run names its own (`reward` in its config); one more is a function here and its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from astra_jax.episodes.episode import Episode
from synthesis.answers.counting import count_solved
from synthesis.answers.expectation import meets_expectation
from synthesis.records import SubQuestion

RewardName = Literal["f1", "recall", "precision", "call_budget", "partial_credit", "refusals", "f1_and_answer"]

PRECISION_EPSILON = 1e-6
"""ε of the precision's denominator: an episode without calls has precision 0 instead of 0/0."""


def recall(num_solved: int, num_subtasks: int) -> float:
    """Return r = n̂ / n, the share of sub-tasks solved; in [0, 1].

    Raises:
        ValueError: there is no sub-task, or more are solved than there are.

    >>> recall(1, 4)
    0.25
    """
    if not 0 <= num_solved <= num_subtasks or num_subtasks == 0:
        raise ValueError(
            f"expected 0 <= solved <= sub-tasks and at least one sub-task, found {num_solved}/{num_subtasks}"
        )
    return num_solved / num_subtasks


def precision(num_solved: int, num_tool_calls: int) -> float:
    """Return p = n̂ / (c + ε), the share of tool calls that solved a sub-task; in [0, 1].

    Raises:
        ValueError: more sub-tasks are solved than calls were made.

    >>> round(precision(2, 8), 4), precision(0, 0)
    (0.25, 0.0)
    """
    if not 0 <= num_solved <= num_tool_calls:
        raise ValueError(f"a call solves at most one sub-task, found {num_solved} solved by {num_tool_calls} calls")
    return num_solved / (num_tool_calls + PRECISION_EPSILON)


def f1(*, num_solved: int, num_subtasks: int, num_tool_calls: int) -> float:
    """Return 2pr / (p + r), and 0 where nothing was solved; in [0, 1].

    Recall alone praises calling everything, precision alone calling nothing; their harmonic mean praises neither.

    Raises:
        ValueError: as `recall` and `precision`.

    >>> round(f1(num_solved=2, num_subtasks=2, num_tool_calls=2), 4)
    1.0
    >>> round(f1(num_solved=2, num_subtasks=4, num_tool_calls=2), 4)
    0.6667
    >>> f1(num_solved=0, num_subtasks=3, num_tool_calls=9)
    0.0
    """
    r, p = recall(num_solved, num_subtasks), precision(num_solved, num_tool_calls)
    return 0.0 if num_solved == 0 else 2 * p * r / (p + r)


class EpisodeResult(NamedTuple):
    """What a reward can be made of."""

    num_solved: int
    """n̂."""
    num_subtasks: int
    """n."""
    num_tool_calls: int
    """c."""
    num_attempted: int
    """Sub-tasks that are not solved, though their tool was called for them: with other arguments, or it failed."""
    is_answer_accurate: bool
    """Whether the final message tells the gold answer, or refuses as it should."""
    must_refuse: bool
    """Whether a refusal is the right ending."""
    has_refused: bool
    """Whether the final message refuses."""


def result_of(episode: Episode) -> EpisodeResult:
    """Return what a finished episode's reward is made of."""
    returned = [(outcome.name, outcome.value) for outcome in episode.outcomes if outcome.ok]
    names = [outcome.name for outcome in episode.outcomes]
    num_attempted = 0
    by_tool: dict[str, list[SubQuestion]] = {}
    for sub_task in episode.environment.sub_tasks:
        if sub_task.call is not None:
            by_tool.setdefault(sub_task.call.name, []).append(sub_task)
    for name, sub_tasks in by_tool.items():
        num_solved = count_solved(sub_tasks, returned)
        num_attempted += min(len(sub_tasks), names.count(name)) - num_solved
    must_refuse = episode.environment.expectation == "refuse"
    return EpisodeResult(
        *episode.counts,
        num_attempted=num_attempted,
        is_answer_accurate=episode.is_answer_accurate,
        must_refuse=must_refuse,
        has_refused=episode.met_expectation if must_refuse else meets_expectation("refuse", episode.final_text),
    )


# --- the rewards; all in [0, 1] ---


def f1_reward(result: EpisodeResult) -> float:
    """Return F1 of n̂, n and c: the paper's reward.

    >>> round(f1_reward(EpisodeResult(1, 2, 2, 0, False, False, False)), 4)
    0.5
    """
    return f1(num_solved=result.num_solved, num_subtasks=result.num_subtasks, num_tool_calls=result.num_tool_calls)


def recall_reward(result: EpisodeResult) -> float:
    """Return r = n̂ / n: a call in vain costs nothing, so that calling everything is best.

    >>> recall_reward(EpisodeResult(1, 2, 30, 0, False, False, False))
    0.5
    """
    return recall(result.num_solved, result.num_subtasks)


def precision_reward(result: EpisodeResult) -> float:
    """Return p = n̂ / (c + ε): what is left undone costs nothing, so that one sure call is best.

    >>> round(precision_reward(EpisodeResult(1, 4, 1, 0, False, False, False)), 4)
    1.0
    """
    return precision(result.num_solved, result.num_tool_calls)


def call_budget_reward(result: EpisodeResult) -> float:
    """Return r · min(1, n / c): recall, scaled down by as much as the calls exceed those of the gold chain.

    >>> call_budget_reward(EpisodeResult(2, 2, 2, 0, True, False, False))
    1.0
    >>> call_budget_reward(EpisodeResult(2, 2, 8, 0, True, False, False))
    0.25
    """
    return recall_reward(result) * min(1.0, result.num_subtasks / max(1, result.num_tool_calls))


def partial_credit_reward(result: EpisodeResult) -> float:
    """Return 2ŝ / (n + c + ε) with ŝ = n̂ + a/2: F1 in which the right tool, called in vain, is half of a solution.

    >>> round(partial_credit_reward(EpisodeResult(1, 2, 2, 1, False, False, False)), 4)
    0.75
    """
    solved = result.num_solved + result.num_attempted / 2
    return 2 * solved / (result.num_subtasks + result.num_tool_calls + PRECISION_EPSILON)


def refusals_reward(result: EpisodeResult) -> float:
    """Return F1 where nothing is to be refused, and 0 if it was; else r for a refusal: what was done of what could be.

    Of F1 a refusal after a call that was tried is worth less than one at once; here trying is free.

    >>> refusals_reward(EpisodeResult(1, 1, 4, 0, True, True, True))
    1.0
    >>> refusals_reward(EpisodeResult(1, 2, 1, 0, True, True, True))
    0.5
    >>> refusals_reward(EpisodeResult(2, 2, 2, 0, False, False, True))
    0.0
    """
    if result.must_refuse:
        return recall_reward(result) if result.has_refused else 0.0
    return 0.0 if result.has_refused else f1_reward(result)


def f1_and_answer_reward(result: EpisodeResult) -> float:
    """Return the mean of F1 and whether the final message is right: F1 alone says nothing of what the user is told.

    >>> round(f1_and_answer_reward(EpisodeResult(1, 1, 1, 0, False, False, False)), 4)
    0.5
    """
    return (f1_reward(result) + result.is_answer_accurate) / 2


REWARDS: Final[Mapping[RewardName, Callable[[EpisodeResult], float]]] = {
    "f1": f1_reward,
    "recall": recall_reward,
    "precision": precision_reward,
    "call_budget": call_budget_reward,
    "partial_credit": partial_credit_reward,
    "refusals": refusals_reward,
    "f1_and_answer": f1_and_answer_reward,
}
"""By the name that configs and commands know them by."""


def episode_reward(episode: Episode, reward: RewardName = "f1") -> float:
    """Return the reward of a finished episode."""
    return REWARDS[reward](result_of(episode))
