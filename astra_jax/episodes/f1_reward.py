"""The reward of an episode: the F1 of solved sub-tasks (ASTRA, section on RL). Solve all, and call no tool in vain.

    n̂   sub-tasks solved: a tool that the sub-task names returned its gold answer; one call solves at most one
    n   sub-questions of the environment that need a tool call (`Environment.sub_tasks`)
    c   tool calls asked for, failed and malformed ones included; none in the reasoning or in a message cut off

Arguments are not compared, only what tools return. Where the ending is checked (a final state, a refusal, a question
back) n and c are one more, and n̂ too if the ending is right; the final message is read for a refusal or a question,
never for an answer. `synthesis/answers/counting.py` counts all three.

Another reward is tried by editing `episode_reward`. Evaluations show it as `reward`, beside the paper's `f1`.
"""

from __future__ import annotations

from astra_jax.episodes.episode import Episode

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


def episode_reward(episode: Episode) -> float:
    """Return the reward of a finished episode: F1 of its n̂, n and c."""
    return f1(**episode.counts._asdict())
