"""A decoder behind a process boundary passes the suite, and asks again until a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from astra_jax.engine.interface import DecoderError, Generated, Sampling, Session
from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine, Start
from astra_jax.evaluate import endpoint as endpoint_module
from astra_jax.evaluate.endpoint import Endpoint, first_contact
from astra_jax.evaluate.http_decoder import HTTPDecoder, seed_of_message
from astra_jax.testing import InProcessSandbox, tiny_environment
from tests.astra_jax.engine.conformance import CLAUSES, SESSIONS, Subject, same, two_turns, until
from tests.astra_jax.engine.test_conformance import END_IDS, LIMITS
from tests.astra_jax.serve.running import Running, running, served

DEAD = "http://127.0.0.1:9"
"""Nobody listens there."""


@pytest.fixture(scope="module")
def server(untrained) -> Iterator[Running]:
    with running(served(untrained)) as up:
        yield up


class Watched(HTTPDecoder):
    """Knows what the server had sampled before."""

    def __init__(self, server: Running):
        super().__init__(first_contact(server.url), end_ids=END_IDS)
        self.server, self.before = server, server.decoder.load.sampled_tokens

    @property
    def num_sampled(self) -> int:
        return self.server.decoder.load.sampled_tokens - self.before


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_a_remote_decoder_passes_the_suite(server, clause):
    def make(params: Any, version: int) -> Watched:
        return Watched(server)

    subject = Subject(
        make,
        None,
        None,
        END_IDS,
        LIMITS.max_tokens,
        num_sampled=lambda decoder: decoder.num_sampled,
        is_remote=True,
    )
    asyncio.run(asyncio.wait_for(clause(subject), timeout=300))  # of which the first compiles


async def test_at_any_temperature_it_says_what_a_decoder_in_this_process_says(server, untrained):
    here = served(untrained).decoder()
    there = Watched(server)
    for session in SESSIONS[:3]:
        expected, found = await two_turns(here, session), await two_turns(there, session)
        assert all(same(*pair, tolerance=2e-5) for pair in zip(found, expected, strict=True))
    await asyncio.gather(here.close(), there.close())


REPLY: dict[str, Any] = {
    "request_id": "generate-tokens-1",
    "choices": [
        {
            "index": 0,
            "token_ids": [5, 6],
            "finish_reason": "length",
            "logprobs": {"content": [{"token_id": 5, "logprob": -1.0}, {"token_id": 6, "logprob": -0.5}]},
            "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}],
        }
    ],
}


def changed(**choice: Any) -> dict[str, Any]:
    return {**REPLY, "choices": [{**REPLY["choices"][0], **choice}]}


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def says(document: Any, status: int = 200, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        text = document if isinstance(document, str) else json.dumps(document)
        return web.Response(text=text, status=status, headers=headers)

    return answer


async def cuts(request: web.Request) -> web.StreamResponse:
    """The beginning of a reply."""
    response = web.StreamResponse(headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    request.transport.close()
    return response


async def hangs_up(request: web.Request) -> web.StreamResponse:
    request.transport.close()
    return web.Response()


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@contextlib.asynccontextmanager
async def scripted(*answers: Answer) -> AsyncIterator[tuple[str, list[tuple[dict[str, Any], str]]]]:
    """A server that answers so, one request after another, the last for ever; yields bodies and keys that it sees."""
    seen: list[tuple[dict[str, Any], str]] = []

    async def generate(request: web.Request) -> web.StreamResponse:
        seen.append((await request.json(), request.headers.get("authorization", "")))
        return await answers[min(len(seen), len(answers)) - 1](request)

    app = web.Application()
    app.router.add_post("/inference/v1/generate", generate)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def asking(url: str, *, deadline_seconds: float = 30.0, replays: bool = True) -> AsyncIterator[HTTPDecoder]:
    endpoint = Endpoint(url, "m", most_tokens=100, replays=replays, policy=None)
    decoder = HTTPDecoder(endpoint, end_ids=(1, 2), deadline_seconds=deadline_seconds)
    try:
        yield decoder
    finally:
        await decoder.close()


@pytest.mark.parametrize(
    "failures",
    [
        pytest.param([says({}, 503)] * 3, id="503"),
        pytest.param([says({}, 429, **{"Retry-After": "0"})], id="429"),
        pytest.param([says("oops", 500)], id="500"),
        pytest.param([says({}, 408)], id="408"),
        pytest.param([cuts] * 2, id="cut"),
        pytest.param([hangs_up] * 2, id="lost"),
        pytest.param([says(changed(finish_reason="abort"))], id="ended by the server"),
    ],
)
@pytest.mark.parametrize("replays", [False, True])
async def test_what_fails_for_now_is_asked_for_again_with_the_same_seed(failures, replays):
    async with scripted(*failures, says(REPLY)) as (url, seen), asking(url, replays=replays) as decoder:
        message = await decoder.generate([7, 8], Sampling(2, stop_ids=(9,)), Session(1, 2, salt="s"))
    assert message == Generated([5, 6], [-1.0, -0.5], [3, 4], "length")
    assert len(seen) == len(failures) + 1
    for body, _ in seen:
        assert body | {"request_id": ""} == {
            "model": "m",
            "token_ids": [7, 8],
            "sampling_params": {
                "max_tokens": 2,
                "temperature": 1.0,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "stop_token_ids": [1, 2, 9],
                "logprobs": 0,
                "seed": 2**31 + 2 if replays else seed_of_message(Session(1, 2), 2),
            },
            "cache_salt": "s",
            "request_id": "",
            **({"draws_from": 2} if replays else {}),
        }
    assert len({body["request_id"] for body, _ in seen}) == len(seen)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says({"error": {"message": "no such model"}}, 404), "refuses the request: HTTP 404: no such model"),
        (says("", 302, location="http://127.0.0.1:9"), "HTTP 302: no message"),
        (says({}, 401), "HTTP 401.*ASTRA_SERVE_KEY"),
        (says("[]"), "not one of this protocol"),
        (says("{}"), "not one of this protocol"),
        (says(changed(logprobs=None)), "not one of this protocol"),
        (says(changed(logprobs={"content": []})), "found 2 and 0"),
        (says(changed(token_ids=[5])), "found 1 and 2"),
        (says(changed(finish_reason="tired")), "'tired'"),
        (says(changed(weight_versions=[{"version": "3", "start": 0, "end": 1}])), "of 2 tokens, found those of 1"),
        (says(changed(weight_versions=[{"version": "v3", "start": 0, "end": 2}])), "v3"),
        (says({**REPLY, "choices": []}), "not one of this protocol"),
    ],
)  # fmt: skip
async def test_what_sending_it_again_cannot_help_is_told_in_one_line(answer, words):
    async with scripted(answer) as (url, seen), asking(url) as decoder:
        with pytest.raises(DecoderError, match=rf"(?s)^[^\n]*{words}[^\n]*$"):
            await decoder.generate([7, 8], Sampling(2), Session(1, 2))
        assert decoder.load.waiting == 0
    assert len(seen) == 1


async def test_a_reply_of_more_tokens_than_asked_for_is_none():
    async with scripted(says(REPLY)) as (url, _), asking(url) as decoder:
        with pytest.raises(DecoderError, match="up to 1 tokens"):
            await decoder.generate([7, 8], Sampling(1), Session(1, 2))


@pytest.mark.parametrize("versions", [None, [{"version": "default", "start": 0, "end": 2}]])
async def test_weights_without_a_version_are_0(versions):
    async with scripted(says(changed(weight_versions=versions))) as (url, _), asking(url) as decoder:
        assert (await decoder.generate([7, 8], Sampling(2), Session(1, 2))).policy_versions == [0, 0]


@pytest.mark.parametrize(
    ("answer", "why"), [(says({}, 503), "HTTP 503"), (hangs, "no reply yet"), (None, "ConnectError")]
)
async def test_at_the_deadline_it_says_in_one_line_why_there_is_no_answer(answer, why):
    async with scripted(answer or hangs) as (url, _), asking(url if answer else DEAD, deadline_seconds=0.5) as decoder:
        with pytest.raises(
            DecoderError, match=rf"^no answer from the server at http[^\n]* in 0.5 s: [^\n]*{why}[^\n]*$"
        ):
            await decoder.generate([7, 8], Sampling(2), Session(1, 2))
        decoder.forget(Session(1, 2))
        assert decoder.load.sessions == 0


async def test_the_key_is_that_of_the_environment_and_no_error_shows_it(monkeypatch):
    monkeypatch.setenv("ASTRA_SERVE_KEY", " secret-key\n")
    async with scripted(says({}, 401)) as (url, seen), asking(url) as decoder:
        with pytest.raises(DecoderError) as error:
            await decoder.generate([7, 8], Sampling(2), Session(1, 2))
    assert seen[0][1] == "Bearer secret-key"
    assert "secret" not in str(error.value)
    monkeypatch.setenv("ASTRA_SERVE_KEY", "schlüssel")
    with pytest.raises(DecoderError, match="visible ASCII") as error:
        HTTPDecoder(Endpoint(DEAD, "m", 1, True, None), end_ids=())
    assert "schl" not in str(error.value)


async def test_a_message_of_a_server_that_ends_none_is_aborted_here():
    async with scripted(hangs) as (url, seen), asking(url) as decoder:
        task = asyncio.create_task(decoder.generate([7, 8], Sampling(2), Session(1, 2)))
        await until(lambda: bool(seen))
        decoder.abort(Session(1, 2))
        assert await task == Generated([], [], [], "aborted")


async def test_whoever_still_waits_when_it_is_closed_is_told():
    async with scripted(hangs) as (url, seen), asking(url) as decoder:
        task = asyncio.create_task(decoder.generate([7, 8], Sampling(2), Session(1, 2)))
        await until(lambda: bool(seen))
        await decoder.close()
        with pytest.raises(DecoderError, match="closed"):
            await task


async def test_nothing_can_learn_from_what_it_samples(untrained):
    config = RolloutConfig(max_prompt_tokens=256, max_response_tokens=160, max_turns=6)
    decoder = HTTPDecoder(Endpoint(DEAD, "m", 1000, True, None), end_ids=())
    engine = RolloutEngine(untrained.model_config, untrained.tokenizer, InProcessSandbox(), config, lambda: decoder)
    environment = tiny_environment()
    with pytest.raises(DecoderError, match=r"^expected a decoder that takes weights, found the server at [^\n]*$"):
        await engine.run(untrained.params, [Start(environment, environment.tools)], group_size=2, seed=0)


def test_first_contact_says_who_answers(server):
    endpoint = first_contact(f"{server.url}/")
    assert endpoint == Endpoint(server.url, "tiny", LIMITS.max_tokens, replays=True, policy=None)


def test_first_contact_with_nobody_or_somebody_else_is_one_line(monkeypatch):
    monkeypatch.setattr(endpoint_module, "_FIRST_CONTACT_SECONDS", 0.3)
    with pytest.raises(DecoderError, match=rf"^nobody serves a policy at {DEAD}: [^\n]*; `astra serve` does$"):
        first_contact(DEAD)

    async def main() -> None:
        async with scripted() as (url, _):
            with pytest.raises(DecoderError, match="found HTTP 404 from something else"):
                await asyncio.to_thread(first_contact, url)

    asyncio.run(main())
