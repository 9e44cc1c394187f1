"""The reward of an episode: the F1 of solved sub-tasks (ASTRA, section on RL), and others beside it.

F1 rewards an episode that solves all and calls no tool in vain. `synthesis/answers/counting.py` counts

    n̂   sub-tasks solved: a tool that the sub-task names returned its gold answer; one call solves at most one
    n   sub-questions of the environment that need a tool call (`Environment.sub_tasks`)
    c   tool calls asked for, failed and malformed ones included; none in the reasoning or in a message cut off

If the environment checks the ending (a final state, a refusal, a question back), n and c are one more, and so is n̂ if
the ending is right. If a tool is missing, n counts the refusal and the k sub-questions that the other tools can answer:
F1 is 1 for answering these and refusing the rest, and 2 / (2 + k) for refusing at once.

A reward is a function of a `FinishedEpisode` that returns a finite number. A run names its reward in its config: one
of `REWARDS`, or `MODULE:FUNCTION` of a file of the user (docs/variants.md). `astra rescore` applies either to logged
episodes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from astra_jax.config import ConfigError
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.finished import FinishedEpisode
from astra_jax.named_functions import function_named

Reward = Callable[[FinishedEpisode], float]

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

    >>> round(f1(num_solved=2, num_subtasks=4, num_tool_calls=2), 4)
    0.6667
    """
    r, p = recall(num_solved, num_subtasks), precision(num_solved, num_tool_calls)
    return 0.0 if num_solved == 0 else 2 * p * r / (p + r)


def episode_reward(episode: Episode) -> float:
    """Return the paper's reward of an episode in memory, F1; evaluations report it for every run."""
    return f1(**episode.counts._asdict())


def f1_reward(episode: FinishedEpisode) -> float:
    """Return F1 of n̂, n and c: the paper's reward."""
    return f1(num_solved=episode.num_solved, num_subtasks=episode.num_subtasks, num_tool_calls=episode.num_tool_calls)


def refusals_reward(episode: FinishedEpisode) -> float:
    """Return F1, or 0 for a wrong refusal; where a refusal is right, return r for refusing and 0 for not refusing.

    By F1 a refusal after a call is worth less than a refusal at once; here the call is free.

    >>> refused = FinishedEpisode(expectation="refuse", is_answer_accurate=True, num_solved=1, num_subtasks=2)
    >>> refusals_reward(refused), refusals_reward(refused.model_copy(update={"is_answer_accurate": False}))
    (0.5, 0.0)
    >>> refusals_reward(FinishedEpisode(final_text="I cannot look that up.", num_solved=2, num_subtasks=2))
    0.0
    """
    if episode.must_refuse:
        return recall(episode.num_solved, episode.num_subtasks) if episode.has_refused else 0.0
    return 0.0 if episode.has_refused else f1_reward(episode)


REWARDS: Final[Mapping[str, Reward]] = {
    "f1": f1_reward,
    # A call in vain costs nothing, so that calling everything is best.
    "recall": lambda episode: recall(episode.num_solved, episode.num_subtasks),
    # Sub-tasks left undone cost nothing, so that one sure call is best.
    "precision": lambda episode: precision(episode.num_solved, episode.num_tool_calls),
    "refusals": refusals_reward,
    # F1 alone ignores the final message.
    "f1_and_answer": lambda episode: (f1_reward(episode) + episode.is_answer_accurate) / 2,
}
"""Built-in rewards by their names in configs and commands; all are in [0, 1]."""


def reward_named(name: str, folder: Path | None = None) -> Reward:
    """Return the reward that a config names; `folder` is the folder of the config.

    Raises:
        ValueError: there is no such function, or it does not take one episode.
    """
    reward = function_named(name, REWARDS, folder)
    try:
        inspect.signature(reward).bind(FinishedEpisode())
    except (TypeError, ValueError) as error:
        raise ValueError(f"a reward takes one argument, the episode ({error}): write def reward(episode)") from error
    return reward


def earned(reward: str, episode: FinishedEpisode) -> float:
    """Return the reward of an episode by the name of the reward.

    Raises:
        ConfigError: the function returned no finite number.
    """
    value = reward_named(reward)(episode)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"reward {reward} returned {value!r} for an episode in environment {episode.environment_id}; return a "
            "finite number"
        )
    return number
