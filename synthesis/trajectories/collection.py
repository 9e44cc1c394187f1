"""Collection: the teacher as agent and a tool backend talk, turn by turn, until a turn has no tool call."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Literal

from synthesis.prompts.agent_turn import TakeTurn
from synthesis.prompts.simulated_user import AnswerAsUser
from synthesis.records import Message, Task, ToolCall, ToolDocument
from synthesis.teacher import Teacher
from synthesis.trajectories.seeding import derived_seed
from synthesis.trajectories.tasks import argument_error
from synthesis.trajectories.tool_backends import ToolBackend, ToolResponse

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
    says what is wrong. If the agent asks back where a fact was hidden, the simulated user answers once.

    Raises:
        BadReply: the teacher's reply stayed unusable.
        ToolServerDied: a real tool server ended; the task can be tried again from the start.
    """
    messages = [Message(role="user", content=task.text)]
    try:
        async with asyncio.timeout(deadline_seconds):
            stop_reason = await _converse(messages, task, tools, backend, teacher, seed=seed, max_turns=max_turns)
    except TimeoutError:
        stop_reason = "deadline"
    return Conversation(tuple(messages), stop_reason)


async def _converse(
    messages: list[Message],
    task: Task,
    tools: tuple[ToolDocument, ...],
    backend: ToolBackend,
    teacher: Teacher,
    *,
    seed: int,
    max_turns: int,
) -> StopReason:
    documents = {tool.name: tool for tool in tools}
    num_calls = 0
    has_asked = False
    for turn in range(max_turns):
        request = TakeTurn(language=task.language, tools=tools, conversation=tuple(messages), task=task)
        reply = await teacher.ask(request, seed=derived_seed(seed, "turn", turn))
        calls = tuple(
            ToolCall(id=f"call_{num_calls + ordinal}", name=call.name, arguments=call.arguments)
            for ordinal, call in enumerate(reply.tool_calls, 1)
        )
        num_calls += len(calls)
        messages.append(
            Message(role="assistant", content=reply.content, reasoning_content=reply.reasoning, tool_calls=calls)
        )
        for call in calls:
            response = await _respond(call, documents, backend)
            messages.append(
                Message(role="tool", content=response.content, tool_call_id=call.id, is_error=response.is_error)
            )
        if calls:
            continue
        if task.expectation != "ask_back" or has_asked:
            return "no_tool_call"
        has_asked = True
        user = AnswerAsUser(task=task, conversation=tuple(messages))
        answer = await teacher.ask(user, seed=derived_seed(seed, "user", turn))
        messages.append(Message(role="user", content=answer.text))
    return "max_turns"


async def _respond(call: ToolCall, documents: dict[str, ToolDocument], backend: ToolBackend) -> ToolResponse:
    if call.name not in documents:
        return ToolResponse(json.dumps({"error": f"unknown tool: {call.name}"}, ensure_ascii=False), is_error=True)
    if error := argument_error(documents[call.name], call.arguments):
        return ToolResponse(json.dumps({"error": f"invalid arguments: {error}"}, ensure_ascii=False), is_error=True)
    return await backend.call(call.id, documents[call.name], call.arguments)
