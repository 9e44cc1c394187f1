"""The endpoints over one decoder: what is answered, what is refused, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.engine import device as device_module
from astra_jax.engine.interface import Sampling, Session
from astra_jax.serve import server as server_module
from astra_jax.serve import service as service_module
from astra_jax.serve.server import listen
from astra_jax.serve.service import ServingOptions
from tests.astra_jax.serve.running import LIMITS, SAMPLING_FAULTS, Running, running, served

PROMPT = list(range(21, 41))
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "logprobs": 0}
GENERATE = "/inference/v1/generate"


@pytest.fixture(scope="module")
def server(untrained) -> Iterator[Running]:
    with running(served(untrained)) as up:
        yield up


@pytest.fixture(scope="module")
def client(server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def asked(ids: list[int] = PROMPT, params: dict[str, Any] = GREEDY, **rest: Any) -> dict[str, Any]:
    return {"token_ids": ids, "sampling_params": params, **rest}


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


def in_the_background(client: httpx.Client, document: dict[str, Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def send() -> None:
        with contextlib.suppress(httpx.TransportError):
            found.append(client.post(GENERATE, json=document))

    thread = threading.Thread(target=send)
    thread.start()
    return thread, found


@pytest.fixture
def slow_steps(monkeypatch) -> None:
    """So that a test comes in the middle of a message."""
    sample_rows = device_module.sample_rows

    def slowly(*args, **kwargs):
        time.sleep(0.02)
        return sample_rows(*args, **kwargs)

    monkeypatch.setattr(device_module, "sample_rows", slowly)


@pytest.fixture(scope="module")
def long_message(client) -> tuple[dict[str, Any], list[int]]:
    """Sampling that gives a message of many calls, and the message."""
    for seed in range(40):
        params = {"max_tokens": 140, "temperature": 1.0, "seed": seed}
        ids = client.post(GENERATE, json=asked(params=params)).json()["choices"][0]["token_ids"]
        if len(ids) > 100:
            return params, ids
    raise AssertionError("no seed gives a long message")


async def test_a_message_is_the_decoders_own_with_its_log_probs(client, untrained):
    decoder = served(untrained).decoder()
    expected = await decoder.generate(PROMPT, Sampling(24), Session(0, 5))
    await decoder.close()
    params = {"temperature": 1.0, "max_tokens": 24, "seed": 5, "logprobs": 1}
    reply = client.post(GENERATE, json=asked(params=params, model="another/name")).json()
    (choice,) = reply["choices"]
    assert choice["token_ids"] == expected.ids
    assert choice["finish_reason"] == {"end": "stop", "length": "length"}[expected.finish]
    assert [each["token"] for each in choice["logprobs"]["content"]] == [f"token_id:{id_}" for id_ in expected.ids]
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == pytest.approx(expected.logprobs, abs=1e-4)
    assert reply["model"] == "another/name"
    assert reply["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": len(expected.ids),
        "total_tokens": 20 + len(expected.ids),
    }


def test_without_a_seed_the_server_draws_one_and_with_one_it_replays(client):
    def ids(**params: Any) -> list[int]:
        return client.post(GENERATE, json=asked(params={"max_tokens": 24, **params})).json()["choices"][0]["token_ids"]

    assert len({tuple(ids()) for _ in range(4)}) == 4
    assert ids(seed=2**62 - 1) == ids(seed=2**62 - 1) != ids(seed=2**31 - 1)


def test_stop_ids_end_a_message_and_without_max_tokens_it_gets_what_fits(client):
    whole = client.post(GENERATE, json=asked()).json()["choices"][0]["token_ids"]
    stopped = client.post(GENERATE, json=asked(params={**GREEDY, "stop_token_ids": [whole[5]]})).json()["choices"][0]
    assert stopped["token_ids"] == whole[: whole.index(whole[5]) + 1]
    assert stopped["finish_reason"] == "stop"
    long = [*PROMPT, *PROMPT]
    reply = client.post(GENERATE, json=asked(long, {"temperature": 0.0, "stop_token_ids": []})).json()
    assert "logprobs" not in reply["choices"][0]
    count = len(reply["choices"][0]["token_ids"])
    assert count == LIMITS.max_tokens - len(long) or reply["choices"][0]["finish_reason"] == "stop"


def test_a_conversation_that_comes_back_has_only_its_new_tokens_read(server, client):
    ids, read = [50 + number % 9 for number in range(30)], []
    for turn in range(4):
        before = server.decoder.load.read_tokens
        message = client.post(GENERATE, json=asked(ids, {**GREEDY, "max_tokens": 9})).json()["choices"][0]["token_ids"]
        read.append(server.decoder.load.read_tokens - before)
        given = [60 + turn] * 12
        # Of a page that was not full, all is read again; the last token of a message is in no page yet.
        assert read[-1] <= (len(ids) - 1 if turn == 0 else LIMITS.page_tokens + len(given))
        ids = [*ids, *message, *given]
    assert read[0] == 29
    salted = server.decoder.load.read_tokens
    client.post(GENERATE, json=asked(ids[:30], {**GREEDY, "max_tokens": 1}, cache_salt="mine"))
    assert server.decoder.load.read_tokens - salted == 29


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 50_000, 400, "not JSON"),
        (b'{"token_ids": [NaN]}', 400, "not JSON"),
        (b"[]", 400, "the body"),
        ({"token_ids": [1]}, 400, "sampling_params"),
        ({"sampling_params": {}}, 400, "token_ids"),
        (asked([]), 400, "needs at least 1 given token"),
        (asked(["1"]), 400, "token_ids.0"),
        (asked([True]), 400, "token_ids.0"),
        (asked([1.5]), 400, "token_ids.0"),
        (asked([-1]), 400, "token ids from 0 to"),
        (asked([10**7]), 400, "token ids from 0 to"),
        (asked([10**30]), 400, "token ids from 0 to"),
        (asked(params={"stop_token_ids": [10**7]}), 400, "token ids from 0 to"),
        (asked(params={"beam_width": 1}), 400, "sampling_params.beam_width: this server does not do that"),
        *((asked(params={field: value}), 400, field) for field, values in SAMPLING_FAULTS.items() for value in values),
        (asked(params={"n": 2}), 400, "sampling_params.n"),
        (asked(params={"logprobs": 5}), 400, "sampling_params.logprobs"),
        (asked(params={"stop": ["\n"]}), 400, "sampling_params.stop"),
        (b'{"token_ids": [1], "sampling_params": {"temperature": 1e999}}', 400, "temperature"),
        (asked(params={"max_tokens": 141}), 400, "at most 160 tokens, found 20 and up to 141"),
        (asked([1] * 160, {}), 400, "at most 160 tokens, found 160"),
        (asked(stream=True), 400, "stream"),
        (asked(output_mode="text"), 400, "output_mode"),
        (asked(features={"a": 1}), 400, "features: this server does not do that"),
        (asked(surprise=1), 400, "surprise"),
        (asked(cache_salt=""), 400, "cache_salt"),
        (asked(model="gpt"), 404, "expected a model of tiny, another/name, found 'gpt'"),
        (asked([1] * 300_000), 400, "at most 160 tokens, found 300000"),
        (b" " * ((1 << 20) + 1), 413, "at most 1048576 bytes"),
    ],
    ids=lambda value: str(value)[:60] if not isinstance(value, int) else str(value),
)
def test_what_is_malformed_or_not_done_here_is_refused_in_one_line(client, body, status, words, monkeypatch):
    monkeypatch.setattr(service_module, "_MOST_BODY_BYTES", 1 << 20)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post(GENERATE, content=content)
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
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.builds(lambda cut: json.dumps(asked()).encode()[:cut], st.integers(0, 60)),
    st.dictionaries(WORDS | st.text(max_size=6), VALUES, min_size=1).map(
        lambda extra: json.dumps({**asked(), "surprise": 1, **extra}).encode()
    ),
    st.dictionaries(st.text(max_size=6), VALUES, min_size=1).map(
        lambda params: json.dumps(asked(params={"surprise": 1, **params})).encode()
    ),
)


def test_random_malformed_bodies_are_4xx_with_a_json_error_and_the_server_stays_healthy(server, client):
    statuses = []

    @settings(max_examples=200)
    @given(body=MALFORMED)
    def send(body: bytes) -> None:
        response = client.post(GENERATE, content=body)
        statuses.append(response.status_code)
        message = response.json()["error"]["message"]
        assert 400 <= response.status_code < 500
        assert message
        assert "\n" not in message

    send()
    assert len(statuses) >= 200
    assert client.get("/health").json()["status"] == "ok"
    assert client.post(GENERATE, json=asked()).status_code == 200
    assert is_idle(server)


def test_models_health_unknown_paths_and_methods(client):
    models = client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["tiny", "another/name"]
    assert models["data"][0]["max_model_len"] == LIMITS.max_tokens
    assert client.get("/health").json()["decoder"]["free_pages"] == LIMITS.num_pages
    assert client.get("/nowhere").json()["error"]["message"] == "GET /nowhere: Not Found"
    assert client.get(GENERATE).status_code == 405
    assert client.post(f"{GENERATE}/").status_code == 404


def test_no_reply_waits_for_an_acknowledgement():
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_client_that_hangs_up_leaves_no_session_and_no_page(server, client, long_message, slow_steps):
    expected = client.post(GENERATE, json=asked()).json()["choices"]
    host = server.url.removeprefix("http://")
    body = json.dumps(asked(params=long_message[0]))
    for number in range(12):  # before the body is whole, before the first token, in the middle
        connection = http.client.HTTPConnection(host)
        connection.request("POST", GENERATE, body if number % 3 else body[:-5], {"content-length": str(len(body))})
        time.sleep(0.01 * number)
        connection.close()
    wait_until(lambda: is_idle(server))
    wait_until(lambda: client.get("/health").json()["requests"] == 0)
    assert client.post(GENERATE, json=asked()).json()["choices"] == expected


def test_a_client_that_stalls_in_its_body_is_told_so(server, monkeypatch):
    monkeypatch.setattr(service_module, "_BODY_SECONDS", 0.2)
    with contextlib.closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as stalled:
        stalled.request("POST", GENERATE, b"{", {"content-length": "9"})
        reply = stalled.getresponse()
        assert (reply.status, json.loads(reply.read())["error"]["message"]) == (
            408,
            "the body did not come within 0.2 s",
        )


def test_beyond_the_queue_callers_are_told_when_to_come_back(untrained, monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_WAITING", 2)
    with running(served(untrained)) as up, up.client() as client:
        host = up.url.removeprefix("http://")
        waiting = [http.client.HTTPConnection(host) for _ in range(2)]
        for connection in waiting:
            connection.request("POST", GENERATE, b"", {"content-length": "9"})  # whose body does not come
        wait_until(lambda: client.get("/health").json()["requests"] == 2)
        refused = client.post(GENERATE, json=asked())
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        waiting[0].close()
        wait_until(lambda: client.get("/health").json()["requests"] == 1)
        assert client.post(GENERATE, json=asked(params={"max_tokens": 1})).status_code == 200
        waiting[1].close()


@pytest.mark.parametrize("grace_seconds", [30, 0])
def test_a_message_under_way_ends_in_the_time_of_grace_or_is_given_up_with_an_error(
    untrained, long_message, slow_steps, grace_seconds
):
    params, whole = long_message
    options = ServingOptions(grace_seconds=grace_seconds)
    with running(served(untrained), options=options) as up, up.client() as client:
        thread, found = in_the_background(client, asked(params=params))
        wait_until(lambda: up.decoder.load.sampled_tokens > 0)
        up.end()
        thread.join()
        if grace_seconds:
            assert found[0].json()["choices"][0]["token_ids"] == whole
        else:
            assert found[0].status_code == 503
            assert "stopped before the message ended" in found[0].json()["error"]["message"]
        wait_until(lambda: is_idle(up))
        with pytest.raises(httpx.ConnectError):
            client.get("/health")


def test_a_decoder_that_breaks_is_an_error_of_the_server_and_the_next_message_is_answered(
    untrained, monkeypatch, caplog
):
    def breaks(*args, **kwargs):
        raise RuntimeError("the device is gone")

    with running(served(untrained)) as up, up.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(device_module, "read_tokens", breaks)
            broken = client.post(GENERATE, json=asked())
        assert broken.status_code == 500
        assert broken.json()["error"]["type"] == "server_error"
        assert "the device is gone" in caplog.text
        assert client.post(GENERATE, json=asked(params={"max_tokens": 2})).status_code == 200
        assert is_idle(up)
