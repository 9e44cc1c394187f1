"""Chats over the real decoder: its messages, no wait for a compiler, and nothing that a client leaves behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import pytest

from astra_jax.chat.template import ChatTemplate
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.sizes import serving_limits
from tests.astra_jax.serve.running import Running, running, served

ASKED: list[Any] = [{"role": "user", "content": "What is the rent of Amber Falcon?"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def policy(untrained, tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = untrained.tokenizer
    tokenizer.save(folder, model_max_length=1024)
    end_ids = (tokenizer.end_id, tokenizer.end_of_text_id)
    limits = serving_limits(640, 4)
    return served(untrained, limits, template=ChatTemplate(folder), end_ids=end_ids)


@pytest.fixture(scope="module")
def server(policy) -> Iterator[Running]:
    with running(policy) as up:
        yield up


def asked(**rest: Any) -> dict[str, Any]:
    return {"messages": ASKED, "temperature": 0, "max_tokens": 24, **rest}


async def test_a_chat_says_what_the_decoder_says_after_the_templates_prompt(server, policy):
    tokenizer = policy.policy.tokenizer
    prompt = tokenizer.encode(policy.template.render(ASKED, []))
    decoder = policy.decoder()
    expected = await decoder.generate(prompt, Sampling(24, 0.0), Session(0, 0))
    await decoder.close()
    with server.client() as http:
        reply = http.post(CHAT, json=asked(logprobs=True)).json()
    assert [each["token"] for each in reply["choices"][0]["logprobs"]["content"]] == [
        tokenizer.decode([id_]) for id_ in expected.ids
    ]
    assert reply["usage"]["prompt_tokens"] == len(prompt)


def test_who_hangs_up_gives_rows_and_pages_back(server, policy):
    with server.client() as http:
        for _ in range(4):
            with http.stream("POST", CHAT, json=asked(stream=True, temperature=1.0, max_tokens=400, n=2)) as reply:
                next(reply.iter_lines())
        for _ in range(1000):
            load = server.decoder.load
            is_idle = (load.sessions, load.waiting, load.free_pages) == (0, 0, policy.limits.num_pages)
            if is_idle and http.get("/health").json()["requests"] == 0:
                return
            time.sleep(0.01)
    raise AssertionError(f"{load} after all clients left")


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 100.0, "top_k": 7},
    {"temperature": 0.6, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
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
    limits = serving_limits(120, 8)  # rows of three shapes, the largest of which has lists and tables of three sizes
    made = replace(policy, limits=limits)
    with running(made, is_compiled=True) as up, up.client() as http, no_program_compiled():
        compiled = up.decoder.load.programs

        def generate(count: int, **params: Any) -> None:
            body = {"token_ids": list(range(5, 5 + count)), "sampling_params": {"max_tokens": 2, **params}}
            assert http.post("/inference/v1/generate", json=body).status_code == 200

        assert http.get("/health").json()["decoder"]["programs"] == compiled
        for kind in KINDS:
            for count in (1, 12, 30):
                generate(count, **{"temperature": 0, "max_tokens": 40, **kind})
        # Rows of every length together, so that pages are read as lists and side by side.
        with ThreadPoolExecutor(17) as pool:
            for lengths in (
                (118,),
                (110, 118),
                (60, 80, 100, 110, 118),
                (2, 20, 40, 60, 80, 100, 110, 118),
                (30,) * 17,
            ):
                list(pool.map(generate, lengths))
        for count in (30, 35, 60, 118):  # turns that come back have a few tokens to read, or many
            generate(count, max_tokens=1)
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "stream": True}
        assert http.post(CHAT, json=chat).status_code in (200, 400)  # the prompt may be too long for so short a context
        assert up.decoder.load.programs == compiled
