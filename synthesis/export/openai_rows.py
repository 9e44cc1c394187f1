"""Conversations as rows of `messages` and `tools`, as OpenAI's chat API and its fine-tuning read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from synthesis.errors import SynthesisError
from synthesis.records import Environment, JsonObject, Message, Trajectory


class ExportImpossible(SynthesisError):
    """Records have no form in the format that was asked for; the message says which and why."""


class Row(BaseModel):
    """A line of an export."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FunctionCall(Row):
    """The function of a call."""

    name: str
    arguments: str
    """A JSON object, as text."""


class RowToolCall(Row):
    """One call of an assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class RowMessage(Row):
    """One message; fields that its role does not have are left out."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning_content: str | None = Field(default=None, exclude_if=lambda text: text is None)
    tool_calls: list[RowToolCall] | None = Field(default=None, exclude_if=lambda calls: calls is None)
    tool_call_id: str | None = Field(default=None, exclude_if=lambda name: name is None)


class OpenAIRow(Row):
    """A conversation and the tools that were offered."""

    messages: list[RowMessage]
    tools: list[JsonObject]


def openai_row(record: Trajectory | Environment) -> OpenAIRow:
    """Return a trajectory's conversation, or the gold episode of an environment.

    An environment's tools, its own and the distractors, stand in order of their names, which says nothing of which is
    which.

    Raises:
        ExportImpossible: a tool message answers no call, or a call before a later message has no answer.
    """
    try:
        if isinstance(record, Trajectory):
            messages, documents = record.messages, list(record.tools)
        else:
            messages = record.gold_messages()
            documents = sorted((tool.document for tool in record.all_tools), key=lambda document: document.name)
        return OpenAIRow(messages=row_messages(messages), tools=[document.to_openai() for document in documents])
    except ExportImpossible as error:
        raise ExportImpossible(f"{record.id}: {error}") from error


def row_messages(messages: Sequence[Message]) -> list[RowMessage]:
    """Write messages in OpenAI's form, every tool message paired with its call by an id that stands once.

    An id that another call had before gets a number; a tool message without an id answers the first open call.

    >>> from synthesis.records import ToolCall
    >>> call = ToolCall(id="a", name="rent", arguments={"flat": "007"})
    >>> asked, answered = Message(role="assistant", tool_calls=(call,)), Message(role="tool", content="7")
    >>> [(m.tool_calls or [m])[0].model_dump() for m in row_messages([asked, answered])] == [
    ...     {"id": "a", "type": "function", "function": {"name": "rent", "arguments": '{"flat": "007"}'}},
    ...     {"role": "tool", "content": "7", "tool_call_id": "a"},
    ... ]
    True

    Raises:
        ExportImpossible: as `openai_row`.
    """
    rows: list[RowMessage] = []
    used: set[str] = set()
    open_calls: dict[str, str] = {}  # id in the record to id in the row, of calls that have no answer yet
    for message in messages:
        if message.role == "tool":
            record_id = next(iter(open_calls), "") if message.tool_call_id is None else message.tool_call_id
            if record_id not in open_calls:
                raise ExportImpossible(f"a tool message answers {record_id or 'none'!r}, which is not an open call")
            rows.append(RowMessage(role="tool", content=message.content, tool_call_id=open_calls.pop(record_id)))
            continue
        if open_calls:
            raise ExportImpossible(f"the call {next(iter(open_calls))!r} has no answer")
        calls = []
        for call in message.tool_calls:
            row_id, number = call.id, 2
            while row_id in used:
                row_id, number = f"{call.id}_{number}", number + 1
            used.add(row_id)
            if call.id in open_calls:
                raise ExportImpossible(f"a message has two calls {call.id!r}")
            open_calls[call.id] = row_id
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            calls.append(RowToolCall(id=row_id, function=FunctionCall(name=call.name, arguments=arguments)))
        rows.append(
            RowMessage(
                role=message.role,
                content=message.content,
                reasoning_content=message.reasoning_content,
                tool_calls=calls or None,
            )
        )
    return rows
