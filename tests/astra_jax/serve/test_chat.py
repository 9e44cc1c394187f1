"""Chats through the official client: the replies it reads, the prompts the template renders, and refused requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("openai", reason="needs the extra `openai`")

import openai

from astra_jax.chat.format import render
from astra_jax.chat.template import ChatTemplate
from synthesis.records import Message, ToolCall, ToolDocument
from tests.astra_jax.serve.running import LIMITS, Running, running, served
from tests.astra_jax.serve.scripted_decoder import ScriptedDecoder

ROOMY = replace(LIMITS, max_tokens=2048, num_pages=2048)
DOCUMENT = ToolDocument(
    name="get_rent",
    description="The rent of a flat, in €.",
    parameters={"type": "object", "properties": {"flat": {"type": "string"}}, "required": ["flat"]},
)
TOOLS: list[Any] = [DOCUMENT.to_openai()]
CALL = '<tool_call>\n{"name": "get_rent", "arguments": {"flat": "Amber Falcon"}}\n</tool_call>'

FUNCTION = {"name": "get_rent", "arguments": '{"flat": "Amber Falcon"}'}
CALLING = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}]}
ASKED: list[Any] = [{"role": "user", "content": "What is the rent of Amber Falcon?"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def policy(untrained, tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = untrained.tokenizer
    tokenizer.save(folder, model_max_length=2048)
    end_ids = (tokenizer.end_id, tokenizer.end_of_text_id)
    return served(untrained, ROOMY, template=ChatTemplate(folder), end_ids=end_ids)


@pytest.fixture(scope="module")
def decoder(policy) -> ScriptedDecoder:
    return ScriptedDecoder(policy.policy.tokenizer)


@pytest.fixture(scope="module")
def server(policy, decoder) -> Iterator[Running]:
    with running(policy, decoder=decoder) as up:
        yield up


@pytest.fixture
def says(decoder) -> Any:
    def say(text: str, *, failure: Exception | None = None) -> ScriptedDecoder:
        decoder.text, decoder.failure = text, failure
        decoder.prompts.clear(), decoder.samplings.clear(), decoder.sessions.clear(), decoder.aborted.clear()
        return decoder

    return say


@pytest.fixture(scope="module")
def client(server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def chat(client: Any, **rest: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": ASKED, **rest})


def streamed(client: Any, **rest: Any) -> tuple[list[Any], dict[str, Any]]:
    """The chunks, and the message that they add up to."""
    chunks = list(chat(client, stream=True, **rest))
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish": None}
    for chunk in chunks:
        for choice in chunk.choices:
            delta = choice.delta
            message["content"] += delta.content or ""
            message["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                assert call.index == len(message["calls"])
                message["calls"].append((call.function.name, call.function.arguments))
            message["finish"] = choice.finish_reason or message["finish"]
    return chunks, message


# --- replies ---


def test_a_reply_has_text_finish_and_usage(client, says):
    said = says("It is 2150 €.")
    reply = chat(client)
    (choice,) = reply.choices
    message = choice.message
    assert (message.role, message.content, message.tool_calls) == ("assistant", "It is 2150 €.", None)
    assert (choice.finish_reason, choice.index, reply.model, reply.object) == ("stop", 0, "tiny", "chat.completion")
    prompt_tokens = len(said._tokenizer.encode(said.prompts[0]))
    count = len(said._tokenizer.encode("It is 2150 €.")) + 1
    usage = reply.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt_tokens, count)
    assert (usage.total_tokens, usage.prompt_tokens_details.cached_tokens) == (prompt_tokens + count, prompt_tokens - 5)
    assert reply.id.startswith("chatcmpl-")


NO_CALL = "<tool_call>\nget_rent(1)\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "asked", "reasoning", "content", "num_calls", "finish"),
    [
        (f"<think>\nRent.\n</think>\n\n{CALL}\n{CALL}", {"tools": TOOLS}, "Rent.", None, 2, "tool_calls"),
        (f"One moment.\n{CALL}", {"tools": TOOLS}, None, "One moment.", 1, "tool_calls"),
        ("", {"tools": TOOLS}, None, "", 0, "stop"),
        (NO_CALL, {"tools": TOOLS}, None, NO_CALL, 0, "stop"),
        ("<think>\nnever ends", {"tools": TOOLS}, "never ends", "", 0, "stop"),
        (CALL, {}, None, CALL, 0, "stop"),
        (CALL, {"tools": TOOLS, "tool_choice": "none"}, None, CALL, 0, "stop"),
        ("It is 2150 €. 房租！", {}, None, "It is 2150 €. 房租！", 0, "stop"),
        ("It is 2150 €.", {"stop": ["2150"]}, None, "It is ", 0, "stop"),
        ("It is 2150 €.", {"stop": "€"}, None, "It is 2150 ", 0, "stop"),
        ("It is 2150 €.", {"stop": ["x", "is 2"]}, None, "It ", 0, "stop"),
    ],
)
def test_a_stream_says_the_same_as_a_whole_reply(client, says, text, asked, reasoning, content, num_calls, finish):
    said = says(text)
    choice = chat(client, seed=1, **asked).choices[0]
    assert len(said.aborted) == ("stop" in asked)  # behind a stop string nothing is sampled
    calls = choice.message.tool_calls or []
    assert (getattr(choice.message, "reasoning_content", None), choice.message.content) == (reasoning, content)
    assert (len(calls), len({call.id for call in calls}), choice.finish_reason) == (num_calls, num_calls, finish)
    assert all(json.loads(call.function.arguments) == {"flat": "Amber Falcon"} for call in calls)
    chunks, message = streamed(client, seed=1, stream_options={"include_usage": True}, **asked)
    assert (message["content"], message["reasoning_content"]) == (content or "", reasoning or "")
    assert message["calls"] == [(call.function.name, call.function.arguments) for call in calls]
    assert message["finish"] == finish
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (chunks[-1].choices, chunks[-1].usage.prompt_tokens > 0) == ([], True)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert sum(choice.finish_reason is not None for chunk in chunks for choice in chunk.choices) == 1


def test_a_message_that_is_cut_off_ends_by_length_and_half_a_call_is_none(client, says):
    said = says(CALL)
    for length in (8, len(said._tokenizer.encode(CALL.removesuffix("</tool_call>")))):
        choice = chat(client, tools=TOOLS, max_tokens=length).choices[0]
        assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
        assert CALL.startswith(choice.message.content)


def test_a_stream_ends_with_done_and_has_usage_only_if_asked(http, says):
    says("Yes.")
    for options, has_usage in (({}, False), ({"include_usage": True}, True)):
        reply = http.post(CHAT, json={"messages": ASKED, "stream": True, "stream_options": options})
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.text.endswith("data: [DONE]\n\n")
        assert ('"usage": {"prompt_tokens"' in reply.text) == has_usage


def test_a_stream_that_fails_late_tells_the_error(client, says):
    says("Yes, and more and more and more.", failure=RuntimeError("the device is gone"))
    with pytest.raises(openai.APIError, match="RuntimeError"):
        streamed(client)


def test_several_choices_have_draws_of_their_own_and_one_prompt(client, says):
    said = says("Yes.")
    reply = chat(client, n=3, seed=5)
    assert [(choice.index, choice.message.content) for choice in reply.choices] == [(n, "Yes.") for n in range(3)]
    assert len({(session.seed, session.slot) for session in said.sessions}) == 3
    assert reply.usage.prompt_tokens == len(said._tokenizer.encode(said.prompts[0]))
    chunks, message = streamed(client, n=3)
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1, 2}
    assert sorted(message["content"]) == sorted("Yes." * 3)


def test_log_probs_are_those_of_the_tokens(client, says):
    said = says("It is 2150 €.")
    expected = [said._tokenizer.decode([id_]) for id_ in said._tokenizer.encode("It is 2150 €.")] + ["<|im_end|>"]
    whole = chat(client, logprobs=True).choices
    chunks, _ = streamed(client, logprobs=True)
    for choices in (whole, [choice for chunk in chunks for choice in chunk.choices]):
        told = [each for choice in choices for each in choice.logprobs.content]
        assert [each.token for each in told] == expected
        assert {each.logprob for each in told} == {-0.5}


@pytest.mark.parametrize(
    ("asked", "sampled"),
    [
        ({}, {"temperature": 1.0, "top_k": None, "top_p": 1.0}),
        ({"temperature": 1e-30}, {"temperature": 0.0}),  # nothing can be divided by it
        ({"temperature": 0.001, "top_p": 0.9}, {"temperature": 0.001, "top_p": 0.9}),
        ({"extra_body": {"top_k": -1, "min_p": 0}}, {"top_k": None}),
        ({"extra_body": {"top_k": 20}}, {"top_k": 20}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_completion_tokens": 9, "max_tokens": 7}, {"max_tokens": 9}),
        ({"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_logprobs": 0}, {}),
        ({"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"}, {}),
        ({"parallel_tool_calls": True, "tool_choice": "auto", "extra_body": {"repetition_penalty": 1}}, {}),
    ],
)
def test_sampling_follows_the_request_and_values_without_effect_are_accepted(client, says, asked: Any, sampled: Any):
    said = says("Yes.")
    assert chat(client, **asked).choices[0].message.content == "Yes."
    (sampling,) = said.samplings
    assert {name: getattr(sampling, name) for name in sampled} == sampled


# --- prompts ---


def test_the_prompt_is_the_checkpoints_rendering_of_messages_and_tools(client, says):
    said = says("Yes.")
    call = ToolCall(id="1", name="get_rent", arguments={"flat": "Amber Falcon"})
    turns = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="The rent?"),
        Message(role="assistant", reasoning_content="I look.", tool_calls=(call,)),
        Message(role="tool", content="2150", tool_call_id="1"),
    ]
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "The "}, {"type": "text", "text": "rent?"}]},
        {**CALLING, "reasoning_content": "I look.", **dict.fromkeys(["content", "refusal", "annotations", "audio"])},
        {"role": "tool", "tool_call_id": "c1", "content": "2150"},
    ]
    chat(client, messages=history, tools=TOOLS)
    assert said.prompts.pop() == render(turns, [DOCUMENT], add_generation_prompt=True)
    odd = {"type": "function", "function": {"zebra": 1, **TOOLS[0]["function"], "response": {"说": "明"}}}
    chat(client, tools=[odd])
    assert json.dumps(odd, ensure_ascii=False) in said.prompts.pop()
    chat(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert said.prompts.pop().endswith("<think>\n\n</think>\n\n")


def test_a_reply_of_the_server_can_be_sent_back(client, says):
    """Thoughts, text, a block that is no call, and a call."""
    says(f"<think>\nThe <think> tag.\n</think>\n\nSo:\n{NO_CALL}\n{CALL}")
    message = chat(client, tools=TOOLS).choices[0].message.model_dump()
    says("Yes.")
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2150"}
    assert chat(client, messages=[*ASKED, message, result], tools=TOOLS).choices[0].message.content == "Yes."


FIELDS = ["messages", "tools", "stop", "n", "seed", "temperature", "stream_options", "chat_template_kwargs", "prompt"]
KEYS = st.sampled_from(["role", "content", "tool_calls", "function", "name", "type"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING))
def test_any_body_has_an_answer_or_a_400(http, says, body: dict[str, Any]):
    says("Yes.")
    reply = http.post(CHAT, content=json.dumps(body).encode())
    assert reply.status_code in (200, 400), reply.text


def test_with_its_key_a_client_chats_finds_the_names_and_gets_the_servers_longest_message(policy):
    decoder = ScriptedDecoder(policy.policy.tokenizer)
    with (
        running(policy, decoder=decoder, key="secret", default_max_tokens=11) as up,
        openai.OpenAI(base_url=f"{up.url}/v1", api_key="secret") as client,
    ):
        assert [model.id for model in client.models.list()] == ["tiny", "another/name"]
        assert client.models.retrieve("another/name").id == "another/name"
        for asked, expected in (({}, 11), ({"max_tokens": 4}, 4), ({"max_tokens": 40}, 40)):
            assert chat(client, **asked).choices[0].message.content == ""
            assert decoder.samplings[-1].max_tokens == expected
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("none")
        with pytest.raises(openai.BadRequestError, match="context_length_exceeded"):
            chat(client, max_tokens=100_000)
