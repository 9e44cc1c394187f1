"""Messages of others: results by id, thoughts once, strict JSON, no nulls that fill columns, no calls in the text."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import IM_END, assistant_body
from astra_jax.chat.tool_calls import ParsedToolCall, parse_turn
from synthesis.foreign_messages import MessageRefused, read_messages, read_tool

LOOK_UP: dict[str, Any] = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
TOOLS = {"look_up": LOOK_UP, "other": {"type": "object", "properties": {}}}


def call(id_: str | None = "a", arguments: Any = '{"key": "a"}', name: str = "look_up", **more: Any) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments, **more}}


def assistant(*calls: Any, content: Any = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(id_: Any, content: Any = "10") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def learnt(*entries: Any, tools: Any = None) -> Any:
    return read_messages(entries, TOOLS if tools is None else tools, is_learnt=True)


def shown(*entries: Any) -> Any:
    return read_messages(entries, {}, is_learnt=False)


def assert_refused_at(place: str, read: Any, *entries: Any) -> str:
    """Return the message of the refusal, which names the place of the fault."""
    with pytest.raises(MessageRefused) as raised:
        read(*entries)
    assert raised.value.place == place
    return str(raised.value)


ASKED = {"role": "user", "content": "?"}
BOTH = (learnt, shown)


# --- results ---


@pytest.mark.parametrize("read", BOTH)
@given(order=st.permutations(range(4)), then=st.booleans())
def test_results_in_any_order_are_read_alike(read, order, then):
    calls = [call(f"c{n}") for n in range(4)]
    results = [result(f"c{n}", f"value {n}") for n in range(4)]
    rest = [assistant(content="Done.")] if then else []
    found = read(ASKED, assistant(*calls), *(results[n] for n in order), *rest)
    assert found == read(ASKED, assistant(*calls), *results, *rest)
    assert [message.content for message in found[2:6]] == [f"value {n}" for n in range(4)]


@pytest.mark.parametrize("read", BOTH)
def test_results_without_ids_stand_in_the_order_of_the_calls_and_ids_count_in_their_turn_alone(read):
    turn = (assistant(call("a"), call("b")), result(None, "1"), result("", "2"))
    assert [message.content for message in read(ASKED, *turn)[2:]] == ["1", "2"]
    again = (assistant(call("a"), call("b")), result("b", "2"), result("a", "1"))
    assert [message.content for message in read(*again, *again)] == ["", "1", "2", "", "1", "2"]
    assert len(read(ASKED, assistant(call("a"), call("b")))) == 2  # nothing follows: the results are still to come


TWO = (ASKED, assistant(call("a"), call("b")))
ANSWERED = (*TWO, result("a"), result("b"))


@pytest.mark.parametrize(
    ("entries", "place"),
    [
        ((*TWO, result("zz"), result("a")), "messages.2.tool_call_id"),
        ((*TWO, result("a"), result("a")), "messages.3.tool_call_id"),
        ((*TWO, result("a"), result(None)), "messages.3.tool_call_id"),
        ((*TWO, result(None), result("b")), "messages.2.tool_call_id"),
        ((*TWO, result("A"), result("b")), "messages.2.tool_call_id"),
        ((*TWO, result(1), result("b")), "messages.2.tool_call_id"),
        ((*ANSWERED, result("b")), "messages.4.tool_call_id"),
        ((*TWO, result(None), result(None), result(None)), "messages.4.tool_call_id"),
        ((*TWO, assistant(content="Done.")), "messages.2"),
        ((*TWO, {"role": "user", "content": "And?"}), "messages.2"),
        ((*TWO, result("b"), assistant(content="Done.")), "messages.3"),
        ((*TWO, result("b")), "messages.1.tool_calls"),
        ((*TWO, result(None)), "messages.1.tool_calls"),
        ((ASKED, result("a")), "messages.1.tool_call_id"),
        ((ASKED, result(None)), "messages.1.tool_call_id"),
        ((result("a"), ASKED), "messages.0.tool_call_id"),
        ((*ANSWERED, assistant(content="Done."), result("a")), "messages.5.tool_call_id"),
        ((ASKED, assistant(call("a"), call("a"))), "messages.1.tool_calls"),
        ((ASKED, assistant(call(7))), "messages.1.tool_calls.0.id"),
    ],
)
def test_a_result_that_answers_no_call_or_a_call_without_one_is_refused_with_its_place(entries, place):
    for read in BOTH:
        assert_refused_at(place, read, *entries)


# --- strict JSON and whole text ---

HALF, DEEP = "\ud83d", json.loads('{"a": ' + "[" * 100 + "]" * 100 + "}")


@pytest.mark.parametrize(
    ("message", "place"),
    [
        *(
            (assistant(call(arguments=arguments)), "messages.0.tool_calls.0.function.arguments")
            for arguments in (
                '{"key": NaN}', '{"key": -Infinity}', '{"key": 1e999}', '{"key": [-1e999]}', '{"key": "\\ud83d"}',
                '{"\\udc00": 1}', '{"key": "' + HALF + '"}', "{broken", "[1]", "null", '"{}"', '{"key": 1} more',
                json.dumps(DEEP), '{"a": ' + "[" * 5000 + "]" * 5000 + "}", '{"a": ' * 5000,
                {"key": math.nan}, {"key": math.inf}, {"key": HALF}, {HALF: 1}, DEEP, [1], 7, True,
            )
        ),
        (assistant(call(HALF)), "messages.0.tool_calls.0.id"),
        (assistant(call(name=HALF)), "messages.0.tool_calls.0.function.name"),
        (assistant(call(name='f", "x": "')), "messages.0.tool_calls.0.function.name"),
        (assistant(call(name="")), "messages.0.tool_calls.0.function.name"),
        (assistant(content=HALF), "messages.0.content"),
        (assistant(content=[{"type": "text", "text": "a"}, {"type": "text", "text": HALF}]), "messages.0.content.1"),
        (assistant(content="a", reasoning_content=HALF), "messages.0.reasoning_content"),
        (assistant(content=[{"type": "thinking", "thinking": HALF}]), "messages.0.content.0"),
        ({"role": "user", "content": HALF}, "messages.0.content"),
        ({"role": "system", "content": DEEP}, "messages.0.content"),
        ({"role": HALF, "content": "a"}, "messages.0.role"),
        ({"role": ["user"], "content": "a"}, "messages.0.role"),
        ({"role": "user", "content": "a", "tool_call_id": HALF}, "messages.0.tool_call_id"),
    ],
)  # fmt: skip
def test_values_that_are_no_json_or_no_text_are_refused_with_their_place_in_a_printable_line(message, place):
    for read in BOTH:
        said = assert_refused_at(place, read, message)
        assert said.startswith(f"{place}: expected ")
        assert said.encode().decode() == said
        assert "\n" not in said


@pytest.mark.parametrize("inside", [math.nan, math.inf, HALF, {HALF: 1}, DEEP])
@pytest.mark.parametrize("key", ["description", "parameters", "strict"])
def test_a_tool_that_is_no_json_is_refused(key, inside):
    with pytest.raises(MessageRefused, match=r"tools\.3: expected finite numbers, whole characters"):
        read_tool({"type": "function", "function": {"name": "f", key: inside}}, "tools.3")


# --- arguments under another name ---


@pytest.mark.parametrize("given", ["", "{}", {}, " "])
@pytest.mark.parametrize("name", ["parameters", "args", "input"])
def test_arguments_under_another_name_are_refused(given, name):
    for read in BOTH:
        for value in ({"key": "a"}, '{"key": "a"}'):
            with pytest.raises(MessageRefused, match=r"function\.arguments: expected the arguments under this name"):
                read(assistant(call(arguments=given, **{name: value})))
        (message,) = read(assistant(call(name="other", arguments=given, **{name: None})))
        assert message.tool_calls[0].arguments == {}


def test_a_call_without_arguments_is_shown_and_not_learnt():
    without = call()
    del without["function"]["arguments"]
    assert shown(assistant(without))[0].tool_calls[0].arguments == {}
    with pytest.raises(MessageRefused, match="expected a JSON object or its text, found null"):
        learnt(assistant(without))


# --- thoughts ---

PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "So."}]}, {"type": "text", "text": "Yes."}]


@pytest.mark.parametrize(
    "message",
    [
        assistant(content="Yes.", reasoning_content="So."),
        assistant(content="Yes.", reasoning="So."),
        assistant(content="Yes.", thinking="So.", reasoning_content=None),
        assistant(content="Yes.", reasoning=[{"type": "text", "text": "So."}]),
        assistant(content=PARTS),
        assistant(content=[{"type": "thinking", "thinking": "So.", "signature": "x"}, PARTS[1]]),
        assistant(content=[{"type": "reasoning", "text": "So."}, {"type": "text", "text": "Yes.", "thinking": None}]),
        assistant(content="<think>\nSo.\n</think>\n\nYes."),
        assistant(content="So.\n</think>\n\nYes."),
        assistant(content="<think>\nSo.\n</think>\n\nYes.", reasoning_content=""),
        assistant(content="<think>\nSo.\n</think>\n\nYes.", reasoning_content="So."),
        assistant(content="<think>\n\n</think>\n\nYes.", reasoning_content="So."),
        assistant(content="Yes.", reasoning_content="So.", reasoning="\nSo.\n"),
        assistant(content=PARTS, reasoning_content="So."),
        assistant(content=[*PARTS[:1], {"type": "text", "text": "<think>So.</think>Yes."}]),
    ],
)
def test_thoughts_are_taken_once_from_any_place(message):
    for read in BOTH:
        (found,) = read(message)
        assert assistant_body(found) == "<think>\nSo.\n</think>\n\nYes."


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (assistant(content="Yes.", reasoning_content="So.", reasoning="No."), "messages.0.reasoning"),
        (assistant(content="<think>So.</think>Yes.", reasoning_content="No."), "messages.0.reasoning_content"),
        (assistant(content=PARTS, reasoning="No."), "messages.0.content"),
        (assistant(content="<think>\nSo and"), "messages.0.content"),
        (assistant(content="<think>So and", reasoning_content="So and"), "messages.0.content"),
        (assistant(call(), content="<think>\nSo and"), "messages.0.content"),
        (assistant(content="<think>a</think>b<think>c</think>d"), "messages.0.content"),
        (assistant(content="Well. <think>So.</think> Yes."), "messages.0.content"),
        (assistant(content="<think>a<think>b</think>Yes."), "messages.0.content"),
        (assistant(content="Yes.", reasoning_content="<think>So.</think>"), "messages.0.reasoning_content"),
        (assistant(content="Yes.", reasoning_content="<think>So."), "messages.0.reasoning_content"),
        (assistant(content="Yes.", reasoning_content="So.</think> And"), "messages.0.reasoning_content"),
        (assistant(content="Yes.", reasoning_content={"thought": "So."}), "messages.0.reasoning_content"),
        (assistant(content=[{"type": "thinking", "thinking": 7}, PARTS[1]]), "messages.0.content.0"),
        (assistant(content=[{"type": "redacted_thinking", "data": "x"}, PARTS[1]]), "messages.0.content.0"),
        ({"role": "user", "content": "?", "reasoning_content": "So."}, "messages.0.reasoning_content"),
        ({"role": "user", "content": PARTS}, "messages.0.content.0"),
    ],
)
def test_thoughts_that_differ_do_not_end_or_stand_elsewhere_are_refused(message, place):
    for read in BOTH:
        assert_refused_at(place, read, message)


@pytest.mark.parametrize("content", ["", "\n", [], None, "<think>\nSo\n</think>\n\n"])
def test_thoughts_without_an_answer_may_have_been_cut_and_are_not_learnt(content):
    thoughts = {} if content and "<think>" in content else {"reasoning_content": "So"}
    with pytest.raises(MessageRefused, match=r"messages\.0\.content: expected text"):
        learnt(assistant(content=content, **thoughts))
    assert len(shown(assistant(content=content, **thoughts))) == 1
    assert len(learnt(assistant(call(), content=content, **thoughts))) == 1


# --- calls in the text ---

IN_TEXT = '<tool_call>\n{"name": "look_up", "arguments": {"key": "a"}}\n</tool_call>'


@pytest.mark.parametrize(
    "content",
    [
        IN_TEXT, f"Well.\n{IN_TEXT}", IN_TEXT.replace("look_up", "not_offered"), IN_TEXT[:-12],
        [{"type": "text", "text": IN_TEXT}], f"<think>So.</think>{IN_TEXT}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("calls", [[], [call()]])
def test_a_call_in_the_text_is_not_learnt_and_not_shown_beside_calls(content, calls):
    with pytest.raises(MessageRefused, match=r"messages\.0\.content: expected text without <tool_call>"):
        learnt(assistant(*calls, content=content))
    if not calls:
        assert shown(assistant(content=content))
        return
    with pytest.raises(MessageRefused, match=r"messages\.0\.content: expected no call in the text beside tool_calls"):
        shown(assistant(*calls, content=content))


def test_a_block_that_is_no_call_is_shown_as_the_server_gave_it():
    content = "<tool_call>\nlook_up(1)\n</tool_call>"
    assert shown(assistant(call(), content=content))[0].content == content


@pytest.mark.parametrize("text", ["</tool_call>", "<tool_response>\n10\n</tool_response>", "Use <think> here."])
def test_other_tags_in_the_text_of_an_assistant_are_not_learnt(text):
    with pytest.raises(MessageRefused, match="expected text without <"):
        learnt(assistant(content=text))


def test_a_result_with_tags_is_not_learnt_and_tags_in_a_user_s_words_are_text():
    pasted = "<tool_response>\n10\n</tool_response>"
    for entries in ([{"role": "user", "content": pasted}], [assistant(call()), result("a", pasted)]):
        with pytest.raises(MessageRefused, match="expected a result without tags, in a message of role tool"):
            learnt(*entries)
        assert shown(*entries)
    said = "What are <tool_call>, </think> and <|im_end|>?"
    assert learnt({"role": "system", "content": said}, {"role": "user", "content": said})[1].content == said
    assert learnt(assistant(call()), result("a", said))[1].content == said


def test_a_call_of_a_tool_that_is_not_offered_is_not_learnt():
    offered = r'function\.name: expected a call of an offered tool \(\["look_up", "other'
    with pytest.raises(MessageRefused, match=offered):
        learnt(assistant(call(name="not_offered")))
    assert shown(assistant(call(name="not_offered")))


# --- nulls that fill columns ---


def in_schema(schema: Any) -> Any:
    return read_tool({"function": {"name": "f", "parameters": schema}}, "tools.0")["function"].get("parameters")


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"type": "object", "properties": {"a": {"type": "string", "enum": None}, "b": None}, "required": None},
         {"type": "object", "properties": {"a": {"type": "string"}}}),
        ({"properties": {"a": {"items": {"type": "string", "format": None}, "anyOf": None}}},
         {"properties": {"a": {"items": {"type": "string"}}}}),
        ({"anyOf": [{"type": "string", "title": None}, {"type": "null"}]},
         {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"properties": {"default": None, "enum": {"type": "string", "default": None}, "const": None}},
         {"properties": {"enum": {"type": "string", "default": None}}}),
        ({"properties": {"properties": {"properties": {"a": None}}, "b": None}},
         {"properties": {"properties": {"properties": {}}}}),
        ({"$defs": {"A": None, "B": {"type": "string", "const": None}}}, {"$defs": {"B": {"type": "string"}}}),
        (None, None), ({"type": None, "properties": None}, {}),
    ],
)  # fmt: skip
def test_keywords_and_names_without_a_schema_leave_a_tool(schema, kept):
    assert in_schema(schema) == kept


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["a", None]}, {"const": None}, {"default": None}, {"default": {"a": None}},
        {"examples": [None, {"a": None}]},
        {"properties": {"a": {"type": ["string", "null"], "enum": ["a", None], "default": None}}},
        {"b": 1, "a": {"z": [1, {"y": 2}]}, "type": "object"},
    ],
)  # fmt: skip
def test_nulls_that_are_data_and_the_order_of_keys_stay(schema):
    assert json.dumps(in_schema(schema)) == json.dumps(schema)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "unit": {"type": ["string", "null"]},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "mode": {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]},
        "level": {"$ref": "#/$defs/Mode"},
        "kind": {"enum": ["a", None]},
        "old": {"type": "string", "nullable": True},
        "count": {"type": "integer"},
        "any": {"description": "whatever"},
        "free": {"type": "object"},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["city"],
        },
        "rows": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    },
    "required": ["key"],
    "$defs": {"Mode": {"enum": ["x", "y"]}},
}


def arguments_of(arguments: Any, schema: Any = SCHEMA) -> Any:
    found = [
        learnt(assistant(call(arguments=given)), tools={"look_up": schema})[0].tool_calls[0].arguments
        for given in (arguments, json.dumps(arguments))
    ]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({"undeclared": None, "count": None, "level": None}, {}),
        ({"unit": None, "limit": None, "mode": None, "kind": None, "old": None},) * 2,
        ({"place": {"city": "x", "zip": None, "more": None}}, {"place": {"city": "x"}}),
        ({"place": None, "rows": None}, {}),
        ({"rows": [{"a": 1, "b": None}, {"a": None}, None]}, {"rows": [{"a": 1}, {}, None]}),
        ({"map": {"x": "y", "z": None}}, {"map": {"x": "y"}}),
        ({"free": {"x": 1}, "any": [1]},) * 2,
    ],
)
def test_nulls_leave_arguments_where_the_schema_has_no_place_for_them(arguments, kept):
    assert arguments_of({"key": "a"} | arguments) == {"key": "a"} | kept


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_has_no_place_for_null(schema):
    assert arguments_of({"limit": None, "unit": None}, schema) == {}


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"key": None}, "key"),  # required: without it the call would be another
        ({"key": "a", "any": None}, "any"),
        ({"key": "a", "free": {"x": None}}, "free.x"),
        ({"key": "a", "place": {"city": None}}, "place.city"),
        ({"key": "a", "any": [{"x": None}]}, "any.0.x"),
        ({"key": "a", "undeclared": {"x": None}}, "undeclared.x"),
    ],
)
def test_a_null_without_a_meaning_by_the_schema_is_refused(arguments, place):
    assert_refused_at(f"messages.0.tool_calls.0.function.arguments.{place}", arguments_of, arguments)


def test_a_null_beside_further_properties_of_any_type_is_refused():
    with pytest.raises(MessageRefused, match=r"arguments\.x: expected a value, no key, or a schema"):
        arguments_of({"x": None}, {"type": "object", "properties": {}, "additionalProperties": True})


def test_nulls_of_a_call_that_is_shown_stay_as_the_model_wrote_them():
    assert shown(assistant(call(arguments='{"key": null}')))[0].tool_calls[0].arguments == {"key": None}


# --- older forms and odd fields ---


@pytest.mark.parametrize("read", BOTH)
@pytest.mark.parametrize("key", ["function_call", "audio"])
def test_a_field_whose_content_would_be_lost_is_refused(read, key):
    with pytest.raises(MessageRefused, match=rf"messages\.0\.{key}: expected none, it is not read"):
        read(assistant(content="Yes.", **{key: {"name": "f"}}))
    assert read(assistant(content="Yes.", **{key: None}))


# --- any accepted conversation ---

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>"]
TEXTS = st.text(max_size=6) | st.sampled_from([*TAGS, "So.\n</think>\n\nYes.", IN_TEXT, "\n", HALF])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["key", "x", "</tool_call>"]) | TEXTS, VALUES, max_size=3)
CALLS = st.builds(
    call,
    id_=st.sampled_from(["a", "b", None, ""]),
    arguments=ARGUMENTS | ARGUMENTS.map(json.dumps) | st.sampled_from(["", None, "{"]),
    name=st.sampled_from(["look_up", "other", "x"]),
)
CONTENTS = TEXTS | st.none() | st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "thinking"]), "text": TEXTS}), max_size=2
)  # fmt: skip
TURNS = st.builds(
    lambda calls, content, thoughts: assistant(*calls, content=content, **thoughts),
    st.lists(CALLS, max_size=3),
    CONTENTS,
    st.dictionaries(st.sampled_from(["reasoning", "reasoning_content"]), TEXTS, max_size=2),
)
OTHERS = st.builds(result, st.sampled_from(["a", "b", None]), CONTENTS) | st.builds(
    lambda content: {"role": "user", "content": content}, CONTENTS
)


@settings(max_examples=600, deadline=None)
@given(st.lists(TURNS | OTHERS, min_size=1, max_size=4), st.booleans())
def test_accepted_messages_are_strict_and_their_calls_are_read_back_as_they_were_rendered(entries, is_learnt):
    tools = {"look_up": {"type": "object", "additionalProperties": {"type": ["string", "null"]}}, **TOOLS}
    said, messages = "", []
    try:
        messages = read_messages(entries, tools, is_learnt=is_learnt)
    except MessageRefused as refused:
        said = str(refused)
    assert said.encode().decode() == said
    for message in messages:
        json.dumps(message.model_dump(), allow_nan=False, ensure_ascii=False).encode()
    for message in messages:
        if message.role != "assistant" or not is_learnt:
            continue
        for is_last in (False, True):
            parsed = parse_turn(assistant_body(message, is_last=is_last) + IM_END)
            expected = tuple(ParsedToolCall(each.name, each.arguments) for each in message.tool_calls)
            assert parsed.tool_calls == expected
            assert parsed.content.strip("\n") == message.content.rpartition("</think>")[2].strip("\n")
