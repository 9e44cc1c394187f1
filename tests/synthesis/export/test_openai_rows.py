"""A conversation in OpenAI's form: calls and answers are paired by ids, and no text is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from synthesis.export.openai_rows import ExportImpossible, openai_row, row_messages
from synthesis.records import Message, ToolCall
from tests.synthesis.export.examples import conversation, environments, trajectory
from tests.synthesis.trajectories.servers import HOTELS

RECORDS = [trajectory(*conversation()), *environments()]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.id)
def test_every_row_fits_openai_s_own_types(record):
    chat = pytest.importorskip("openai.types.chat", reason="needs openai")
    row = openai_row(record).model_dump()
    messages = [{key: value for key, value in m.items() if key != "reasoning_content"} for m in row["messages"]]
    adapter = TypeAdapter(list[chat.ChatCompletionMessageParam], config={"extra": "forbid"})
    found = adapter.validate_python(messages)
    # The type of calls is an iterable, which is validated when it is gone through.
    calls = [call for message in found for call in message.get("tool_calls", ())]
    assert len(calls) == sum(message["role"] == "tool" for message in found)
    TypeAdapter(list[chat.ChatCompletionToolParam]).validate_python(row["tools"])


def test_a_row_has_the_words_the_thoughts_and_the_arguments_of_its_record():
    row = openai_row(trajectory(*conversation()))
    call, answer = row.messages[2], row.messages[3]
    assert call.reasoning_content == "Both."
    assert call.tool_calls is not None
    arguments = [json.loads(each.function.arguments) for each in call.tool_calls]
    assert arguments == [{"city": city, "zip": "0042"} for city in "ab"]
    assert (answer.tool_call_id, answer.content) == ("b", "12")
    assert [message.content for message in row.messages] == [message.content for message in conversation()]
    assert "reasoning_content" not in row.model_dump()["messages"][1]
    assert [tool["function"]["name"] for tool in row.tools] == [tool.name for tool in HOTELS.tools]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True), max_size=5), st.booleans())
def test_ids_are_unique_over_the_conversation_and_every_answer_has_that_of_its_call(turns, has_ids):
    messages = [Message(role="user", content="?")]
    for turn in turns:
        calls = tuple(ToolCall(id=name, name=name, arguments={}) for name in turn)
        messages.append(Message(role="assistant", tool_calls=calls))
        order = turn[::-1] if has_ids else turn
        messages += [Message(role="tool", content=name, tool_call_id=name if has_ids else None) for name in order]
    rows = row_messages(messages)
    calls_by_id = [(call.id, call.function.name) for row in rows for call in row.tool_calls or []]
    assert len(dict(calls_by_id)) == len(calls_by_id)
    answers = [(row.tool_call_id, row.content) for row in rows if row.role == "tool"]
    assert sorted(answers) == sorted(calls_by_id)


CALL = Message(role="assistant", tool_calls=(ToolCall(id="a", name="f", arguments={}),))
TWICE = Message(role="assistant", tool_calls=CALL.tool_calls * 2)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ((Message(role="tool", content="1"),), "a tool message answers 'none', which is not an open call"),
        (
            (CALL, Message(role="tool", content="1", tool_call_id="b")),
            "a tool message answers 'b', which is not an open call",
        ),
        ((CALL, Message(role="user", content="?")), "the call 'a' has no answer"),
        ((TWICE,), "a message has two calls 'a'"),
    ],
)
def test_a_conversation_that_cannot_be_paired_is_refused_with_the_record_s_name(messages, message):
    with pytest.raises(ExportImpossible, match=f"^trajectory-1: .*{message}"):
        openai_row(trajectory(*messages))


def test_a_conversation_that_was_cut_off_at_its_last_call_has_a_row():
    assert len(openai_row(trajectory(Message(role="user", content="?"), CALL)).messages) == 2
