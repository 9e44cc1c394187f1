"""Messages taken apart as their text comes: what is certain is told at once, and the pieces do not matter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import END_THINK, END_TOOL_CALL, IM_END, THINK, TOOL_CALL
from astra_jax.chat.tool_calls import MalformedToolCall, ParsedToolCall, parse_turn
from astra_jax.serve.messages import Called, MessageParts, MessageText, Part, Said, Thought
from tests.time_limit import at_most

CALL = '<tool_call>\n{"name": "get_rent", "arguments": {"flat": "Amber Falcon"}}\n</tool_call>'


def taken_apart(pieces: list[str], *, is_cut: bool = False, **options: Any) -> list[Part]:
    reader = MessageParts(**options)
    parts = [part for piece in pieces for part in reader.push(piece)]
    return [*parts, *reader.end(is_cut=is_cut)]


def joined(parts: list[Part]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Thoughts, what is said, and calls."""
    return (
        "".join(part.text for part in parts if isinstance(part, Thought)),
        "".join(part.text for part in parts if isinstance(part, Said)),
        [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, Called)],
    )


def test_thoughts_content_and_calls_are_told_apart():
    text = f"<think>\nThe rent first.\n</think>\n\nOne moment.\n{CALL}\n{CALL}"
    thoughts, said, calls = joined(taken_apart([text]))
    assert (thoughts, said) == ("The rent first.", "One moment.")
    assert calls == [("get_rent", {"flat": "Amber Falcon"})] * 2
    parts = taken_apart([text])
    assert [part.number for part in parts if isinstance(part, Called)] == [0, 1]
    assert len({part.id for part in parts if isinstance(part, Called)}) == 2


def test_a_call_is_told_when_it_is_whole_and_text_as_soon_as_no_tag_can_begin_in_it():
    reader = MessageParts()
    assert reader.push("<thi") == []
    assert reader.push("nk>\nI loo") == [Thought("I loo")]
    assert reader.push("k </thin") == [Thought("k ")]
    assert reader.push("g</think>\n\nWell <tool") == [Thought("</thing"), Said("Well ")]
    assert reader.push("box> ") == [Said("<toolbox> ")]
    assert reader.push(CALL[:-1]) == []
    (call,) = reader.push(CALL[-1])
    assert isinstance(call, Called)
    assert json.loads(call.arguments) == {"flat": "Amber Falcon"}


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>\nget_rent(1)\n</tool_call>",
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"x": 1e999}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"x": "open}}\n</tool_call>',
        "<tool_call>" * 3,
    ],
)
def test_what_is_no_call_stays_in_the_content(block: str):
    assert joined(taken_apart([f"So: {block} and on"])) == ("", f"So: {block} and on", [])


def test_an_end_tag_in_an_argument_closes_nothing():
    arguments = {"text": f"a {END_TOOL_CALL} b {END_THINK} c"}
    text = f"{TOOL_CALL}\n{json.dumps({'name': 'f', 'arguments': arguments})}\n{END_TOOL_CALL}"
    assert joined(taken_apart([text])) == ("", "", [("f", arguments)])


def test_a_call_without_an_end_tag_counts_unless_the_message_was_cut_off():
    text = '<tool_call>\n{"name": "f", "arguments": {}}'
    assert joined(taken_apart([text])) == ("", "", [("f", {})])
    assert joined(taken_apart([text], is_cut=True)) == ("", text, [])


def test_without_tools_and_without_a_reasoning_parser_the_text_is_handed_on_as_it_is():
    text = f"\n<think>\nSo.\n</think>\n\n{CALL}\n\n"
    assert joined(taken_apart([text], splits_thoughts=False, reads_calls=False)) == ("", text, [])
    assert joined(taken_apart([text], reads_calls=False)) == ("So.", CALL, [])
    assert joined(taken_apart([text], splits_thoughts=False)) == (
        *("", "<think>\nSo.\n</think>"),
        [("get_rent", {"flat": "Amber Falcon"})],
    )


def test_a_message_may_begin_in_its_thoughts_or_never_leave_them():
    assert joined(taken_apart(["So.\n</think>\n\nYes."], begins_in_thoughts=True)) == ("So.", "Yes.", [])
    assert joined(taken_apart([f"<think>\nSo {CALL}"])) == (f"So {CALL}", "", [])


def test_after_the_most_calls_nothing_counts():
    reader = MessageParts(most_calls=1)
    assert len(reader.push(CALL + CALL)) == 1
    assert reader.is_done
    assert reader.push("more") == reader.end() == []


PIECES = st.sampled_from(
    [
        THINK,
        END_THINK,
        TOOL_CALL,
        END_TOOL_CALL,
        CALL,
        "\n",
        "\n\n",
        "a",
        "<",
        "tool",
        "{",
        '"',
        "}",
        " ",
        "好",
        '{"name": "f"}',
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join), st.data(), st.booleans())
@example(f'{TOOL_CALL}{{"name": "f", "arguments": {{"x": "{END_TOOL_CALL}', None, False)
def test_the_pieces_that_text_comes_in_do_not_matter(text: str, data: Any, is_cut: bool):
    whole = joined(taken_apart([text], is_cut=is_cut))
    assert joined(taken_apart(list(text), is_cut=is_cut)) == whole
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert joined(taken_apart(pieces, is_cut=is_cut)) == whole


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_calls_are_those_that_episodes_read(text: str):
    """Two differences are meant: a `<think>` behind some text opens no thoughts here, and an open string in a call that
    cannot be read may hold the end tag.
    """
    episode = parse_turn(text + IM_END)
    thoughts, said, calls = joined(taken_apart([text]))
    if THINK in text.lstrip()[1:] or (END_THINK in text and not text.lstrip().startswith(THINK)):
        return
    if any(isinstance(call, MalformedToolCall) for call in episode.tool_calls):
        return
    expected = [(call.name, call.arguments) for call in episode.tool_calls if isinstance(call, ParsedToolCall)]
    assert (thoughts.strip(), calls) == (episode.reasoning_content.strip(), expected)
    assert said == episode.content


def test_a_call_that_begins_without_an_object_ends_at_the_first_end_tag():
    text = f'{TOOL_CALL}"{END_TOOL_CALL}{CALL}'
    assert joined(taken_apart([text])) == ("", f'{TOOL_CALL}"{END_TOOL_CALL}', [("get_rent", {"flat": "Amber Falcon"})])


def test_a_number_of_five_thousand_digits_is_no_call_and_no_fault():
    text = f'{TOOL_CALL}\n{{"name": "f", "arguments": {{"x": {"9" * 5000}}}}}\n{END_TOOL_CALL}'
    assert joined(taken_apart([text])) == ("", text, [])


def test_many_end_tags_in_an_open_string_are_looked_through_once():
    """It would take minutes if each were looked for again from the beginning."""
    open_string = f'{TOOL_CALL}{{"name": "' + END_TOOL_CALL * 20_000
    reader = MessageParts()
    for first in range(0, len(open_string), 64):
        assert reader.push(open_string[first : first + 64]) == []
    assert joined(reader.end())[1] == open_string


# --- tokens to text ---


def decoded(tokenizer, ids: list[int], *, silent_ids: tuple[int, ...] = (), stops: list[str] | None = None) -> str:
    text = MessageText(tokenizer, silent_ids=silent_ids, stops=stops or ())
    return "".join(text.push(id_) for id_ in ids) + text.end()


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40), stops=st.lists(st.text("ab ", max_size=3), max_size=3))
def test_text_is_whole_characters_up_to_the_first_stop_string(tokenizer, text: str, stops: list[str]):
    text = tokenizer.decode(tokenizer.encode(text))  # normalised
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    assert decoded(tokenizer, tokenizer.encode(text), stops=stops) == text[: min(places, default=len(text))]


def test_a_character_of_several_tokens_comes_whole_and_what_is_none_is_replaced(tokenizer):
    ids = tokenizer.encode("龘")
    assert len(ids) > 1, "this test needs a character that the tokenizer does not know"
    reader = MessageText(tokenizer, silent_ids=())
    assert [reader.push(id_) for id_ in ids] == [*[""] * (len(ids) - 1), "龘"]
    reader = MessageText(tokenizer, silent_ids=())
    assert {reader.push(id_) for id_ in ids[:-1]} == {""}
    assert "\N{REPLACEMENT CHARACTER}" in reader.end()


def test_the_token_that_ends_a_message_is_no_text_of_it(tokenizer):
    ids = [*tokenizer.encode("Yes."), tokenizer.end_id]
    assert decoded(tokenizer, ids, silent_ids=(tokenizer.end_id,)) == "Yes."


@pytest.mark.parametrize(("begun", "told"), [("", "b"), ("<think>a</think>a", "a" + "\n" * 800_000 + "b")])
def test_empty_lines_without_end_take_time_that_grows_with_them(begun, told):
    with at_most(20):
        _, said, _ = joined(taken_apart([begun, *["\n" * 8] * 100_000, "b"]))
    assert said == told


@pytest.mark.parametrize("text", ["  \n <think>a</think>b", "  \n b", " \n", "\n\n<thin"])
def test_blanks_at_the_beginning_count_where_no_thoughts_follow(text):
    assert joined(taken_apart(list(text))) == joined(taken_apart([text]))
