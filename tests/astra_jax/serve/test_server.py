"""The endpoints over one decoder: answers, refusals, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.chat.template import ChatTemplate
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.sizes import serving_limits
from astra_jax.serve import server as server_module
from astra_jax.serve import service as service_module
from astra_jax.serve.policy import ServedPolicy
from astra_jax.serve.server import listen
from tests.astra_jax.serve.running import LIMITS, Running, running, served
from tests.astra_jax.serve.scripted_decoder import ScriptedDecoder

PROMPT = list(range(21, 41))
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "logprobs": 0}
CHAT, GENERATE = "/v1/chat/completions", "/inference/v1/generate"


@pytest.fixture(scope="module")
def policy(untrained, tmp_path_factory) -> ServedPolicy:
    folder = tmp_path_factory.mktemp("policy")
    untrained.tokenizer.save(folder, model_max_length=1024)
    return served(untrained, template=ChatTemplate(folder))


@pytest.fixture(scope="module")
def server(policy) -> Iterator[Running]:
    with running(policy) as up:
        yield up


@pytest.fixture(scope="module")
def client(server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def slow(untrained) -> Iterator[Running]:
    """A server whose messages take about a second, so that a test comes in the middle of one."""
    decoder = ScriptedDecoder(untrained.tokenizer)
    decoder.text, decoder.seconds_a_call = "on and on " * 10, 0.02
    with running(served(untrained), decoder=decoder) as up:
        yield up


def asked(ids: list[int] = PROMPT, params: dict[str, Any] = GREEDY, **rest: Any) -> dict[str, Any]:
    return {"token_ids": ids, "sampling_params": params, **rest}


def choice_of(client: httpx.Client, **params: Any) -> dict[str, Any]:
    """The one choice of the reply to a prompt."""
    reply = client.post(GENERATE, json=asked(params=params))
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("waited for nothing")


def is_idle(server: Running) -> bool:
    """No session, no message, and every page can be taken."""
    load = server.decoder.load
    return (load.sessions, load.waiting, load.free_pages) == (0, 0, LIMITS.num_pages)


async def test_a_message_is_the_decoders_own_with_its_log_probs(client, policy):
    tokenizer, messages = policy.policy.tokenizer, [{"role": "user", "content": "The rent?"}]
    decoder = policy.decoder()
    expected = await decoder.generate(PROMPT, Sampling(24), Session(0, 5))
    prompt = tokenizer.encode(policy.template.render(messages, []))
    said = await decoder.generate(prompt, Sampling(24, 0.0), Session(0, 0))
    await decoder.close()
    params = {"temperature": 1.0, "max_tokens": 24, "seed": 5, "logprobs": 1}
    reply = client.post(GENERATE, json=asked(params=params, model="another/name")).json()
    (choice,) = reply["choices"]
    assert choice["token_ids"] == expected.ids
    assert choice["finish_reason"] == {"end": "stop", "length": "length"}[expected.finish]
    assert [each["token"] for each in choice["logprobs"]["content"]] == [f"token_id:{id_}" for id_ in expected.ids]
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == pytest.approx(expected.logprobs, abs=1e-4)
    count = len(expected.ids)
    usage = {"prompt_tokens": 20, "completion_tokens": count, "total_tokens": 20 + count}
    assert (reply["model"], reply["usage"]) == ("another/name", usage)
    body = {"messages": messages, "temperature": 0, "max_tokens": 24, "logprobs": True}
    chat = client.post(CHAT, json=body).json()
    told = [each["token"] for each in chat["choices"][0]["logprobs"]["content"]]
    assert told == [tokenizer.decode([id_]) for id_ in said.ids]
    assert chat["usage"]["prompt_tokens"] == len(prompt)


def test_seeds_stop_ids_and_lengths_are_as_asked_for(client):
    def ids(**params: Any) -> list[int]:
        return choice_of(client, max_tokens=24, **params)["token_ids"]

    assert len({tuple(ids()) for _ in range(4)}) == 4  # without a seed the server draws one
    assert ids(seed=2**62 - 1) == ids(seed=2**62 - 1) != ids(seed=2**31 - 1)
    whole = choice_of(client, **GREEDY)["token_ids"]
    stopped = choice_of(client, **GREEDY, stop_token_ids=[whole[5]])
    assert (stopped["token_ids"], stopped["finish_reason"]) == (whole[: whole.index(whole[5]) + 1], "stop")
    longest = choice_of(client, temperature=0.0)  # without a length it gets as many as fit
    assert "logprobs" not in longest
    assert len(longest["token_ids"]) == LIMITS.max_tokens - len(PROMPT) or longest["finish_reason"] == "stop"


def test_a_conversation_that_comes_back_has_only_its_new_tokens_read(server, client):
    ids, read = [50 + number % 9 for number in range(30)], []
    for turn in range(4):
        before = server.decoder.load.read_tokens
        message = client.post(GENERATE, json=asked(ids, {**GREEDY, "max_tokens": 9})).json()["choices"][0]["token_ids"]
        read.append(server.decoder.load.read_tokens - before)
        given = [60 + turn] * 12
        # A page that was not full is read again as a whole; the last token of a message is in no page yet.
        assert read[-1] <= (len(ids) - 1 if turn == 0 else LIMITS.page_tokens + len(given))
        ids = [*ids, *message, *given]
    assert read[0] == 29


SAMPLING_FAULTS: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, "hot", True, 100.5, 1e308, 10**400),
    "top_p": (0, 1.5, 1e-40, 1e-320),
    "top_k": (-2, 2**31, 10**30),
    "min_p": (0.1, 1e308),
    "presence_penalty": (1.5,),
    "repetition_penalty": (0, 1.1),
    "min_tokens": (5,),
    "logit_bias": ({"5": 1},),
    "seed": ("x", 2**63, -(2**63) - 1),
    "n": (0, True, 10**30),
    "max_tokens": (0,),
}
"""Field to values that no request for a message may have."""
TOKEN_FAULTS = {**SAMPLING_FAULTS, "n": (2,), "logprobs": (5,), "stop": (["a"],), "beam_width": (1,)}
CHAT_FAULTS: dict[str, tuple[Any, ...]] = {
    **SAMPLING_FAULTS,
    "top_logprobs": (5,),
    "response_format": ({"type": "json_schema", "json_schema": {}}, {"type": "json_object"}),
    "tool_choice": ("required", {"function": {"name": "get_rent"}}),
    "parallel_tool_calls": (False,),
    "tools": ({"a": 1},),
    "stop": (["a"] * 17, 5),
    "stream": ("yes",),
    "chat_template_kwargs": ({"tokenize": True}, {"add_generation_prompt": False}),
    "stop_token_ids": ([5],),
    "never_heard_of": ({"x": 1},),
}
# Other refusals are in the tests of synthesis/foreign_messages.py; a body may hold 1e999, which is no JSON.
BROKEN = (
    b'{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1e999}}}]}]}'
)


def chatting(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "The rent?"}], **fields}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        *(
            (path, body, 400, "not JSON")
            for path in (CHAT, GENERATE)
            for body in (b"\xff\xfe", b"[" * 50_000, b"[NaN]")
        ),
        *((path, b"[]", 400, "the body") for path in (CHAT, GENERATE)),
        *(
            (path, request(field, value), 400, field)
            for path, request, faults in (
                (GENERATE, lambda field, value: asked(params={field: value}), TOKEN_FAULTS),
                (CHAT, lambda field, value: chatting(**{field: value}), CHAT_FAULTS),
            )
            for field, values in faults.items()
            for value in values
        ),
        (GENERATE, {"token_ids": [1]}, 400, "sampling_params"),
        (GENERATE, {"sampling_params": {}}, 400, "token_ids"),
        (GENERATE, asked([]), 400, "needs at least 1 given token"),
        *((GENERATE, asked([id_]), 400, "token_ids.0") for id_ in ("1", True, 1.5)),
        *((GENERATE, asked([id_]), 400, "token ids from 0 to") for id_ in (-1, 10**7, 10**30)),
        (GENERATE, asked(params={"stop_token_ids": [10**7]}), 400, "token ids from 0 to"),
        (GENERATE, b'{"token_ids": [1], "sampling_params": {"temperature": 1e999}}', 400, "temperature"),
        (GENERATE, asked(params={"max_tokens": 141}), 400, "at most 160 tokens, found 20 and up to 141"),
        (GENERATE, asked([1] * 160, {}), 400, "at most 160 tokens, found 160"),
        (GENERATE, asked([1] * 300_000), 400, "at most 160 tokens, found 300000"),
        (GENERATE, asked(stream=True), 400, "stream: this server does not do that"),
        (GENERATE, asked(cache_salt="mine"), 400, "cache_salt: this server does not do that"),
        (GENERATE, asked(model="gpt"), 404, "expected a model of tiny, another/name, found 'gpt'"),
        (GENERATE, b" " * ((1 << 20) + 1), 413, "the body has more than 1048576 bytes"),
        *((CHAT, body, 400, "messages") for body in ({"model": "tiny"}, {"messages": []}, {"messages": "Hi"})),
        (CHAT, {"messages": [{"role": "robot", "content": "Hi"}]}, 400, '"robot"'),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, '"image_url"'),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages.0.content"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.tool_call_id"),
        (CHAT, {"messages": [{"role": "user", "content": "é" * 100_000}]}, 400, "at most 160 tokens"),
        (CHAT, BROKEN, 400, "messages.0.tool_calls.0.function.arguments"),
        (CHAT, chatting(tools=[{"type": "function", "function": {}}]), 400, "tools.0.function.name"),
        (CHAT, chatting(model="other"), 404, "expected a model of tiny"),
        (CHAT, chatting(max_completion_tokens=10**4000), 400, "at most 160 tokens"),
    ],
    ids=lambda value: str(value)[:60] if not isinstance(value, int) else str(value),
)
def test_a_malformed_or_unsupported_request_is_refused_in_one_line(client, path, body, status, words, monkeypatch):
    monkeypatch.setattr(service_module, "_MOST_BODY_BYTES", 1 << 20)
    response = client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())
    error = response.json()["error"]
    assert (response.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert (error["code"] == "context_length_exceeded") == ("tokens, found" in error["message"])


WORDS = st.sampled_from(
    ["token_ids", "sampling_params", "model", "stream", "temperature", "max_tokens", "seed", "\n", ""]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just([1, 2]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)
MALFORMED = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda cut: json.dumps(asked()).encode()[:cut], st.integers(0, 60)),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(WORDS, VALUES).map(lambda more: json.dumps({**asked(), **more, "surprise": 1}).encode()),
    st.dictionaries(WORDS, VALUES).map(lambda more: json.dumps(asked(params={**more, "surprise": 1})).encode()),
)


def test_random_malformed_bodies_are_4xx_with_a_json_error_and_the_server_stays_healthy(server, client):
    @settings(max_examples=200)
    @given(body=MALFORMED)
    def send(body: bytes) -> None:
        response = client.post(GENERATE, content=body)
        message = response.json()["error"]["message"]
        assert 400 <= response.status_code < 500
        assert message
        assert "\n" not in message

    send()
    assert is_idle(server)
    assert client.post(GENERATE, json=asked()).status_code == 200


def test_models_health_unknown_paths_and_methods(client):
    models = client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["tiny", "another/name"]
    assert models["data"][0]["max_model_len"] == LIMITS.max_tokens
    health = client.get("/health").json()
    assert (health["status"], health["requests"], health["decoder"]["free_pages"]) == ("ok", 0, LIMITS.num_pages)
    assert client.get("/nowhere").json()["error"]["message"] == "GET /nowhere: Not Found"
    assert client.get(GENERATE).status_code == 405
    assert client.post(f"{GENERATE}/").status_code == 404


def test_no_reply_waits_for_an_acknowledgement():
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def half_sent(server: Running, body: bytes, length: int) -> http.client.HTTPConnection:
    """A request whose body is not complete."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("POST", GENERATE, body, {"content-length": str(length)})
    return connection


def test_a_client_that_hangs_up_leaves_no_session(slow):
    body = json.dumps(asked(params={})).encode()
    for number in range(12):  # before the body is whole, before the first token, in the middle
        connection = half_sent(slow, body if number % 3 else body[:-5], len(body))
        time.sleep(0.01 * number)
        connection.close()
    with slow.client() as client:
        wait_until(lambda: slow.decoder.load.sessions == client.get("/health").json()["requests"] == 0)
        assert choice_of(client, max_tokens=2)["finish_reason"] == "length"


def test_a_client_that_leaves_a_stream_gives_rows_and_pages_back(server, client):
    body = {"messages": [{"role": "user", "content": "The rent?"}], "stream": True, "n": 2}
    for _ in range(4):
        with client.stream("POST", CHAT, json=body) as reply:
            next(reply.iter_lines())
    wait_until(lambda: is_idle(server) and client.get("/health").json()["requests"] == 0)


def test_a_client_that_stalls_in_its_body_is_told_so(server, monkeypatch):
    monkeypatch.setattr(service_module, "_BODY_SECONDS", 0.2)
    with contextlib.closing(half_sent(server, b"{", 9)) as stalled:
        reply = stalled.getresponse()
        error = json.loads(reply.read())["error"]
    assert (reply.status, error["message"]) == (408, "the body did not come within 0.2 s")


def test_beyond_the_queue_callers_are_told_when_to_come_back(server, client, monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_WAITING", 2)
    waiting = [half_sent(server, b"", 9) for _ in range(2)]
    wait_until(lambda: client.get("/health").json()["requests"] == 2)
    refused = client.post(GENERATE, json=asked())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    for connection in waiting:
        connection.close()
    wait_until(lambda: client.get("/health").json()["requests"] == 0)
    assert client.post(GENERATE, json=asked()).status_code == 200


@pytest.mark.parametrize(("grace_seconds", "status"), [(30, 200), (0, 503)])
def test_a_message_under_way_ends_in_the_time_of_grace_or_is_given_up_with_an_error(
    untrained, monkeypatch, grace_seconds, status
):
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", grace_seconds)
    decoder = ScriptedDecoder(untrained.tokenizer)
    decoder.text, decoder.seconds_a_call = "on and on " * 10, 0.02
    with ThreadPoolExecutor() as pool, running(served(untrained), decoder=decoder) as up, up.client() as client:
        found = pool.submit(client.post, GENERATE, json=asked(params={}))
        wait_until(lambda: up.decoder.load.sessions > 0)
        up.end()
        reply = found.result()
        assert reply.status_code == status
        assert ("stopped before the message ended" in reply.text) == (status == 503)
        wait_until(lambda: up.decoder.load.sessions == 0)
        with pytest.raises(httpx.TransportError):
            client.get("/health")


def test_a_decoder_that_breaks_is_an_error_of_the_server_and_the_next_message_is_answered(slow, caplog):
    with slow.client() as client:
        slow.decoder.failure = RuntimeError("the device is gone")
        broken = client.post(GENERATE, json=asked())
        assert (broken.status_code, broken.json()["error"]["type"]) == (500, "server_error")
        assert "the device is gone" in caplog.text
        slow.decoder.failure = None
        assert choice_of(client, max_tokens=2)["finish_reason"] == "length"
        assert slow.decoder.load.sessions == 0


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 100.0, "top_k": 7},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.95},
    {"logprobs": 1},
    {"stop_token_ids": [5]},
]


@contextlib.contextmanager
def no_program_compiled() -> Iterator[None]:
    compiled = []

    def note(event: str, _: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled == []


def test_once_a_server_is_up_no_request_waits_for_a_compiler(policy):
    # Rows of three shapes, the largest of which has lists and tables of three sizes.
    made = replace(policy, limits=serving_limits(120, 8))
    with running(made, is_compiled=True) as up, up.client() as client, no_program_compiled():

        def generate(count: int, **params: Any) -> None:
            body = {"token_ids": list(range(5, 5 + count)), "sampling_params": {"max_tokens": 2, **params}}
            assert client.post(GENERATE, json=body).status_code == 200

        for kind in KINDS:
            for count in (1, 12, 30):
                generate(count, **{"temperature": 0, "max_tokens": 40, **kind})
        # Rows of every length together, so that pages are read as lists and side by side.
        with ThreadPoolExecutor(17) as pool:
            lengths = (2, 20, 40, 60, 80, 100, 110, 118)
            for together in (lengths[-1:], lengths[-2:], lengths[-5:], lengths, (30,) * 17):
                list(pool.map(generate, together))
        for count in (30, 35, 60, 118):  # turns that come back have a few tokens to read, or many
            generate(count, max_tokens=1)
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "stream": True}
        assert client.post(CHAT, json=chat).status_code == 200
