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
from itertools import cycle
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
    plain_calls,
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
    if drawn is None or environment.state is not None or not environment.sub_tasks:
        return None
    room = {
        "calls_distractor": environment.irrelevant_tools and environment.gold_messages()[1].tool_calls[0].arguments,
        "repeats_call": True,
        "stops_early": len(environment.sub_tasks) > 1,
    }
    return drawn if room[drawn] else None


async def demonstrate(environment: Environment, habit: Habit, sandbox: Sandbox, rng: random.Random) -> Demonstration:
    """Return the episode of an agent with this habit.

    Raises:
        SandboxUnavailable: the sandbox gives no answer.
    """
    gold = environment.gold_messages()
    if habit == "stops_early":
        return Demonstration(habit=habit, messages=_without_last_call(gold, environment))
    if habit == "repeats_call":
        calls, response = gold[1], gold[2]
        again = calls.tool_calls[0].model_copy(update={"id": _CALL_ID})
        turn, place = _turn(again, response.content), 2 + len(calls.tool_calls)
    else:
        tool = rng.choice([irrelevant.tool for irrelevant in environment.irrelevant_tools])
        call = ToolCall(id=_CALL_ID, name=tool.document.name, arguments=_arguments(tool, gold[1].tool_calls[0]))
        turn, place = _turn(call, await _response(call, tool, sandbox)), 1
    return Demonstration(habit=habit, messages=(*gold[:place], *turn, *gold[place:]))


async def verify_demonstration(environment: Environment, sandbox: Sandbox) -> None:
    """Run every call of an environment's demonstration again; where it has none, do nothing.

    Raises:
        Rejected: a tool is not among the environment's, or says something else than the demonstration has.
        SandboxUnavailable: the sandbox gives no answer.
    """
    if environment.demonstration is None:
        return
    messages = environment.demonstration.messages
    told = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    tools = {tool.document.name: tool for tool in environment.all_tools}
    for call in (call for message in messages for call in message.tool_calls):
        if call.name not in tools:
            raise Rejected("demonstration calls an unknown tool", call.name)
        if told.get(call.id) != (found := await _response(call, tools[call.name], sandbox)):
            raise Rejected(
                "demonstration was told otherwise", f"{call.name}: expected {told.get(call.id)}, found {found}"
            )


def _without_last_call(gold: tuple[Message, ...], environment: Environment) -> tuple[Message, ...]:
    last = max(index for index, message in enumerate(gold) if message.tool_calls)
    kept = gold[last].tool_calls[:-1]
    messages = gold[:last]
    if kept:
        calls = gold[last].model_copy(update={"tool_calls": kept, "reasoning_content": plain_calls(kept)})
        messages = (*messages, calls, *gold[last + 1 : last + 1 + len(kept)])
    found = [json.loads(message.content) for message in messages if message.role == "tool"][-1]
    return (*messages, environment.final_message(found))


def _turn(call: ToolCall, response: str) -> tuple[Message, Message]:
    return (
        Message(role="assistant", reasoning_content=plain_calls([call]), tool_calls=(call,)),
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
