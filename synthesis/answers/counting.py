"""The counts of the F1 reward: solved sub-tasks, all sub-tasks, and tool calls.

Decided: docs/decisions/rl.md, “A sub-task is solved by its own tool, and a call solves at most one”.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synthesis.answers.same_answer import is_answered
from synthesis.answers.state_conditions import ends_as_asked
from synthesis.records import Environment, JsonObject, JsonValue, SubQuestion


def is_solved(sub_task: SubQuestion, tool: str, value: JsonValue) -> bool:
    """Say whether the value that `tool` returned solves a sub-task.

    It does if `tool` is the tool of the sub-task's gold call, and the same answer as the gold one stands in the value
    at the sub-task's path. Synthesis, `astra records verify` and the reward share this rule.
    """
    is_own = sub_task.call is not None and tool == sub_task.call.name
    return is_own and is_answered(sub_task, value)


def count_solved(sub_tasks: Sequence[SubQuestion], outcomes: Sequence[tuple[str, JsonValue]]) -> int:
    """Count the sub-tasks that an episode solved (n̂ of the F1 reward).

    `outcomes` are (tool name, returned value) of the episode's successful calls in order. A sub-task counts once, and
    one call solves at most one sub-task, so precision never exceeds 1.

    >>> from synthesis.records import ToolCall
    >>> call = ToolCall(id="1", name="population", arguments={"city": "Arles"})
    >>> q = SubQuestion(id="q1", question="How many people live in Arles?", answer=50968, call=call)
    >>> count_solved([q], [("population", 50968.0), ("population", 50968)])
    1
    >>> count_solved([q], [("population", "error code 50968")])
    0
    """
    return sum(solved is not None for solved in solved_by(sub_tasks, outcomes))


def solved_by(sub_tasks: Sequence[SubQuestion], outcomes: Sequence[tuple[str, JsonValue]]) -> list[int | None]:
    """Return for each successful call the place of the sub-task that it solved; None if it solved none."""
    open_places = list(range(len(sub_tasks)))
    found: list[int | None] = []  # the first match is enough: answers are apart (`proving.proof.check_apart`)
    for tool, value in outcomes:
        found.append(next((place for place in open_places if is_solved(sub_tasks[place], tool, value)), None))
        open_places = [place for place in open_places if place != found[-1]]
    return found


class EpisodeCounts(NamedTuple):
    """The counts n̂, n and c of an episode's F1 reward."""

    num_solved: int
    num_subtasks: int
    num_tool_calls: int


def has_sub_task(environment: Environment) -> bool:
    """Say whether there is anything to solve: a call to make, or an ending that is checked."""
    return bool(environment.sub_tasks) or environment.expectation != "answer" or environment.final_state is not None


def count_episode(
    environment: Environment,
    outcomes: Sequence[tuple[str, JsonValue]],
    *,
    num_tool_calls: int,
    final_state: JsonObject | None,
    met_expectation: bool,
) -> EpisodeCounts:
    """Count an episode for the F1 reward.

    `outcomes` are (tool name, value) of its successful calls in order; `num_tool_calls` counts the failed ones too.
    If an environment checks its ending, too (the last state, a refusal or a question back), the ending is one more
    sub-task and counts as one more call. So precision stays within 1, and an agent gains nothing by too few calls.
    `met_expectation` says whether the agent refused or asked back as expected.
    """
    # Some sub-tasks can be solved before a refusal, and others after the user has answered a question back.
    solved = count_solved(environment.sub_tasks, outcomes)
    if environment.expectation != "answer":
        ends_well = met_expectation
    elif environment.final_state is not None:
        ends_well = ends_as_asked(environment, final_state)
    else:
        return EpisodeCounts(solved, len(environment.sub_tasks), num_tool_calls)
    return EpisodeCounts(solved + ends_well, len(environment.sub_tasks) + 1, num_tool_calls + 1)
