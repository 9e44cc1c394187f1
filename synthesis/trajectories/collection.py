"""Collection: the teacher as agent and a tool backend talk, until a turn has no tool call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from synthesis.answers.schema_fault import schema_fault
from synthesis.prompts.agent_turn import TakeTurn
from synthesis.records import JsonObject, Message, ServerDocument, Task, ToolCall, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Teacher
from synthesis.tools.backends import ToolBackend, ToolResponse
from synthesis.track.seeds import derived_random, derived_seed
from synthesis.trajectories.follow_ups import said_by_user, task_so_far

StopReason = Literal["no_tool_call", "max_turns", "deadline"]


@dataclass(frozen=True)
class Conversation:
    """The messages of one trajectory and why it ended; only `no_tool_call` is a whole one."""

    messages: tuple[Message, ...]
    stop_reason: StopReason


async def collect_conversation(
    task: Task,
    tools: tuple[ToolDocument, ...],
    backend: ToolBackend,
    teacher: Teacher,
    *,
    seed: int,
    max_turns: int,
    deadline_seconds: float,
) -> Conversation:
    """Let the agent work on a task with the tools it is offered.

    A call of an unknown tool, or with arguments that the schema does not allow, never reaches the backend: its response
    names the fault. If a fact was hidden and the agent asks for it, the simulated user answers once. If the task has
    follow-ups, the user says the next one when the agent has answered.

    Raises:
        Rejected: the simulated user left out a fact, fell out of role or spoke another language, a real tool server
            broke the protocol, or a reply stayed unusable; the error holds the messages so far.
        ToolServerDied: a real tool server ended; the task can be tried again from the start.
    """
    documents = {tool.name: tool for tool in tools}
    messages = [Message(role="user", content=task.text)]  # grows in place: a deadline leaves the messages so far

    async def converse() -> StopReason:
        num_calls = 0
        for turn in range(max_turns):
            said = task_so_far(task, messages)  # the agent must not know of follow-ups before the user says them
            request = TakeTurn(language=task.language, tools=tools, conversation=tuple(messages), task=said)
            reply = await teacher.ask(request, seed=derived_seed(seed, "turn", turn))
            calls = tuple(
                ToolCall(id=f"call_{num_calls + ordinal}", name=call.name, arguments=call.arguments)
                for ordinal, call in enumerate(reply.tool_calls, 1)
            )
            num_calls += len(calls)
            messages.append(
                Message(
                    role="assistant",
                    content=reply.content,
                    reasoning_content=reply.reasoning or None,
                    reasoning_tokens=reply.reasoning_tokens,
                    tool_calls=calls,
                )
            )
            for call in calls:  # one after the other: a later call may read the writes of an earlier one
                if error := call_error(call, documents):
                    response = ToolResponse(json.dumps({"error": error}, ensure_ascii=False), is_error=True)
                else:
                    response = await backend.call(call.id, documents[call.name], call.arguments)
                messages.append(
                    Message(role="tool", content=response.content, tool_call_id=call.id, is_error=response.is_error)
                )
            if calls:
                continue
            text = await said_by_user(task, messages, tools, teacher, seed=derived_seed(seed, "user", turn))
            if text is None:
                return "no_tool_call"
            messages.append(Message(role="user", content=text))
        return "max_turns"

    with rejected_with(lambda: {"messages": [message.model_dump(mode="json") for message in messages]}):
        try:
            async with asyncio.timeout(deadline_seconds):
                stop_reason = await converse()
        except TimeoutError:
            stop_reason = "deadline"
    return Conversation(tuple(messages), stop_reason)


@contextmanager
def rejected_with(made: Callable[[], JsonObject]) -> Iterator[None]:
    """Add the unfinished parts of an item to a rejection inside the block; an unusable reply is a rejection, too."""
    try:
        yield
    except Rejected as rejected:
        raise Rejected(rejected.reason, rejected.detail, {**made(), **rejected.made}) from rejected
    except BadReply as bad:
        raise Rejected("unusable reply", str(bad), made()) from bad


def call_error(call: ToolCall, documents: Mapping[str, ToolDocument]) -> str | None:
    """Say why a call never reaches the backend; None if it does. `documents` are the offered tools by name."""
    if call.name not in documents:
        return f"unknown tool: {call.name}"
    error = schema_fault(documents[call.name].parameters, call.arguments, "arguments")
    return f"invalid arguments: {error}" if error else None


def offered_tools(server: ServerDocument, task: Task, limit: int, seed: int) -> tuple[ToolDocument, ...]:
    """Return the tools that a conversation offers, in the server's order: the chain's and a draw of the others.

    For a task that must be refused, the last tool of its chain is withheld.
    """
    chain = task.chain.tools if task.chain is not None else ()
    withheld = {chain[-1]} if task.expectation == "refuse" and chain else set()
    needed = set(chain) - withheld
    others = [tool.name for tool in server.tools if tool.name not in needed | withheld]  # a withheld one is not drawn
    drawn = derived_random(seed, "others").sample(others, min(len(others), max(0, limit - len(needed))))
    return tuple(tool for tool in server.tools if tool.name in needed or tool.name in drawn)
