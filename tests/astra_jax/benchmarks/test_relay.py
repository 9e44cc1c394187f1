"""Requests and replies that a relay passes on between a harness and an endpoint, and those that it refuses."""

from __future__ import annotations

import contextlib
import json
import socket

import httpx
import pytest

from astra_jax.benchmarks import relay as relay_module
from astra_jax.benchmarks.relay import Relay
from astra_jax.evaluate.endpoint import Endpoint
from tests.astra_jax.benchmarks.scripted_endpoint import LOST, reply, scripted_endpoint


@contextlib.asynccontextmanager
async def relay_to(url: str, tmp_path, **changes):
    """Yield the address of a relay."""
    options = {"log": tmp_path / "requests.jsonl", **changes}
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    async with Relay(Endpoint(url, "served", 1000, None), **options).listening(listening):
        yield address


async def ask(relay: str, **fields) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        body = {"model": "of the harness", "messages": [], **fields}
        return await client.post(f"{relay}/chat/completions", json=body, headers={"Authorization": "Bearer harness"})


def logged(tmp_path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "fields", "asked"),
    [
        (
            {"settings": {"top_k": 20, "max_tokens": 7, "top_p": None}},
            {"store": False, "temperature": 0.001},
            {"store": False, "temperature": 0.001, "top_k": 20, "max_tokens": 7},
        ),
        (
            {"settings": {"top_k": 20, "max_tokens": 7}},
            {"top_k": 3, "max_completion_tokens": 9},
            {"top_k": 3, "max_completion_tokens": 9},
        ),
        (
            {"replaced": {"temperature": 0.6, "top_p": None}, "max_tokens_floor": 100},
            {"temperature": 0.001, "top_p": 1, "max_tokens": 7},
            {"temperature": 0.6, "top_p": 1, "max_tokens": 100},
        ),
        ({"max_tokens_floor": 100}, {"max_completion_tokens": 200}, {"max_completion_tokens": 200}),
        ({"max_tokens_floor": 100}, {}, {}),
    ],
)
async def test_model_and_key_are_ours_and_settings_are_added_replaced_or_raised(
    tmp_path, monkeypatch, options, fields, asked
):
    monkeypatch.setenv("ASTRA_SERVE_KEY", "secret")
    with scripted_endpoint(lambda body: reply("hi")) as endpoint:
        async with relay_to(endpoint.url, tmp_path, **options) as relay:
            await ask(relay, **fields)
    assert endpoint.bodies == [{"model": "served", "messages": [], **asked}]
    assert endpoint.keys == ["Bearer secret"]
    assert "secret" not in (tmp_path / "requests.jsonl").read_text()


@pytest.mark.parametrize(
    ("called", "comes"),
    [
        (("ls", '{"a": true}'), ("ls", '{"a": true}')),
        (("os.system", '{"command": "true"}'), ("no_such_tool", '{"command": "true"}')),
        (("__import__", '{"name": "os"}'), ("no_such_tool", '{"name": "os"}')),
        (("ls", '{"a=open(1), b": 1}'), ("ls", '{"no_such_argument": 1}')),
    ],
)
async def test_a_call_that_no_tool_has_reaches_no_harness_that_would_run_it(tmp_path, called, comes):
    with scripted_endpoint(lambda body: reply(None, called)) as endpoint:
        async with relay_to(endpoint.url, tmp_path, tool_names={"ls"}) as relay:
            function = (await ask(relay)).json()["choices"][0]["message"]["tool_calls"][0]["function"]
        assert (function["name"], function["arguments"]) == comes
        assert logged(tmp_path)[0]["renamed_calls"] == (called != comes)
        async with relay_to(endpoint.url, tmp_path) as relay:  # a harness that looks names up
            function = (await ask(relay)).json()["choices"][0]["message"]["tool_calls"][0]["function"]
        assert (function["name"], function["arguments"]) == called


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ('```json\n[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]\n```', ["f", "g"]),
        ('I call {"name": "f", "arguments": {"name": "g", "arguments": {}}}.', ["f"]),  # the inner one is an argument
        ('{"name": "f", "arguments": "text"} {"name": 1, "arguments": {}} {"name": "f", "arguments": {', []),
        ("{" * 20_000, []),
        (None, []),
    ],
)
async def test_json_of_calls_in_a_text_becomes_calls_if_asked_for(tmp_path, text, called):
    with scripted_endpoint(lambda body: reply(text)) as endpoint:
        for mends_format in (True, False):
            async with relay_to(endpoint.url, tmp_path, mends_format=mends_format) as relay:
                message = (await ask(relay)).json()["choices"][0]["message"]
            names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            assert names == (called if mends_format else [])


@pytest.mark.parametrize("num_failures", [3, 4])
async def test_a_lost_connection_408_and_5xx_are_tried_four_times_in_all(tmp_path, monkeypatch, num_failures):
    monkeypatch.setattr(relay_module, "_PAUSES", (0.0, 0.0, 0.0))
    failures = [LOST, (408, {}), (500, {}), (503, {"error": {"message": "down"}})][-num_failures:]
    replies = iter([*failures, reply("x")])
    with scripted_endpoint(lambda body: next(replies)) as endpoint:
        async with relay_to(endpoint.url, tmp_path) as relay:
            said = await ask(relay)
    assert (said.status_code, len(endpoint.bodies)) == (200 if num_failures == 3 else 503, 4)
    assert [line["status"] for line in logged(tmp_path)] == [said.status_code]


async def test_every_request_has_a_line_that_says_how_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(relay_module, "_PAUSES", (0.0, 0.0, 0.0))
    refused, broken = (400, {"error": {"message": "too long"}}), (200, {})
    replies = iter([(429, {}), reply("x", finish="length", tokens=(3, 4)), reply(" "), refused, broken])
    with scripted_endpoint(lambda body: next(replies)) as endpoint:
        async with relay_to(endpoint.url, tmp_path, empty_as="") as relay:
            said = [await ask(relay) for _ in range(4)]
            said.append(await ask(relay, stream=True))
    async with relay_to(endpoint.url, tmp_path) as relay:  # the endpoint is gone
        said.append(await ask(relay))
    assert [each.status_code for each in said] == [200, 200, 400, 502, 400, 502]
    assert said[1].json()["choices"][0]["message"]["content"] == ""
    cut, empty, refused, broken, stream, gone = logged(tmp_path)
    assert gone["status"] == 502
    assert (cut["finish"], cut["prompt_tokens"], cut["completion_tokens"], cut["is_empty"]) == ("length", 3, 4, False)
    assert empty["is_empty"]
    assert refused["error"] == "too long"
    assert "is not a chat completion: " in broken["error"]
    assert "stream" in stream["error"]
