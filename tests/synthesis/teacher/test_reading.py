"""Replies are read leniently: their form is mended and counted, their meaning is never made up."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthesis.prompts.agent_turn import AgentMessage, RequestedCall
from synthesis.prompts.chains import ProposedChain, ProposedChains, Vote
from synthesis.prompts.judges import Judgement
from synthesis.prompts.tasks import ScoredTask
from synthesis.prompts.tool_writing import CallArguments
from synthesis.questions.decomposition import QAInstance
from synthesis.teacher.lenient_json import json_values
from synthesis.teacher.reading import Unreadable, read_reply

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
OBJECT = st.dictionaries(TEXT, VALUE, min_size=1, max_size=3)
PROSE = st.text(st.characters(categories=["L", "Zs", "P"], exclude_characters="[]{}\"'`<"), max_size=12)


@given(OBJECT, st.booleans(), st.sampled_from([None, 1]))
def test_json_is_read_as_json_and_nothing_is_mended(value, ascii_only, indent):
    (found,) = json_values(json.dumps(value, ensure_ascii=ascii_only, indent=indent))
    assert found.value == value
    assert not found.mended


@given(OBJECT, PROSE, PROSE)
def test_an_object_is_found_inside_prose_fences_and_after_thoughts(value, before, after):
    text = json.dumps(value)
    for spoiled in (
        f"{before}\n{text}\n{after}",
        f"{before}\n```json\n{text}\n```\n{after}",
        f"<think>{before} {{}} {after}</think>{text}",
        f"{before}{{}}</think>\n{text}",
        json.dumps(text),
    ):
        assert next(json_values(spoiled)).value == value


@given(st.dictionaries(st.text("abc xyz", min_size=1), st.booleans() | st.none() | st.integers() | st.text("abc\n\"'")))
def test_literals_of_python_single_quotes_and_trailing_commas_are_read(value):
    text = repr(value)  # JSON but for quotes and three words
    if value:
        text = f"{text[:-1]},}}"
    assert next(json_values(text)).value == value


@given(st.dictionaries(TEXT, st.text(st.characters(codec="utf-8"), max_size=12), min_size=1))
def test_raw_newlines_and_other_control_characters_of_a_text_are_kept(value):
    def quoted(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = "{" + ",".join(f"{quoted(name)}:{quoted(content)}" for name, content in value.items()) + "}"
    assert next(json_values(text)).value == value


@given(OBJECT, st.data())
def test_a_text_that_is_cut_off_is_no_value_and_no_part_of_it_is_taken_for_the_whole(value, data):
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    assert list(json_values(cut)) == []
    assert list(json_values(f"Here it is: {cut}")) == []


@given(st.text())
def test_no_text_raises_anything_but_that_it_is_no_reply(text):
    for spoiled in (text, f'{{"score": {text}}}', f'{{"score": 1, "reason": "{text}"}}'):
        with contextlib.suppress(Unreadable):
            read_reply(spoiled, Judgement)


GOOD = Judgement(score=0.5, reason="so")
READABLE = {
    "prose": 'Sure {as asked}: {"score": 0.5, "reason": "so"} Anything else?',
    "a fence": 'As asked:\n```json\n{"score": 0.5, "reason": "so"}\n```',
    "thoughts": '<think>{"score": 1, "reason": "a draft"}</think>{"score": 0.5, "reason": "so"}',
    "a trailing comma": '{"score": 0.5, "reason": "so",}',
    "single quotes": "{'score': 0.5, 'reason': 'so'}",
    "keys too many": '{"score": 0.5, "reason": "so", "confidence": {"score": 1}}',
    "another spelling of a key": '{"Score": 0.5, "reason": "so"}',
    "a wrapper": '{"judgement": {"score": 0.5, "reason": "so"}}',
    "JSON in a string": json.dumps('{"score": 0.5, "reason": "so"}'),
    "a fraction": '{"score": "5/10", "reason": "so"}',
    "unknown escapes": r'{"score": 0.5, "reason": "\d+"}',
    "a number for a text": '{"score": 0.5, "reason": 7}',
}


@pytest.mark.parametrize("kind", READABLE)
def test_mendings_are_counted_by_kind(kind):
    reply, mended = read_reply(READABLE[kind], Judgement)
    assert reply.score == GOOD.score
    assert reply.reason == {"unknown escapes": r"\d+", "a number for a text": "7"}.get(kind, GOOD.reason)
    assert mended[kind] == 1


def test_calls_are_read_with_arguments_as_text_null_for_empty_fields_and_one_call_for_a_list():
    text = '{"reasoning": "a", "content": null, "tool_calls": {"name": "f", "arguments": "{\\"x\\": [1]}"}}'
    reply, mended = read_reply(text, AgentMessage)
    assert reply == AgentMessage(reasoning="a", tool_calls=(RequestedCall(name="f", arguments={"x": [1]}),))
    assert dict(mended) == {"null for an empty field": 1, "one object for a list": 1, "JSON in a string": 1}


@pytest.mark.parametrize(
    "before",
    ["{", "{[1] {", "{{as asked}} {", "[note] [see 1] {", 'Perhaps {"score": 1, "reason": "a"}. On second thoughts: '],
)
def test_braces_of_a_template_or_of_prose_hide_no_object_and_of_two_replies_the_last_is_meant(before):
    assert read_reply(before + '{"score": 0.5, "reason": "so"}' + "}" * (before[-1] == "{"), Judgement)[0] == GOOD


def test_arguments_are_data_and_nothing_in_them_is_mended():
    arguments = {"x": None, "toolCalls": "{}", "y": "5/10", "extra": "[1]"}
    text = json.dumps({"reasoning": "a", "tool_calls": [{"name": "f", "arguments": arguments, "id": 1}]})
    reply, mended = read_reply(text, AgentMessage)
    assert reply.tool_calls[0].arguments == arguments
    assert dict(mended) == {"keys too many": 1}


def test_a_bare_list_is_that_of_a_reply_which_has_nothing_else():
    reply, _ = read_reply('[{"task": "a", "tools": ["x", "y"]}]', ProposedChains)
    assert reply.proposals == (ProposedChain(task="a", tools=("x", "y")),)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "text",
    [
        '{"score": 8, "reason": "of ten?"}', '{"score": "high", "reason": "x"}', '{"score": null, "reason": "x"}',
        '{"reason": "no score"}', '{"score": NaN, "reason": "x"}', '{"score": 1e999, "reason": "x"}',
        '{"score": 0.5 "reason": {"score": 1, "reason": "inside"}}', '{"score": "3/0", "reason": "x"}',
        '{"first": {"score": 1, "reason": "a"}, "second": {"score": 0, "reason": "b"}}', "", "null", "[]", "8",
        '<think>{"score": 1, "reason": "never spoken"}', '{"score": 1, "reason": "\\ud800"}',
        '{"score": true, "reason": "of ten?"}', '{"score": False, "reason": "x"}',
        '{"judgement": {"score": true, "reason": "in a wrapper"}}',
        "[" * 100_000, '{"a":' * 100_000, "{" * 100_000, "[1," * 50_000, "'" * 50_000,
    ],
)  # fmt: skip
def test_a_text_that_would_need_another_meaning_or_is_endless_is_no_reply(text):
    with pytest.raises(Unreadable):
        read_reply(text, Judgement)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"coherent": "1/1", "reason": "a fraction where no number is wanted"}', Vote),
        *((f'{{"reason": {reason}}}', ScoredTask) for reason in (nested(900), '{"a": ' * 900 + "1" + "}" * 900)),
        *(
            (f'{{"arguments": {arguments}}}', CallArguments)
            for depth in (99, 150, 198, 240, 300)  # the sandbox takes 98
            for arguments in (f'{{"a": {nested(depth)}}}', json.dumps(f'{{"a": {nested(depth)}}}'))
        ),
        *(
            (f'{{"arguments": {{"a": {place.replace("N", number)}}}}}', CallArguments)
            for number in ("9" * 4300, "-1" + "0" * 400, "1" + "0" * 309, "1e999")  # no double holds it
            for place in ("N", "[N]", '{"b": [0, N]}')
        ),
    ],
)
def test_a_value_that_its_type_the_sandbox_or_a_double_cannot_hold_is_no_reply(text, kind):
    with pytest.raises(Unreadable):
        read_reply(text, kind)


@pytest.mark.parametrize("said", ["see [1]", 'either ["a"] or ["b"]', "[a] then [b]"])
def test_brackets_in_the_prose_of_a_field_are_not_the_list_that_it_should_have_been(said):
    with pytest.raises(Unreadable):
        read_reply(json.dumps({"task": "a", "tools": said}), ProposedChain)
    assert read_reply(json.dumps({"task": "a", "tools": '["a", "b"]'}), ProposedChain)[0].tools == ("a", "b")


def test_a_value_of_the_deepest_nesting_and_the_largest_number_are_read_back():
    for arguments in (f'{{"a": {nested(98)}}}', f'{{"a": {nested(97)[:97]}1{nested(97)[97:]}}}'):
        reply, _ = read_reply(f'{{"arguments": {arguments}}}', CallArguments)
        assert reply.arguments == json.loads(arguments)
        assert CallArguments.model_validate_json(reply.model_dump_json()) == reply
    for number in (10**308, -(10**308), 1.7976931348623157e308, 0, True):
        assert read_reply(json.dumps({"arguments": {"a": number}}), CallArguments)[0].arguments == {"a": number}


@pytest.mark.parametrize("operand", ["inf", "-Infinity", "nan", "1e999"])
def test_a_text_that_a_field_would_read_as_no_finite_number_is_no_reply(operand):
    composition = {"operation": "times", "inputs": ["q1"], "operand": operand}
    instance = {
        "question": "Q?", "answer": 1, "scenario": "single_hop", "hops": 1, "nodes": [], "composition": composition,
        "entities": [],
    }  # fmt: skip
    with pytest.raises(Unreadable, match="larger than a double holds"):
        read_reply(json.dumps(instance), QAInstance)
    assert read_reply(json.dumps(instance | {"composition": composition | {"operand": "1.5"}}), QAInstance)
