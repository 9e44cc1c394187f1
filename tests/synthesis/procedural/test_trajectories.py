"""The embedded teacher is a generator: its values fit any schema, its texts state them, its agent recovers."""

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from synthesis.answers.expectation import meets_expectation
from synthesis.procedural.agent_turns import _PHRASES, take_turn
from synthesis.procedural.argument_values import drawn_value
from synthesis.procedural.task_grammar import FRAMES, clause_of
from synthesis.procedural.text_shapes import text_like
from synthesis.prompts.agent_turn import TakeTurn
from synthesis.records import Message, ToolCall, ToolDocument
from synthesis.written_language import foreign_passages
from tests.synthesis.trajectories.servers import HOTELS, task

argument_names = st.sampled_from(
    ["city", "order_id", "startDate", "limit", "price", "email", "url", "query", "tags", "x", "地点", "is_open", "time"]
)
bounds = st.integers(-50, 50)
schemas = (
    st.just({"type": "string"})
    | st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(1, 30))
    | st.builds(lambda n: {"type": "string", "minLength": n}, st.integers(1, 60))
    | st.builds(lambda a, n: {"type": "integer", "minimum": a, "maximum": a + n}, bounds, st.integers(0, 30))
    | st.builds(lambda a, n: {"type": "number", "minimum": a, "maximum": a + n}, bounds, st.integers(0, 30))
    | st.builds(lambda a: {"type": "integer", "minimum": a}, bounds)
    | st.builds(lambda a: {"type": "number", "maximum": a}, bounds)
    | st.builds(lambda n: {"type": "integer", "multipleOf": n}, st.integers(1, 20))
    | st.builds(lambda v: {"enum": v}, st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
    | st.just({"type": "boolean"})
    | st.builds(lambda n: {"type": "array", "items": {"type": "string"}, "minItems": n}, st.integers(0, 4))
    | st.just({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
    | st.just({"anyOf": [{"type": "null"}, {"type": "integer"}]})
)


@given(argument_names, schemas, st.integers(0, 1000), st.sampled_from(["en", "zh"]))
@settings(max_examples=400, deadline=None)
def test_drawn_values_fit_their_schema(name, schema, seed, language):
    value = drawn_value(name, schema, Random(seed), language)
    assert Draft202012Validator(schema).is_valid(value), value
    assert value == drawn_value(name, schema, Random(seed), language)


@pytest.mark.parametrize(
    ("pattern", "is_drawn"),
    [
        ("^(a+)+^b", False), ("(" * 3000 + ")" * 3000, False), ("((a{999}){999}){9}", False), ("(){4000000}", False),
        (r"[\ud800-\udfff]", False), ("\x02a", False), ("a++a", False), (r"[\x00-\uffff]{4}", True), ("a|^b$", True),
        ("(?i)[^a-y]{3}$", True), (r"^[^\x00-A]\d$", True),
    ],
)  # fmt: skip
def test_a_text_is_drawn_for_a_pattern_at_once_and_can_be_printed_or_none_is(pattern, is_drawn):
    for seed in range(20):
        text = text_like(pattern, Random(seed))
        assert (text is not None) == is_drawn
        assert text is None or (text.isprintable() and re.search(pattern, text))


def test_values_are_too_varied_to_be_remembered():
    texts = Counter(drawn_value("product", {"type": "string"}, Random(seed), "en") for seed in range(500))
    people = Counter(drawn_value("guest_name", {"type": "string"}, Random(seed), "zh") for seed in range(500))
    assert len(texts) > 80
    assert len(people) > 80


@pytest.mark.parametrize(
    ("description", "language", "clause"),
    [
        ("Retrieves the weather of a city. Call list_cities first.", "en", "retrieve the weather of a city"),
        ("Searches documents (full text).\n\nArgs: query", "en", "search documents"),
        ("Use `getUserInfo` results to greet", "en", "use `get user info` results to greet"),
        ("查询城市的天气。需要先登录。", "zh", "查询城市的天气"),
    ],
)
def test_descriptions_become_imperative_clauses(description, language, clause):
    assert clause_of(ToolDocument(name="f", description=description, parameters={}), language) == clause


@pytest.mark.parametrize(("language", "least"), [("en", 300), ("zh", 300)])
def test_requests_have_hundreds_of_frames_in_their_own_language_that_state_no_fact(language, least):
    frames = FRAMES[language]["frames"]
    assert len(set(frames)) == len(frames) >= least
    assert all(frame.count("{}") == 1 and not re.search(r"\d", frame) for frame in frames)
    assert [frame for frame in frames if foreign_passages(frame.format(""), language)] == []


@pytest.mark.parametrize(
    ("name", "schema", "about", "shape"),
    [
        ("address", {}, "Get the balance of an ERC-20 token", r"0x[0-9a-f]{40}"),
        ("contract_address", {"description": "0x…"}, "", r"0x[0-9a-f]{40}"),
        ("address", {}, "Find the nearest pharmacy", r"\d+ .*(Street|Lane|Road|Avenue|Drive)"),
        ("mint", {}, "Solana token price", r"[1-9A-HJ-NP-Za-km-z]{44}"),
        ("server_ip", {}, "", r"\d+\.\d+\.\d+\.\d+"),
        ("symbol", {}, "Binance order book", r"[A-Z]+USDT"),
        ("symbol", {}, "Price of a stock", r"[A-Z]+"),
        ("code", {"pattern": "^[A-Z]{3}-\\d{2}$"}, "", r"[A-Z]{3}-\d{2}"),
        ("start", {"description": "Unix timestamp"}, "", r"17\d{8}"),
        ("side", {"description": "Side, one of: buy, sell"}, "", r"buy|sell"),
        ("sql", {}, "Run a SQL query", r"SELECT .*"),
        ("repo", {"description": "Repository as owner/name"}, "", r"\w+/\w+"),
        ("frobnication", {}, "Frobnicate it", r"frobnication-\d+"),
    ],
)
def test_a_value_fits_the_subject_of_its_tool(name, schema, about, shape):
    for seed in range(20):
        value = drawn_value(name, {"type": "string", **schema}, Random(seed), "en", about)
        assert re.fullmatch(shape, value), value


def test_a_documented_example_is_a_likely_value():
    schema = {"type": "string", "description": "Champion (e.g. 'Ahri', or Jinx)"}
    drawn = Counter(drawn_value("champion", schema, Random(seed), "en", "a game") for seed in range(100))
    assert 40 < drawn["Ahri"] < 80


def conversation(*responses: tuple[str, bool]) -> tuple[Message, ...]:
    messages = [Message(role="user", content="Find a hotel in Oslo.")]
    for ordinal, (content, is_error) in enumerate(responses):
        call = ToolCall(id=f"call_{ordinal}", name="find_hotel", arguments={"city": "Oslo"})
        messages.append(Message(role="assistant", reasoning_content="x", tool_calls=(call,)))
        messages.append(Message(role="tool", content=content, tool_call_id=call.id, is_error=is_error))
    return tuple(messages)


def next_turn(*responses: tuple[str, bool]):
    request = TakeTurn(
        language="en", tools=HOTELS.tools, conversation=conversation(*responses), task=task("find_hotel", "book_hotel")
    )
    return take_turn(request, 0)


def test_the_agent_tries_again_after_a_passing_failure_and_gives_up_after_three_or_a_lasting_one():
    passing, lasting = ('{"error": "503 service unavailable"}', True), ('{"error": "Oslo not found"}', True)
    assert next_turn(passing).tool_calls[0].name == "find_hotel"
    assert next_turn(('{"hotel_i\ufffd', True)).tool_calls[0].name == "find_hotel"
    for responses in ([passing] * 3, [lasting]):
        reply = next_turn(*responses)
        assert not reply.tool_calls
        assert "could not" in reply.content or "not able" in reply.content


@pytest.mark.parametrize("text", [text for phrases in _PHRASES.values() for text in phrases["cannot"]])
def test_a_refusal_of_the_agent_is_one_by_the_rule_that_episodes_are_judged_by(text):
    assert meets_expectation("refuse", text.format("book a table"))


def test_a_refusal_does_the_possible_part_first_and_reports_it():
    refused = task("find_hotel", "book_hotel", expectation="refuse")

    def turn(*responses):
        tools = tuple(tool for tool in HOTELS.tools if tool.name != "book_hotel")
        asked = TakeTurn(language="en", tools=tools, conversation=conversation(*responses), task=refused)
        return take_turn(asked, 0)

    assert [call.name for call in turn().tool_calls] == ["find_hotel"]
    last = turn(('{"hotel_id": "H77", "stars": 2}', False))
    assert not last.tool_calls
    assert "H77" in last.content
    assert "stars 2" in last.content
    assert meets_expectation("refuse", last.content)


def test_an_answer_reports_every_field_and_the_reasoning_says_why():
    first = next_turn()
    assert "hotel" in first.reasoning
    assert re.search(r"hotel id|book hotel", first.reasoning)
    said = conversation(('{"hotel_id": "H77", "stars": 2, "pool": true}', False))
    found = TakeTurn(language="en", tools=HOTELS.tools, conversation=said, task=task("find_hotel"))
    answer = take_turn(found, 0).content
    assert all(said in answer for said in ("H77", "stars 2", "pool yes"))
