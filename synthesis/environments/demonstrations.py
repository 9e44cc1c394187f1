"""Demonstrations: how an agent with a habit goes through an environment, beside the gold episode.

    calls_distractor   asks a tool that cannot help before it goes on as the gold episode does
    repeats_call       makes its first call a second time
    stops_early        leaves out its last call, and answers with what it has

A policy that imitates gold episodes alone has nothing to unlearn, so that RL can only make it surer; a pre-trained one
has good and bad habits side by side. Here their shares are known. Every call but the gold ones runs in the sandbox.

Decided: docs/decisions/tiny.md, “SFT imitates habits in known shares, on other environments than RL's”.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from itertools import cycle, zip_longest
from typing import Final

from sandbox.client import ExecuteRequest
from synthesis.answers.tool_response import tool_response
from synthesis.environments.call_batches import Sandbox
from synthesis.environments.proof import PROOF_LIMITS
from synthesis.records import (
    Demonstration,
    Environment,
    EnvironmentTool,
    Habit,
    JsonObject,
    Message,
    ToolCall,
)
from synthesis.stage import Rejected

_CALL_ID: Final = "habit"
"""Id of the call that the gold episode does not have."""


def draw_habit(environment: Environment, shares: Mapping[Habit, float], rng: random.Random) -> Habit | None:
    """Draw the habit of an environment's demonstration; None for the gold episode, which has the rest of the shares.

    An environment has no room for a habit where it has no call or a state; nor for a distractor where it has none, or
    its first call says nothing to ask it with; nor for stopping early where there is one call.
    """
    drawn = rng.choices([*shares, None], [*shares.values(), max(0.0, 1 - sum(shares.values()))])[0]
    return drawn if drawn is not None and _has_room(environment, drawn) else None


def _has_room(environment: Environment, habit: Habit) -> bool:
    if environment.state is not None or environment.expectation != "answer" or not environment.sub_tasks:
        return False
    match habit:
        case "calls_distractor":
            first_call = environment.gold_messages()[1].tool_calls[0]
            return bool(environment.irrelevant_tools and first_call.arguments)
        case "stops_early":
            return len(environment.sub_tasks) > 1
        case "repeats_call":
            return True


async def demonstrate(environment: Environment, habit: Habit, sandbox: Sandbox, rng: random.Random) -> Demonstration:
    """Return the episode of an agent with this habit.

    Raises:
        SandboxUnavailable: the sandbox gives no answer.
    """
    distractor = None
    if habit == "calls_distractor":
        distractor = rng.choice([irrelevant.tool for irrelevant in environment.irrelevant_tools])
    return await _demonstration(environment, habit, sandbox, distractor)


async def verify_demonstration(environment: Environment, sandbox: Sandbox) -> None:
    """Make an environment's demonstration again, from its habit and the gold episode; where it has none, do nothing.

    Raises:
        Rejected: the environment has no room for its habit; it calls a tool that is no distractor where its habit is to
            call one; or another demonstration came of it, and the message says which message differs first.
        SandboxUnavailable: the sandbox gives no answer.
    """
    found = environment.demonstration
    if found is None:
        return
    if not _has_room(environment, found.habit):
        raise Rejected("no room for the demonstration", found.habit)
    distractor = None
    if found.habit == "calls_distractor":
        named = [call.name for message in found.messages for call in message.tool_calls if call.id == _CALL_ID]
        distractors = [irrelevant.tool for irrelevant in environment.irrelevant_tools]
        distractor = next((tool for tool in distractors if [tool.document.name] == named), None)
        if distractor is None:
            raise Rejected("demonstration calls no distractor", f"expected one, found {named}")
    made = await _demonstration(environment, found.habit, sandbox, distractor)
    for ordinal, (expected, message) in enumerate(zip_longest(made.messages, found.messages)):
        if expected != message:
            detail = f"message {ordinal}: expected {_shown(expected)}, found {_shown(message)}"
            raise Rejected("another demonstration", detail)


async def _demonstration(
    environment: Environment, habit: Habit, sandbox: Sandbox, distractor: EnvironmentTool | None
) -> Demonstration:
    gold = environment.gold_messages()
    if habit == "stops_early":
        return Demonstration(habit=habit, messages=_without_last_call(gold, environment))
    if distractor is None:
        calls, response = gold[1], gold[2]
        again = calls.tool_calls[0].model_copy(update={"id": _CALL_ID})
        turn, place = _turn(environment, again, response.content), 2 + len(calls.tool_calls)
    else:
        arguments = _arguments(distractor, gold[1].tool_calls[0])
        call = ToolCall(id=_CALL_ID, name=distractor.document.name, arguments=arguments)
        turn, place = _turn(environment, call, await _response(call, distractor, sandbox)), 1
    return Demonstration(habit=habit, messages=(*gold[:place], *turn, *gold[place:]))


def _shown(message: Message | None) -> str:
    return "none" if message is None else repr(message.model_dump(exclude_defaults=True))[:120]


def _without_last_call(gold: tuple[Message, ...], environment: Environment) -> tuple[Message, ...]:
    last = max(index for index, message in enumerate(gold) if message.tool_calls)
    kept = gold[last].tool_calls[:-1]
    messages = gold[:last]
    if kept:
        calls = gold[last].model_copy(update={"tool_calls": kept, "reasoning_content": environment.reasoning_of(kept)})
        messages = (*messages, calls, *gold[last + 1 : last + 1 + len(kept)])
    found = [json.loads(message.content) for message in messages if message.role == "tool"][-1]
    return (*messages, environment.final_message(found))


def _turn(environment: Environment, call: ToolCall, response: str) -> tuple[Message, Message]:
    return (
        Message(role="assistant", reasoning_content=environment.reasoning_of([call]), tool_calls=(call,)),
        Message(role="tool", content=response, tool_call_id=call.id),
    )


def _arguments(tool: EnvironmentTool, gold: ToolCall) -> JsonObject:
    """Fill what the tool requires with what the gold call says, by name where it has the name."""
    values = cycle(gold.arguments.values())
    return {name: gold.arguments.get(name, next(values)) for name in tool.document.required}


async def _response(call: ToolCall, tool: EnvironmentTool, sandbox: Sandbox) -> str:
    request = ExecuteRequest(
        source=tool.module_source(), function=call.name, arguments=call.arguments, limits=PROOF_LIMITS
    )
    (reply,) = await sandbox.execute_batch([request])
    return tool_response(reply)
