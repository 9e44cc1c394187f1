"""Demonstrations: episodes of an agent with a known habit, beside the gold episode.

    calls_distractor    asks a tool that cannot help before it goes on as the gold episode does
    repeats_call        makes its first call a second time
    one_call_too_many   asks for a row that the task does not need, before it answers as the gold episode does
    stops_early         leaves out its last call, and answers with the values it has
    gives_up            makes a mistake in its first call, which fails, and says that it could not find the answer out
    recovers            makes the same mistake, and then goes through the gold episode

A policy that imitates gold episodes alone has nothing to unlearn, so that RL can only make it surer; a pre-trained one
has good and bad habits side by side. Here their shares are known. Every call but the gold ones runs in the sandbox.

Decided: docs/decisions/tiny.md, “Demonstrations hold planted habits in known shares”.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import cycle, zip_longest
from typing import Final

from sandbox.client import ExecuteReply
from sandbox.protocol import ErrorKind
from synthesis.answers.same_answer import stands_in
from synthesis.answers.tool_response import tool_response
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.other_rows import calls_for_other_rows
from synthesis.environments.proving.proof import request_of
from synthesis.questions.decomposition import ways_to_answer
from synthesis.records import Demonstration, Environment, EnvironmentTool, Habit, JsonObject, Message, ToolCall
from synthesis.stage import Rejected

_CALL_ID: Final = "habit"
"""Id of the call that the gold episode does not have."""


def draw_habit(environment: Environment, shares: Mapping[Habit, float], rng: random.Random) -> Habit | None:
    """Draw the habit of an environment's demonstration; None for the gold episode, which has the rest of the shares.

    An environment with a state or without a call has no room for any habit. Calling a distractor needs one, and a
    first call with arguments; stopping early needs two calls. Whether there is room for a call too many, or for one
    that fails, is known when the sandbox has run it (`demonstrate`).
    """
    drawn = rng.choices([*shares, None], [*shares.values(), max(0.0, 1 - sum(shares.values()))])[0]
    return drawn if drawn is not None and _has_room(environment, drawn) else None


def _has_room(environment: Environment, habit: Habit) -> bool:
    if environment.state is not None or environment.expectation != "answer" or not environment.sub_tasks:
        return False
    match habit:
        case "calls_distractor":
            return bool(environment.irrelevant_tools and _first_call(environment).arguments)
        case "stops_early":
            return len(environment.sub_tasks) > 1
        case "repeats_call" | "one_call_too_many" | "gives_up" | "recovers":
            return True


async def demonstrate(
    environment: Environment, habit: Habit, sandbox: Sandbox, rng: random.Random
) -> Demonstration | None:
    """Return the episode of an agent with this habit.

    The result is None if the environment has no room for it: no call for another row gives an answer that the gold
    episode does not have, or the call with a mistake does not fail.
    """
    possible = await _demonstrations(environment, habit, sandbox)
    return rng.choice(possible) if possible else None


async def verify_demonstration(environment: Environment, sandbox: Sandbox) -> None:
    """Make an environment's demonstration again, from its habit and the gold episode; without one, do nothing.

    Raises:
        Rejected: the environment has no room for its habit; or no episode of that habit is this demonstration, and the
            error says which message differs first.
    """
    found = environment.demonstration
    if found is None:
        return
    possible = await _demonstrations(environment, found.habit, sandbox)
    if not possible:
        raise Rejected("no room for the demonstration", found.habit)
    if found not in possible:
        # The possible demonstration with the longest common beginning shows best where `found` is wrong.
        ordinal, detail = max(_first_difference(each, found) for each in possible)
        raise Rejected("another demonstration", f"message {ordinal}: {detail}")


def _first_difference(made: Demonstration, found: Demonstration) -> tuple[int, str]:
    return next(
        (ordinal, f"expected {_shown(expected)}, found {_shown(message)}")
        for ordinal, (expected, message) in enumerate(zip_longest(made.messages, found.messages))
        if expected != message
    )


async def _demonstrations(environment: Environment, habit: Habit, sandbox: Sandbox) -> list[Demonstration]:
    """Return all episodes that an agent with this habit may have: one for each tool or row that it may ask for."""
    if not _has_room(environment, habit):
        return []
    gold = environment.gold_messages()
    episodes: list[tuple[Message, ...]]
    match habit:
        case "calls_distractor":
            first = _first_call(environment)
            calls = [
                ToolCall(id=_CALL_ID, name=each.tool.document.name, arguments=_arguments(each.tool, first))
                for each in environment.irrelevant_tools
            ]
            asked = await _run(environment, calls, sandbox)
            turns = [_turn(environment, call, tool_response(reply)) for call, reply in asked]
            episodes = [(gold[0], *turn, *gold[1:]) for turn in turns]
        case "repeats_call":
            again = _first_call(environment).model_copy(update={"id": _CALL_ID})
            turn, place = _turn(environment, again, gold[2].content), 2 + len(gold[1].tool_calls)
            episodes = [(*gold[:place], *turn, *gold[place:])]
        case "one_call_too_many":
            tools = _tools(environment)
            calls = [
                ToolCall(id=_CALL_ID, name=task.call.name, arguments=arguments)
                for task in environment.sub_tasks
                if task.call
                for others in calls_for_other_rows(tools[task.call.name], task.call.arguments).values()
                for arguments in others
            ]
            asked = await _run(environment, calls, sandbox)
            turns = [
                _turn(environment, call, tool_response(reply))
                for call, reply in asked
                if reply.ok and not _has_failed(reply) and not _tells_gold(environment, reply)
            ]
            episodes = [(*gold[:-1], *turn, gold[-1]) for turn in turns]
        case "stops_early":
            episodes = [_without_last_call(gold, environment)]
        case "gives_up":
            said = "抱歉，未能查到。" if environment.language == "zh" else "Sorry, I could not find it out."
            last = Message(role="assistant", reasoning_content="The call failed.", content=said)
            episodes = [(gold[0], *turn, last) for turn in await _failed_turns(environment, sandbox)]
        case "recovers":
            episodes = [(gold[0], *turn, *gold[1:]) for turn in await _failed_turns(environment, sandbox)]
    return [Demonstration(habit=habit, messages=messages) for messages in episodes]


def _first_call(environment: Environment) -> ToolCall:
    return environment.gold_messages()[1].tool_calls[0]


def _shown(message: Message | None) -> str:
    return "none" if message is None else repr(message.model_dump(exclude_defaults=True))[:120]


def _without_last_call(gold: tuple[Message, ...], environment: Environment) -> tuple[Message, ...]:
    last = max(index for index, message in enumerate(gold) if message.tool_calls)
    kept = gold[last].tool_calls[:-1]
    messages = gold[:last]
    if kept:
        calls = gold[last].model_copy(update={"tool_calls": kept, "reasoning_content": environment.reasoning_of(kept)})
        messages = (*messages, calls, *gold[last + 1 : last + 1 + len(kept)])
    answers = {task.call.id: task.answer for task in environment.sub_tasks if task.call is not None}
    found = [answers[message.tool_call_id or ""] for message in messages if message.role == "tool"][-1]
    return (*messages, environment.final_message(found))


def _turn(
    environment: Environment, call: ToolCall, response: str, *, is_error: bool = False
) -> tuple[Message, Message]:
    return (
        Message(role="assistant", reasoning_content=environment.reasoning_of([call]), tool_calls=(call,)),
        Message(role="tool", content=response, tool_call_id=call.id, is_error=is_error),
    )


def _arguments(tool: EnvironmentTool, gold: ToolCall) -> JsonObject:
    """Return arguments for all required parameters; one of the same name as a gold call's has its value."""
    values = cycle(gold.arguments.values())
    return {name: gold.arguments.get(name, next(values)) for name in tool.document.required}


async def _failed_turns(environment: Environment, sandbox: Sandbox) -> list[tuple[Message, Message]]:
    """Make the first call with a mistake; return the call and its response if it fails, else nothing.

    The first text loses its last word, or the last letter of a single word; if no argument is a text, the first
    required one is left out.
    """
    first = _first_call(environment)
    text = next((name for name, value in first.arguments.items() if isinstance(value, str)), None)
    if text is not None:
        right = first.arguments[text]
        arguments = {**first.arguments, text: " ".join(right.split()[:-1]) or right[:-1]}
    else:
        left_out = _tools(environment)[first.name].document.required[:1]
        arguments = {name: value for name, value in first.arguments.items() if name not in left_out}
    asked = await _run(environment, [ToolCall(id=_CALL_ID, name=first.name, arguments=arguments)], sandbox)
    return [
        _turn(environment, call, tool_response(reply), is_error=True) for call, reply in asked if _has_failed(reply)
    ]


def _has_failed(reply: ExecuteReply) -> bool:
    """Say whether the tool raised or returned an error; a crash or a timeout says nothing about the call."""
    if reply.error is not None:
        return reply.error.kind == ErrorKind.EXCEPTION
    return isinstance(reply.value, dict) and "error" in reply.value


def _tells_gold(environment: Environment, reply: ExecuteReply) -> bool:
    golds = ways_to_answer(environment, *environment.sub_questions)
    return any(stands_in(reply.value, gold) for gold in golds)


async def _run(
    environment: Environment, calls: Sequence[ToolCall], sandbox: Sandbox
) -> list[tuple[ToolCall, ExecuteReply]]:
    tools = _tools(environment)
    requests = [request_of(tools[call.name], call.arguments) for call in calls]
    return list(zip(calls, await sandbox.execute_batch(requests), strict=True))


def _tools(environment: Environment) -> dict[str, EnvironmentTool]:
    return {tool.document.name: tool for tool in environment.all_tools}
