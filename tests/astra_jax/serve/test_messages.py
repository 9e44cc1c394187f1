"""Messages parsed while they stream: certain parts are passed on at once, and the split into pieces does not matter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import END_THINK, END_TOOL_CALL, IM_END, THINK, TOOL_CALL
from astra_jax.chat.tool_calls import ParsedToolCall, parse_turn
from astra_jax.serve.messages import MessageParts, MessageText
from tests.time_limit import at_most

CALL = '<tool_call>\n{"name": "get_rent", "arguments": {"flat": "Amber Falcon"}}\n</tool_call>'
RENT = ParsedToolCall("get_rent", {"flat": "Amber Falcon"})


def taken_apart(pieces: list[str], **options: Any) -> tuple[str, str, list[ParsedToolCall]]:
    """Thoughts, content and calls."""
    reader = MessageParts(**options)
    said = [reader.push(piece) for piece in pieces]
    rest, calls = reader.end()
    thoughts, content = (
        "".join(each.get(part, "") for each in [*said, rest]) for part in ("reasoning_content", "content")
    )
    return thoughts, content, calls


END_TAG_IN_ARGUMENT = {"text": f"a {END_TOOL_CALL} b {END_THINK} c"}


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (f"<think>\nRent.\n</think>\n\nA moment.\n{CALL}\n{CALL}", {}, ("Rent.", "A moment.", [RENT, RENT])),
        (f"So:\n{CALL}\nand on", {}, ("", "So:\n\nand on", [RENT])),
        (
            f"{TOOL_CALL}\n{json.dumps({'name': 'f', 'arguments': END_TAG_IN_ARGUMENT})}\n{END_TOOL_CALL}",
            {},
            ("", "", [ParsedToolCall("f", END_TAG_IN_ARGUMENT)]),
        ),
        ('<tool_call>\n{"name": "f", "arguments": {}}', {}, ("", "", [ParsedToolCall("f", {})])),
        (f'{TOOL_CALL}"{END_TOOL_CALL}{CALL}', {}, ("", f'{TOOL_CALL}"{END_TOOL_CALL}', [RENT])),
        (f"\n<think>\nSo.\n</think>\n\n{CALL}\n\n", {"reads_calls": False}, ("So.", CALL, [])),
        ("So.\n</think>\n\nYes.", {"begins_in_thoughts": True}, ("So.", "Yes.", [])),
        (f"<think>\nSo {CALL}", {}, (f"So {CALL}", "", [])),
        (" \n So", {}, ("", " \n So", [])),
        (" \n <th", {}, ("", " \n <th", [])),
        (" \n <think>\nSo.\n</think>\n\n Yes.", {}, ("So.", " Yes.", [])),
        *(
            (f"So: {block} and on", {}, ("", f"So: {block} and on", []))
            for block in (
                "<tool_call>\nget_rent(1)\n</tool_call>",
                '<tool_call>\n{"arguments": {}}\n</tool_call>',
                '<tool_call>\n{"name": "f", "arguments": {"x": 1e999}}\n</tool_call>',
                '<tool_call>\n{"name": "f", "arguments": {"x": "open}}\n</tool_call>',
                f'{TOOL_CALL}\n{{"name": "f", "arguments": {{"x": {"9" * 5000}}}}}\n{END_TOOL_CALL}',
                "<tool_call>" * 3,
            )
        ),
    ],
)
def test_thoughts_content_and_calls_are_told_apart(text: str, options: dict[str, Any], expected: Any):
    assert taken_apart([text], **options) == taken_apart(list(text), **options) == expected


def test_a_call_without_an_end_tag_is_content_if_the_message_is_cut():
    whole, half = CALL, CALL.removesuffix(END_TOOL_CALL)
    reader = MessageParts()
    assert reader.end(f"{whole}{half}", is_cut=True) == ({"content": half.rstrip("\n")}, [RENT])


def test_text_is_told_as_soon_as_no_tag_can_begin_in_it():
    reader = MessageParts()
    assert reader.push("<thi") == {}
    assert reader.push("nk>\nI loo") == {"reasoning_content": "I loo"}
    assert reader.push("k </thin") == {"reasoning_content": "k "}
    assert reader.push("g</think>\n\nWell <tool") == {"reasoning_content": "</thing", "content": "Well "}
    assert reader.push("box> ") == {"content": "<toolbox> "}
    assert reader.push(CALL) == {}
    assert reader.end() == ({}, [RENT])


TAGS = [THINK, END_THINK, TOOL_CALL, END_TOOL_CALL, CALL]
PIECES = st.sampled_from([*TAGS, "\n", "\n\n", "a", "<", "tool", "{", '"', "}", " ", "好", '{"name": "f"}'])


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join), st.data())
@example(f'{TOOL_CALL}{{"name": "f", "arguments": {{"x": "{END_TOOL_CALL}', None)
def test_the_pieces_that_text_comes_in_do_not_matter(text: str, data: Any):
    whole = taken_apart([text])
    assert taken_apart(list(text)) == whole
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert taken_apart(pieces) == whole


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_calls_are_those_that_episodes_read(text: str):
    """One difference is meant: only a `<think>` at the beginning opens thoughts here."""
    episode = parse_turn(text + IM_END)
    thoughts, said, calls = taken_apart([text])
    if THINK in text.lstrip()[1:] or (END_THINK in text and not text.lstrip().startswith(THINK)):
        return
    assert thoughts.strip() == episode.reasoning_content.strip()
    assert calls == [call for call in episode.tool_calls if isinstance(call, ParsedToolCall)]
    if len(calls) == len(episode.tool_calls):
        assert said == episode.content


@pytest.mark.parametrize("begun", ["", " ", "<think>a</think>a", TOOL_CALL])
def test_empty_lines_without_end_take_time_that_grows_with_them(begun):
    with at_most(20):
        _, said, _ = taken_apart([begun, *["\n" * 8] * 100_000, "b"])
    lines = "\n" * 800_000
    assert said == {"": "b", " ": f" {lines}b", TOOL_CALL: f"{TOOL_CALL}{lines}b"}.get(begun, f"a{lines}b")


def decoded(tokenizer, ids: list[int], *, silent_ids: tuple[int, ...] = (), stops: list[str] | None = None) -> str:
    text = MessageText(tokenizer, silent_ids=silent_ids, stops=stops or ())
    return "".join(text.push(id_) for id_ in ids) + text.end()


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40), stops=st.lists(st.text("ab ", max_size=3), max_size=3))
def test_text_is_whole_characters_up_to_the_first_stop_string(tokenizer, text: str, stops: list[str]):
    text = tokenizer.decode(tokenizer.encode(text))  # normalised
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    ids = [*tokenizer.encode(text), tokenizer.end_id]
    assert decoded(tokenizer, ids, silent_ids=(tokenizer.end_id,), stops=stops) == text[: min(places, default=None)]


def test_a_character_of_several_tokens_comes_whole_and_an_unfinished_one_is_replaced(tokenizer):
    ids = tokenizer.encode("龘")
    assert len(ids) > 1, "this test needs a character that the tokenizer does not know"
    reader = MessageText(tokenizer, silent_ids=())
    assert [reader.push(id_) for id_ in ids] == [*[""] * (len(ids) - 1), "龘"]
    reader = MessageText(tokenizer, silent_ids=())
    assert {reader.push(id_) for id_ in ids[:-1]} == {""}
    assert "\N{REPLACEMENT CHARACTER}" in reader.end()
