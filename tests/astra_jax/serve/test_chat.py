"""Chats and texts through the official client: what it reads, what the template is given, what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("openai", reason="needs the extra `openai`")

import openai

from astra_jax.chat.format import END_TOOL_CALL, render
from astra_jax.chat.template import ChatTemplate
from astra_jax.serve import service as service_module
from astra_jax.serve.service import ServingOptions
from synthesis.records import Message, ToolCall, ToolDocument
from tests.astra_jax.serve.running import LIMITS, SAMPLING_FAULTS, Running, running, served
from tests.astra_jax.serve.scripted_decoder import ScriptedDecoder

ROOMY = replace(LIMITS, max_tokens=2048, num_pages=2048)
DOCUMENT = ToolDocument(
    name="get_rent",
    description="The rent of a flat, in €.",
    parameters={"type": "object", "properties": {"flat": {"type": "string"}}, "required": ["flat"]},
)
TOOLS: list[Any] = [DOCUMENT.to_openai()]
CALL = '<tool_call>\n{"name": "get_rent", "arguments": {"flat": "Amber Falcon"}}\n</tool_call>'


def calling(arguments: Any) -> dict[str, Any]:
    function = {"name": "get_rent", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


CALLING = calling('{"flat": "Amber Falcon"}')
ASKED: list[Any] = [{"role": "user", "content": "What is the rent of Amber Falcon?"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


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
    def say(text: str, *, failure: Exception | None = None, seconds_a_call: float = 0.0) -> ScriptedDecoder:
        decoder.text, decoder.failure, decoder.seconds_a_call = text, failure, seconds_a_call
        decoder.prompts.clear(), decoder.samplings.clear(), decoder.sessions.clear()
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


# --- what is said ---


def test_a_reply_has_text_finish_and_usage(client, says):
    said = says("It is 2150 €.")
    reply = chat(client)
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == (
        "assistant",
        "It is 2150 €.",
        None,
    )
    assert (choice.finish_reason, choice.index, reply.model, reply.object) == ("stop", 0, "tiny", "chat.completion")
    prompt_tokens = len(said._tokenizer.encode(said.prompts[0]))
    assert reply.usage.prompt_tokens == prompt_tokens
    assert reply.usage.completion_tokens == len(said._tokenizer.encode("It is 2150 €.")) + 1
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens == prompt_tokens - 5
    assert reply.id.startswith("chatcmpl-")
    assert abs(reply.created - time.time()) < 100


def test_reasoning_and_parallel_calls_are_told_apart(client, says):
    says(f"<think>\nThe rent first.\n</think>\n\n{CALL}\n{CALL}")
    message = chat(client, tools=TOOLS).choices[0].message
    assert message.reasoning_content == "The rent first."
    assert message.content is None
    assert [(call.type, call.function.name) for call in message.tool_calls] == [("function", "get_rent")] * 2
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"flat": "Amber Falcon"}] * 2
    assert len({call.id for call in message.tool_calls}) == 2


@pytest.mark.parametrize(
    ("text", "content", "finish"),
    [
        (f"One moment.\n{CALL}", "One moment.", "tool_calls"),
        ("", "", "stop"),
        ("<tool_call>\nget_rent(1)\n</tool_call>", "<tool_call>\nget_rent(1)\n</tool_call>", "stop"),
        ("<think>\nnever ends", "", "stop"),
    ],
)
def test_content_is_a_text_unless_there_are_calls_alone(client, says, text: str, content: str, finish: str):
    says(text)
    choice = chat(client, tools=TOOLS).choices[0]
    assert (choice.message.content, choice.finish_reason) == (content, finish)


@pytest.mark.parametrize("rest", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}])
def test_without_tools_a_call_is_text(client, says, rest: dict[str, Any]):
    says(CALL)
    choice = chat(client, **rest).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL, None, "stop")


def test_a_message_that_is_cut_off_ends_by_length_and_half_a_call_is_none(client, says):
    says(CALL)
    choice = chat(client, tools=TOOLS, max_tokens=8).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert CALL.startswith(choice.message.content)


def test_without_parallel_calls_the_first_ends_the_message_and_nothing_behind_it_is_counted(client, says):
    said = says(CALL * 3 + "x" * 500)
    reply = chat(client, tools=TOOLS, parallel_tool_calls=False, logprobs=True)
    choice = reply.choices[0]
    assert (len(choice.message.tool_calls), choice.finish_reason) == (1, "tool_calls")
    ids = said._tokenizer.encode(said.text)
    count = next(k for k in range(len(ids)) if END_TOOL_CALL in said._tokenizer.decode(ids[:k]))
    assert (reply.usage.completion_tokens, len(choice.logprobs.content)) == (count, count)


@pytest.mark.parametrize(
    ("rest", "reasoning", "content"),
    [
        ({}, "So.", "Yes."),
        ({"extra_body": {"separate_reasoning": False}}, None, "<think>\nSo.\n</think>\n\nYes."),
        ({"extra_body": {"separate_reasoning": True}}, "So.", "Yes."),
    ],
)
def test_thoughts_are_split_off_as_the_request_says(client, says, rest: Any, reasoning: str | None, content: str):
    says("<think>\nSo.\n</think>\n\nYes.")
    message = chat(client, **rest).choices[0].message
    assert (getattr(message, "reasoning_content", None), message.content) == (reasoning, content)


@pytest.mark.parametrize(
    "text",
    ["It is 2150 €. 房租！", f"<think>\nSo.\n</think>\n\nWell.\n{CALL}\n{CALL}", "", "<think>\nSo", "a\n\nb\n"],
)
def test_a_stream_says_what_a_whole_reply_says(client, says, text: str):
    says(text)
    whole = chat(client, tools=TOOLS, seed=1).choices[0]
    chunks, message = streamed(client, tools=TOOLS, seed=1, stream_options={"include_usage": True})
    assert message["content"] == (whole.message.content or "")
    assert message["reasoning_content"] == (getattr(whole.message, "reasoning_content", None) or "")
    calls = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or []]
    assert (message["calls"], message["finish"]) == (calls, whole.finish_reason)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (chunks[-1].choices, chunks[-1].usage.prompt_tokens > 0) == ([], True)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert sum(choice.finish_reason is not None for chunk in chunks for choice in chunk.choices) == 1


def test_a_stream_ends_with_done_and_has_usage_only_if_asked(http, says):
    says("Yes.")
    for options, has_usage in (({}, False), ({"include_usage": True}, True)):
        body = {"model": "tiny", "messages": ASKED, "stream": True, "stream_options": options}
        reply = http.post(CHAT, json=body)
        lines = [line for line in reply.text.split("\n\n") if line]
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert lines[-1] == "data: [DONE]"
        assert ('"usage": {"prompt_tokens"' in reply.text) == has_usage


def test_a_stream_that_fails_late_tells_the_error(client, says):
    says("Yes, and more and more and more.", failure=RuntimeError("the device is gone"))
    with pytest.raises(openai.APIError, match="RuntimeError"):
        streamed(client)


def test_several_choices_have_draws_of_their_own_and_one_prompt(client, says):
    said = says("Yes.")
    reply = chat(client, n=3, seed=5)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({(session.seed, session.slot) for session in said.sessions}) == 3
    assert reply.usage.prompt_tokens == len(said._tokenizer.encode(said.prompts[0]))
    chunks, _ = streamed(client, n=3)
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1, 2}


@pytest.mark.parametrize(
    ("stop", "content"), [(["2150"], "It is "), ("€", "It is 2150 "), (["x", "is 2"], "It "), ([], "It is 2150 €.")]
)
def test_stop_strings_end_the_message_and_are_no_part_of_it(client, says, stop: Any, content: str):
    says("It is 2150 €.")
    choice = chat(client, stop=stop).choices[0]
    assert (choice.message.content, choice.finish_reason) == (content, "stop")
    assert streamed(client, stop=stop)[1]["content"] == content


def test_log_probs_are_those_of_the_tokens(client, says):
    said = says("It is 2150 €.")
    logprobs = chat(client, logprobs=True).choices[0].logprobs.content
    tokens = [said._tokenizer.decode([id_]) for id_ in said._tokenizer.encode("It is 2150 €.")]
    assert [each.token for each in logprobs] == [*tokens, "<|im_end|>"]
    assert {each.logprob for each in logprobs} == {-0.5}
    chunks, _ = streamed(client, logprobs=True)
    told = [
        each.token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for each in choice.logprobs.content
    ]
    assert told == [*tokens, "<|im_end|>"]


@pytest.mark.parametrize(
    ("asked", "sampled"),
    [
        ({}, {"temperature": 1.0, "top_k": None, "top_p": 1.0}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 0.001, "top_p": 0.9}, {"temperature": 0.001, "top_p": 0.9}),
        ({"extra_body": {"top_k": -1, "min_p": 0}}, {"top_k": None}),
        ({"extra_body": {"top_k": 20}}, {"top_k": 20}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_completion_tokens": 9, "max_tokens": 7}, {"max_tokens": 9}),
        ({"extra_body": {"stop_token_ids": [5]}}, {"stop_ids": (5,)}),
        ({"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}, {}),
        ({"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"}, {}),
        ({"extra_body": {"never_heard_of": {"x": 1}}}, {}),
        ({"response_format": {"type": "text"}, "tool_choice": "auto"}, {}),
    ],
)
def test_sampling_is_what_is_asked_for_and_what_asks_for_nothing_is_taken(client, says, asked: Any, sampled: Any):
    said = says("Yes.")
    assert chat(client, **asked).choices[0].message.content == "Yes."
    (sampling,) = said.samplings
    assert {name: getattr(sampling, name) for name in sampled} == sampled


def test_a_request_that_names_no_length_gets_what_fits_or_the_servers_default(policy, says, decoder):
    says("Yes.")
    options = ServingOptions(default_max_tokens=11)
    with running(policy, decoder=ScriptedDecoder(policy.policy.tokenizer), options=options) as up:
        for asked, expected in (({}, 11), ({"max_tokens": 4}, 4), ({"max_tokens": 40}, 40)):
            with up.client() as http:
                assert http.post(CHAT, json={"messages": ASKED, **asked}).status_code == 200
            assert up.decoder.samplings[-1].max_tokens == expected


# --- what the template is given ---


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
    assert said.prompts == [render(turns, [DOCUMENT], add_generation_prompt=True)]


def test_what_the_server_says_can_be_sent_back(client, says):
    """Thoughts, text, a block that is no call, and a call."""
    says(f"<think>\nThe <think> tag.\n</think>\n\nSo:\n<tool_call>\nget_rent(1)\n</tool_call>\n{CALL}")
    message = chat(client, tools=TOOLS).choices[0].message.model_dump()
    says("Yes.")
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2150"}
    assert chat(client, messages=[*ASKED, message, result], tools=TOOLS).choices[0].message.content == "Yes."


def test_tools_keep_their_order_and_fields_that_are_no_standard(client, says):
    said = says("Yes.")
    odd = {
        "type": "function",
        "function": {"zebra": 1, **TOOLS[0]["function"], "response": {"type": "number", "说": "明"}},
    }
    chat(client, tools=[odd])
    assert json.dumps(odd, ensure_ascii=False) in said.prompts[0]


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def calling_f(*ids: str, arguments: Any = "{}") -> dict[str, Any]:
    calls = [{"id": id_, "function": {"name": "f", "arguments": arguments}} for id_ in ids]
    return {"role": "assistant", "tool_calls": calls}


@pytest.mark.parametrize(
    "history",
    [
        [{"role": "system", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, user("So?")],
        [user("a"), {"role": "system", "content": "b"}, user("c")],
        [{"role": "developer", "content": "Hi"}, user("So?")],
        [user("a"), {"role": "assistant"}, user("c")],
        [user("a"), {"role": "assistant", "content": "", "tool_calls": None}],
        [user("a"), {"role": "assistant", "tool_calls": []}, user("c")],
        [user("a"), {"role": "assistant", "reasoning": "r", "content": "b"}, user("")],
        [user(None)],
        [user(["a", {"type": "text", "text": "b"}])],
        [calling_f("1", "2"), *({"role": "tool", "content": text} for text in ("x", [{"type": "text", "text": "y"}]))],
        [user("a", name="me")],
        *([calling_f("1", arguments=arguments)] for arguments in ({"a": 1}, "", None)),
        [user("<|im_end|> 😀 \u0000 \ud7ff")],
    ],
)
def test_odd_histories_are_taken(http, says, history: list[Any]):
    says("Yes.")
    reply = http.post(CHAT, json={"model": "tiny", "messages": history})
    assert (reply.status_code, reply.json()["choices"][0]["message"]["content"]) == (200, "Yes.")


def test_the_templates_own_options_are_handed_on(client, says):
    said = says("Yes.")
    chat(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert said.prompts[0].endswith("<think>\n\n</think>\n\n")
    assert chat(client, extra_body={"chat_template_kwargs": {}}).choices[0].message.content == "Yes."


# --- what is refused ---


def refused(reply: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a reply, which is one line in OpenAI's form."""
    error = reply.json()["error"]
    assert (reply.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert "\n" not in error["message"]
    assert (error["code"] == "context_length_exceeded") == ("tokens, found" in error["message"])
    return error


CHAT_FAULTS: dict[str, tuple[Any, ...]] = {
    "n": (0, 1000, 10**30),
    "seed": ("x", 2**63, -(2**63) - 1),
    "max_tokens": (0,),
    "top_logprobs": (5,),
    "response_format": ({"type": "json_schema", "json_schema": {}}, {"type": "json_object"}),
    "tool_choice": ("required", {"function": {"name": "get_rent"}}),
    "tools": ({"a": 1},),
    "stop": (["a"] * 17, 5),
    "stop_token_ids": ([10**9],),
    "stream": ("yes",),
    "chat_template_kwargs": ({"tokenize": True}, {"add_generation_prompt": False}),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in {**SAMPLING_FAULTS, **CHAT_FAULTS}.items() for value in values],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(http, says, field: str, value: Any):
    says("Yes.")
    error = refused(http.post(CHAT, json={"messages": ASKED, field: value}))
    assert field in error["message"]
    assert error["param"] == (None if field in ("top_p", "top_k") else field)


@pytest.mark.parametrize(
    ("body", "status", "says_why"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[]", 400, "the body"),
        *((body, 400, "messages") for body in ({"model": "tiny"}, {"messages": []}, {"messages": "Hi"})),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, 400, '"robot"'),
        ({"messages": [user([{"type": "image_url", "image_url": {}}])]}, 400, '"image_url"'),
        ({"messages": ASKED, "model": "other"}, 404, "expected a model of tiny"),
        ({"messages": ASKED, "temperature": 100.5}, 400, "temperature: Input should be less than or equal to 100"),
        ({"messages": ASKED, "min_tokens": 5}, 400, "min_tokens: this server does not do that"),
        ({"messages": ASKED, "max_tokens": 100_000}, 400, "at most 2048 tokens"),
        ({"messages": ASKED, "max_tokens": 10**30}, 400, "at most 2048 tokens"),
        ({"messages": ASKED, "max_completion_tokens": 10**4000}, 400, "at most 2048 tokens"),
        ({"messages": [user("word " * 3000)]}, 400, "at most 2048 tokens"),
        ({"messages": [user("word " * 300_000)]}, 400, "at most 2048 tokens"),
        ({"messages": [*ASKED, CALLING, {"role": "tool", "content": "é" * 500_000}]}, 400, "at most 2048 tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_in_one_line(http, says, body: Any, status: int, says_why: str):
    says("Yes.")
    reply = http.post(CHAT, content=body) if isinstance(body, bytes) else http.post(CHAT, json=body)
    assert says_why in refused(reply, status)["message"]


# What else is refused is in the tests of synthesis/foreign_messages.py; a body may hold 1e999, which is no JSON.
BROKEN = (
    b'{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1e999}}}]}]}'
)
NO_TOOL = b'{"messages": [{}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": 1e999}}}]}'


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": [1]}, "messages.0"),
        ({"messages": [user(5)]}, "messages.0.content"),
        ({"messages": [*ASKED, CALLING, *ASKED]}, "messages.2"),
        ({"messages": [*ASKED, {"role": "tool", "content": "x"}]}, "messages.1.tool_call_id"),
        ({"messages": [calling("{broken")]}, "messages.0.tool_calls.0.function.arguments"),
        (BROKEN, "messages.0.tool_calls.0.function.arguments"),
        ({"messages": ASKED, "tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        (NO_TOOL, "tools.0"),
    ],
)
def test_a_message_or_a_tool_that_cannot_be_read_is_refused_by_its_place(http, says, body: Any, place: str):
    says("Yes.")
    error = refused(http.post(CHAT, content=body if isinstance(body, bytes) else json.dumps(body).encode()))
    assert place in error["message"]
    assert error["param"] == place


def test_a_prompt_that_fits_is_read_however_many_bytes_its_tokens_have(policy, monkeypatch):
    monkeypatch.setattr(service_module, "_LEAST_BODY_BYTES", 0)
    tokenizer = policy.policy.tokenizer
    tokens = (tokenizer.decode([id_]) for id_ in range(tokenizer.vocab_size))
    longest = max((text for text in tokens if "�" not in text), key=lambda text: len(text.encode()))
    text = longest * 2000
    escaped = "".join(f"\\u{ord(character):04x}" for character in text)
    assert len(tokenizer.encode(text)) <= 2000
    with running(policy, decoder=ScriptedDecoder(tokenizer)) as up, up.client() as http:
        assert http.post(COMPLETIONS, content=f'{{"prompt": "{escaped}", "max_tokens": 1}}').status_code == 200


def test_the_client_raises_its_own_errors(client, says):
    says("Yes.")
    with pytest.raises(openai.NotFoundError):
        chat(client, model="other")
    with pytest.raises(openai.BadRequestError, match="context_length_exceeded"):
        chat(client, max_tokens=100_000)


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
    for path in (CHAT, COMPLETIONS):
        reply = http.post(path, content=json.dumps(body).encode())
        assert reply.status_code in (200, 400), reply.text


# --- plain text ---


def test_a_text_is_continued_as_it_is(client, says):
    said = says("<think>\nSo.\n</think>\n\n" + CALL)
    reply = client.completions.create(model="tiny", prompt="<|im_start|>user\nHi", max_tokens=200)
    assert said.prompts == ["<|im_start|>user\nHi"]
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (said.text, "stop")
    chunks = list(client.completions.create(model="tiny", prompt="Hi", max_tokens=200, stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == said.text


def test_prompts_may_be_several_texts_or_token_ids(client, says):
    said = says("Yes.")
    reply = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=9)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert said.prompts == ["a", "a", "b", "b"]
    ids = said._tokenizer.encode("Hello")
    for prompt in (ids, [ids, ids]):
        said.prompts.clear()
        client.completions.create(model="tiny", prompt=prompt, max_tokens=9)
        assert set(said.prompts) == {"Hello"}


def test_log_probs_of_a_text_say_where_its_tokens_begin(client, says):
    said = says("It is 2150.")
    logprobs = client.completions.create(model="tiny", prompt="a", max_tokens=99, logprobs=0).choices[0].logprobs
    assert "".join(logprobs.tokens) == "It is 2150.<|im_end|>"
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:k])) for k in range(len(logprobs.tokens))]
    chunks = list(client.completions.create(model="tiny", prompt="a", max_tokens=99, logprobs=0, stream=True))
    told = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [token for each in told for token in each.tokens] == logprobs.tokens
    assert [offset for each in told for offset in each.text_offset] == logprobs.text_offset
    assert said.text == "It is 2150."


@pytest.mark.parametrize(
    ("body", "says_why"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "at least one"),
        ({"prompt": [-1]}, "token ids"),
        ({"prompt": [10**9]}, "token ids"),
        ({"prompt": [["a"]]}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": 5}, "logprobs"),
    ],
)
def test_a_text_that_cannot_be_continued_is_refused(http, says, body: dict[str, Any], says_why: str):
    says("Yes.")
    reply = http.post(COMPLETIONS, json=body)
    assert (reply.status_code, says_why in reply.json()["error"]["message"]) == (400, True)


# --- who asks, and who leaves ---


def test_with_its_key_a_client_chats_and_finds_the_names(policy):
    key = {"authorization": "Bearer secret"}
    with (
        running(policy, decoder=ScriptedDecoder(policy.policy.tokenizer), key="secret") as up,
        up.client(headers=key) as http,
    ):
        for path in ("/v1/models", "/v1/models/tiny", "/v1/models/another/name", "/health", "/metrics"):
            assert http.get(path).status_code == 200
        assert http.get("/v1/models/none").status_code == 404
        with openai.OpenAI(base_url=f"{up.url}/v1", api_key="secret") as client:
            assert chat(client).choices[0].message.content == ""
            assert [model.id for model in client.models.list()] == ["tiny", "another/name"]


def test_the_metrics_tell_what_was_done(policy):
    with running(policy, decoder=ScriptedDecoder(policy.policy.tokenizer)) as up, up.client() as http:
        up.decoder.text = "Yes."
        http.post(CHAT, json={"messages": ASKED})
        http.post(CHAT, json={"messages": []})
        up.decoder.text = ""
        http.post(CHAT, json={"messages": ASKED})
        up.decoder.text = "<tool_call>\nf(1)\n</tool_call>" + "and so on " * 100
        http.post(CHAT, json={"messages": ASKED, "tools": TOOLS, "max_tokens": 60})
        assert "astra_serve_first_token_seconds_count 3.0\n" in http.get("/metrics").text
        up.decoder.seconds_a_call = 0.02
        with http.stream("POST", CHAT, json={"messages": ASKED, "stream": True}) as left:
            next(left.iter_lines())
        while up.decoder.load.sessions:
            time.sleep(0.01)
        lines = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if not line.startswith("#"))
    counts = {name.removeprefix("astra_serve_"): float(value) for name, value in lines.items()}
    assert counts['requests_total{path="/v1/chat/completions",status="200"}'] == 4
    assert counts['requests_total{path="/v1/chat/completions",status="400"}'] == 1
    assert (counts["empty_replies_total"], counts["unreadable_calls_total"]) == (1, 1)
    assert counts["client_disconnects_total"] == 1
    assert counts["cached_prompt_tokens_total"] > 0
    assert (counts["requests"], counts["decoder_sessions"]) == (0, 0)
