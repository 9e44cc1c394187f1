"""Any text of a model can be read: as calls, or as malformed calls that name the problem."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import IM_END, tool_call_text
from astra_jax.chat.tool_calls import MalformedToolCall, ParsedToolCall, ParsedTurn, parse_turn
from sandbox import endpoints
from sandbox.protocol import ExecuteRequest
from synthesis.records import ToolCall
from tests.time_limit import at_most

fragments = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "\n", "{", "}", "[", '"', "\\", ":", ",",
     '{"name": "f", "arguments": {}}', '"name"', '"arguments"', "null", "NaN", "-", "1e999", "\\ud800", "房", "é"]
)  # fmt: skip
model_texts = st.lists(fragments | st.text(max_size=5), max_size=25).map("".join)
json_texts = st.text(max_size=8) | st.sampled_from(
    ["</tool_call>", "<tool_call>", "<think>", "</think>", "a\nb", '"', "\\"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | json_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_texts, inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(
    ToolCall,
    id=st.just("c"),
    name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,20}", fullmatch=True),
    arguments=st.dictionaries(json_texts, json_values, max_size=3),
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(model_texts)
@example('<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>")
@example('<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 5000 + "]" * 5000 + "}}</tool_call>")
@example('<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 240 + "]" * 240 + "}}</tool_call>")
@example('<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100 + "]" * 100 + "}}</tool_call>")
@example('<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 99 + "]" * 99 + "}}</tool_call>")
@example('<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>')
@example('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>')
@example('<tool_call>{"name": "f", "arguments": {"\\ud800": 1}}</tool_call>')
def test_any_text_is_read_and_every_call_read_can_be_sent_to_the_sandbox(text):
    turn = parse_turn(text)
    assert isinstance(turn, ParsedTurn)
    for call in turn.tool_calls:
        if isinstance(call, ParsedToolCall):
            request = ExecuteRequest(source="", function="f", arguments=call.arguments)
            sent = json.dumps(request.model_dump(mode="json"), ensure_ascii=False, allow_nan=False).encode()
            assert endpoints._validated(endpoints._CALL, sent, 1).arguments == call.arguments, "as the service reads it"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(calls, min_size=1, max_size=3))
def test_calls_are_read_back_as_they_were_rendered(rendered):
    text = "\n".join(map(tool_call_text, rendered)) + IM_END
    expected = tuple(ParsedToolCall(call.name, call.arguments) for call in rendered)
    for thoughts, reasoning in (("<think>\nso\n</think>\n\n", "so"), ("so\n</think>\n\n", "so"), ("", "")):
        turn = parse_turn(thoughts + text)
        assert (turn.reasoning_content, turn.tool_calls) == (reasoning, expected)


G = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
IN_AN_ARGUMENT = '<think>\n<tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (f"<think>\n{G}\n</think>\n\nNo call.", (), "No call."),
        (f"I could say {G} here\n</think>\n\nIt is 5.", (), "It is 5."),
        (f"<think>\n{G}", (), ""),
        (IN_AN_ARGUMENT, (), ""),
        (f"{IN_AN_ARGUMENT}\n</think>\n\n{G}", (ParsedToolCall("g", {}),), ""),
    ],
    ids=["in thoughts", "without their first tag", "without an end", "an end in an argument", "and a call after it"],
)
def test_tags_in_the_thoughts_are_text(text, calls, content):
    turn = parse_turn(text)
    assert (turn.tool_calls, turn.content) == (calls, content)


def test_a_bad_call_does_not_swallow_the_next_one():
    bad, good, cut = parse_turn(
        '<tool_call>\n{"name: 1}\n</tool_call>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        '<tool_call>\n{"name": "f", "argu'
    ).tool_calls
    assert isinstance(bad, MalformedToolCall)
    assert good == ParsedToolCall("f", {})
    assert cut == MalformedToolCall('\n{"name": "f", "argu', "the tool call is not valid JSON")


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("f(1)", "not valid JSON"),
        ('{"name": "f"} and more', "not valid JSON"),
        ("[1]", '"name"'),
        ('{"arguments": {}}', '"name"'),
        ('{"name": 3}', '"name"'),
        ('{"name": "f"}', '"arguments"'),
        ('{"name": "f", "parameters": {"a": 1}}', '"arguments"'),
        ('{"name": "f", "parameters": {}, "arguments": {"a": 1}}', "no other key"),
        ('{"name": "f", "Arguments": {"a": 1}}', '"arguments"'),
        ('{"name": "f", "arguments": {}, "id": "c"}', "no other key"),
        ('{"name": "f", "arguments": {"a": "\ud800"}}', "not valid JSON"),
        ('{"name": "f", "arguments": [1]}', '"arguments"'),
        ('{"name": "f", "arguments": null}', '"arguments"'),
        ('{"name": "f", "arguments": {"a": ' + "[" * 100 + "]" * 100 + "}}", "objects within each other"),
        ('{"name": "f", "arguments": {"a": NaN}}', "not valid JSON"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "not valid JSON"),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', "not valid JSON"),
    ],
)
def test_a_malformed_call_names_its_problem(block, problem):
    (call,) = parse_turn(f"<tool_call>{block}</tool_call>").tool_calls
    assert isinstance(call, MalformedToolCall)
    assert problem in call.problem


@pytest.mark.parametrize("value", ['["</tool_call>"]', '"</tool_call>"', '{"a": "</tool_call>"}'])
def test_a_tag_inside_any_json_value_closes_nothing(value):
    turn = parse_turn(f"<tool_call>{value}</tool_call>after")
    assert (len(turn.tool_calls), turn.content) == (1, "after")


def test_a_message_of_any_length_is_read_in_time_that_grows_with_it():
    with at_most(20):
        turn = parse_turn("<tool_call>" * 200_000 + "</think>")
    assert turn.content == ""
