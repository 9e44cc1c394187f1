"""Conversations in OpenAI's form: exported records come back as the same samples, and a bad line is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.checkpoints.provenance import training_stage
from astra_jax.sft.batches import SFTBatches
from astra_jax.sft.config import SFTDataConfig
from astra_jax.sft.conversations import ConversationFile, ConversationUnreadable, conversation_of
from astra_jax.sft.data import render_sample, user_turn_ends
from astra_jax.testing import tiny_tokenizer
from synthesis.export.openai_rows import openai_row
from synthesis.records import Message
from tests.synthesis.export.examples import conversation, environments, trajectory

TOOL = {"type": "function", "function": {"name": "rent", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "a", "type": "function", "function": {"name": "rent", "arguments": '{"flat": "0042"}'}}
ROW: dict[str, Any] = {
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "What is the rent of 0042?", "name": "Ana"},
        {"role": "assistant", "content": None, "reasoning": "Look it up.", "tool_calls": [CALL], "weight": 1},
        {"role": "tool", "tool_call_id": "a", "content": "7"},
        {"role": "assistant", "content": "<think>\nDone.\n</think>\n\n7.", "refusal": None},
    ],
    "tools": [TOOL],
    "source": "mine",
}


def written(folder: Path, *rows: Any) -> Path:
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


RECORDS = [trajectory(*conversation()), *environments()]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.id)
def test_an_exported_record_is_read_as_the_same_samples(tmp_path: Path, record: Any) -> None:
    tokenizer = tiny_tokenizer()
    file = tmp_path / "train.jsonl"
    file.write_text(openai_row(record).model_dump_json() + "\n")
    read = ConversationFile(file)[0]
    if record.id == "trajectory-1":
        system, user, calls, of_b, of_a, *rest = record.messages
        messages, tools = (system, user, calls, of_a, of_b, *rest), record.tools  # in the order of the calls
    else:
        tools = tuple(sorted((tool.document for tool in record.all_tools), key=lambda document: document.name))
        messages = record.gold_messages()
    assert user_turn_ends(read.messages) == user_turn_ends(messages)
    for end in user_turn_ends(messages):
        found = render_sample(read.messages[:end], read.tools, tokenizer)
        wanted = render_sample(messages[:end], tools, tokenizer)
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.loss_mask, wanted.loss_mask)


def test_the_forms_that_mean_one_thing_are_read_alike() -> None:
    read = conversation_of(ROW)
    assert read.messages[0] == Message(role="system", content="Be brief.")
    call = read.messages[2]
    assert (call.content, call.reasoning_content) == ("", "Look it up.")
    assert call.tool_calls[0].arguments == {"flat": "0042"}
    assert read.messages[3].tool_call_id == "a"
    # The chat format takes thoughts out of the content by itself.
    assert read.messages[4].content.startswith("<think>")
    with_object = json.loads(json.dumps(ROW))
    with_object["messages"][2]["tool_calls"][0]["function"]["arguments"] = {"flat": "0042"}
    assert conversation_of(with_object) == read
    assert conversation_of({**ROW, "tools": json.dumps(ROW["tools"])}) == read
    without_ids = json.loads(json.dumps(ROW))
    del without_ids["messages"][2]["tool_calls"][0]["id"], without_ids["messages"][3]["tool_call_id"]
    assert [message.content for message in conversation_of(without_ids).messages] == [m.content for m in read.messages]


def test_lines_are_found_at_random_and_blank_ones_do_not_count(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"房 {n}"}, {"role": "assistant", "content": "!"}]} for n in "abc"
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    found = ConversationFile(file)
    assert len(found) == 3
    assert [found[index].messages[0].content for index in (2, 0, 1)] == ["房 c", "房 a", "房 b"]
    with pytest.raises(IndexError):
        found[3]


def with_message(place: int, **changes: Any) -> dict[str, Any]:
    row = json.loads(json.dumps(ROW))
    row["messages"][place].update(changes)
    return row


def with_call(**changes: Any) -> dict[str, Any]:
    return with_message(2, tool_calls=[{**CALL, "function": {**CALL["function"], **changes}}])  # type: ignore[dict-item]


# The other refusals of `synthesis.foreign_messages` have tables in its own test.
BROKEN: dict[str, tuple[Any, str]] = {
    "a list": ([1], "the line: expected an object with messages, found [1]"),
    "no messages": ({"prompt": "?"}, "messages: expected a list of messages, found null"),
    "no role": (with_message(1, role="bot"), 'messages.1.role: expected one of system, developer, user, assistant'),
    "an image": (
        with_message(1, content=[{"type": "image_url", "image_url": "x"}]),
        'messages.1.content.0: expected text or a part of type text, found {"type": "image_url"',
    ),
    "no content": (with_message(4, content=None), "messages.4.content: expected text, found null"),
    "weight 0": (with_message(4, weight=0), "messages.4.weight: expected 1, every assistant message is learnt"),
    "old tools": ({**ROW, "functions": [{"name": "rent"}]}, "functions: expected tools, which took their place"),
    "broken arguments": (
        with_call(arguments='{"flat": '),
        'messages.2.tool_calls.0.function.arguments: expected a JSON object or its text (EOF while',
    ),
    "an unknown tool": (
        with_call(name="buy"),
        'messages.2.tool_calls.0.function.name: expected a call of an offered tool (["rent"]), found "buy"',
    ),
    "no answer": (
        {**ROW, "messages": [*ROW["messages"][:3], ROW["messages"][4]]},
        'messages.3: expected a result of role tool for the call "a", found "assistant"',
    ),
    "nothing to learn": (
        {"messages": [{"role": "user", "content": "?"}]},
        "messages: expected an assistant message after one of the user, found null",
    ),
    "NaN in a tool": (
        {**ROW, "tools": [{"type": "function", "function": {"name": "rent", "parameters": {"minimum": float("inf")}}}]},
        "tools.0: expected finite numbers",
    ),
    "deep tools as text": ({**ROW, "tools": "[" * 9000 + "]" * 9000}, "tools: expected a list or its JSON text (recur"),
    "tools as an object": ({**ROW, "tools": TOOL}, "tools: expected a list of tools, found {"),
    "a bare tool": ({**ROW, "tools": [{"name": "rent"}]}, "tools.0: expected an object {\"type\": \"function\""),
    "a tool twice": ({**ROW, "tools": [TOOL, TOOL]}, "tools.1.function.name: expected a name that no other tool has"),
    "a name with a space": (
        {**ROW, "tools": [{"type": "function", "function": {"name": "a b"}}]},
        'tools.0.function.name: expected 1 to 64 letters, digits, _ and -, found "a b"',
    ),
    "parameters as a list": (
        {**ROW, "tools": [{"type": "function", "function": {"name": "rent", "parameters": [1]}}]},
        "tools.0.function.parameters: expected an object, found [1]",
    ),
    "half of a pair in a key that is not read": ({**ROW, "source": "\ud800"}, "expected a JSON object in UTF-8"),
    "NaN in a key that is not read": ({**ROW, "source": float("nan")}, "expected a JSON object in UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize(("row", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_line_that_is_no_conversation_ends_in_one_line_that_says_where(
    tmp_path: Path, row: Any, message: str
) -> None:
    file = written(tmp_path, ROW, row)
    with pytest.raises(ConversationUnreadable) as raised:
        ConversationFile(file)
    said = str(raised.value)
    assert said.startswith(f"{file}, line 2: ")
    assert message in said
    assert ", found " in said
    assert "\n" not in said
    assert len(said.encode()) < len(str(file)) + 250


def test_a_line_that_nests_without_end_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(ConversationUnreadable, match="line 1: expected a JSON object in UTF-8, found"):
        ConversationFile(file)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments", "type", "id", "tools"]),
            inner | st.sampled_from(["user", "assistant", "tool", "function", "{}"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(st.fixed_dictionaries({"messages": JSON | st.lists(JSON, max_size=3)}, optional={"tools": JSON}))
def test_a_row_of_any_json_is_read_or_refused_with_the_found_value(row: Any) -> None:
    said = "expected or found "
    try:
        conversation_of(row)
    except ValueError as error:
        said = str(error)
    assert ("expected " in said, "found " in said, "\n" in said) == (True, True, False)


def test_a_run_learns_from_conversations_beside_records_and_says_of_which(tmp_path: Path) -> None:
    file = written(tmp_path, ROW, ROW)
    config = SFTDataConfig.model_validate(
        {"seed": 0, "epochs": 1, "conversations": [file], "length_buckets": [1024], "batch_tokens": 2048}
    )
    batches = SFTBatches(config, tiny_tokenizer())
    sample = render_sample(*conversation_of(ROW), tiny_tokenizer())
    batch = batches[0]
    for row in range(2):
        np.testing.assert_array_equal(batch.tokens_BT[row, : len(sample.ids)], sample.ids)
    assert batches.num_samples == 2
    (data,) = training_stage("SFT", config, [file]).data
    assert (data.kind, data.count, len(data.card_sha256)) == ("conversations", 2, 64)
