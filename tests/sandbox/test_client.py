"""The client against services that misbehave: errors that it retries, errors that it does not, and when it gives up."""

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from sandbox import local
from sandbox.bearer_token import InvalidToken
from sandbox.client import AsyncSandboxClient, SandboxClient, SandboxUnavailable, first_contact
from sandbox.protocol import ExecuteReply, ExecuteRequest, Limits

SOURCE = "def f():\n    return 1\n"
OK = {"status": "ok", "value": 1, "state": None, "stdout": ""}
OK_REPLY = json.dumps({**OK, "usage": {"wall_seconds": 0, "cpu_seconds": 0, "max_rss_bytes": 0}}).encode()
Answer = tuple[int, bytes] | tuple[int, bytes, int]
"""Status, body, and the length that is declared, where it is another."""


@contextmanager
def fake_service(answer, authorizations=None):
    """A service whose answer is a function of how often it was asked and of the request; None hangs up."""
    asked: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or "{}"))
            if authorizations is not None:
                authorizations.append(self.headers["authorization"])
            found = answer(len(asked), asked[-1])
            if found is None:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(found[0])
            self.send_header("content-length", str(found[-1] if len(found) == 3 else len(found[1])))
            self.end_headers()
            self.wfile.write(found[1])
            self.close_connection = len(found) == 3

        do_GET = do_POST

        def log_message(self, *_): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))  # how often it looks whether it shall stop
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def execute(url, *, wall_seconds=5.0, errors=None, **options):
    async with AsyncSandboxClient(url, **{"deadline_seconds": 20.0, **options}) as client:
        limits = Limits(wall_seconds=wall_seconds)
        reply = await client.execute(SOURCE, "f", {"x": [1]}, state={"n": 2}, seed=3, limits=limits)
        if errors is not None:
            errors.update(client.service_errors)
        return reply


async def execute_batch(url: str, *calls: ExecuteRequest, **options: Any) -> list[ExecuteReply]:
    async with AsyncSandboxClient(url, **options) as client:
        return await client.execute_batch(calls)


LONG_REPLY = json.dumps({**json.loads(OK_REPLY), "value": ["a\nb", "ü", -1.5e-7, True]}, ensure_ascii=False).encode()
ENDS = [0, 1, 12, LONG_REPLY.index(b"-1.5e-07") + 5, LONG_REPLY.index("ü".encode()) + 1, len(LONG_REPLY) - 1]
FAILURES: list[tuple[Answer | None, str]] = [
    ((429, b"{}"), "http_429"),
    *[((status, body), "http_5xx") for status, body in ((500, b"Internal Server Error"), (502, b"<html>"), (599, b""))],
    (None, "connection_lost"),
    *[((200, LONG_REPLY[:end]), "reply_cut") for end in ENDS],
    *[((200, LONG_REPLY[:end], len(LONG_REPLY)), "reply_cut") for end in ENDS],
]


@pytest.mark.parametrize(("failure", "why"), FAILURES)
async def test_a_failure_of_the_service_is_asked_for_again_and_counted(failure, why):
    errors: Counter[str] = Counter()
    with fake_service(lambda count, _: failure if count < 3 else (200, LONG_REPLY)) as (url, asked):
        assert (await execute(url, errors=errors)).value == ["a\nb", "ü", -1.5e-7, True]
    assert asked[0] == asked[1] == asked[2]  # with the state and the seed that the call had at first
    assert (asked[2]["state"], asked[2]["seed"]) == ({"n": 2}, 3)
    assert (errors, len(asked)) == ({why: 2}, 3)


@pytest.mark.parametrize("status", [400, 403, 404, 408, 413, 302])
async def test_a_refusal_is_not_retried(status):
    with fake_service(lambda *_: (status, b'{"error": {"message": "no such limit"}}')) as (url, asked):
        with pytest.raises(SandboxUnavailable, match=f"refuses the request: HTTP {status}: no such limit"):
            await execute(url)
        assert len(asked) == 1


def test_the_blocking_client_retries_gives_up_and_refuses_like_the_other_one():
    tired = (503, b'{"error": {"message": "tired"}}')
    with (
        fake_service(lambda count, _: tired if count < 2 else (200, OK_REPLY)) as (url, _),
        SandboxClient(url) as client,
    ):
        assert client.execute(SOURCE, "f", {}).value == 1
        with pytest.raises(ValueError, match="JSON"):
            client.execute(SOURCE, "f", {"x": float("nan")})
    with (
        fake_service(lambda *_: tired) as (url, _),
        SandboxClient(url, deadline_seconds=0.3) as client,
        pytest.raises(SandboxUnavailable, match=r"in 0\.3 s: HTTP 503: tired"),
    ):
        client.execute_batch([ExecuteRequest(source=SOURCE, function="f")])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, b"{}"), "the service at .* is not a sandbox"),
        ((200, b"[]"), "the service at .* is not a sandbox: its health is no JSON object"),
        ((404, b"{}"), "no sandbox answers at .* HTTP 404"),
    ],
)
def test_a_service_that_is_no_sandbox_is_told_at_the_first_contact(answer, words):
    with fake_service(lambda *_: answer) as (url, _), pytest.raises(SandboxUnavailable, match=words):
        first_contact(url)


def test_a_sandbox_whose_workers_start_is_found_at_the_first_contact():
    with fake_service(lambda *_: (503, b'{"status": "starting", "workers": {"ready": 0}}')) as (url, asked):
        first_contact(url)
        assert len(asked) == 1


def test_every_answer_of_a_service_that_starts_is_closed(monkeypatch):
    closed: list[int] = []
    monkeypatch.setattr(HTTPError, "close", lambda self: closed.append(self.code), raising=False)
    process: Any = SimpleNamespace(poll=lambda: None)
    with fake_service(lambda count, _: (503 if count < 3 else 200, b"{}")) as (url, _):
        local._wait_until_healthy(url, process)
    assert closed[:2] == [503, 503]


@pytest.mark.parametrize("packages", [b"null", b"3", b'{"versions": ["numpy"], "modules": {}}', b'{"versions": {}}'])
async def test_a_service_that_does_not_say_which_packages_it_has_is_refused(packages):
    with fake_service(lambda *_: (200, b'{"packages": %b}' % packages)) as (url, _):
        async with AsyncSandboxClient(url) as client:
            with pytest.raises(SandboxUnavailable, match="does not say which packages tools may import"):
                await client.require_packages(["numpy"])


async def test_a_name_that_is_not_resolved_is_told_in_the_resolvers_words():
    with pytest.raises(SandboxUnavailable, match=r"known|resolution") as found:
        await execute("http://sandbox.invalid:1", deadline_seconds=0.3)
    assert "Unknown error" not in str(found.value)


def late(asked_at: list[float], times: int, hang_seconds: float = 10.0) -> Callable[[int, dict], Answer | None]:
    """Hangs some times before it answers; notes when it was asked."""

    def answer(count, _):
        asked_at.append(time.monotonic())
        if count <= times:
            time.sleep(hang_seconds)
            return None
        return 200, OK_REPLY

    return answer


async def test_a_reply_that_is_late_is_asked_for_again_after_twice_the_time():
    asked_at: list[float] = []
    errors: Counter[str] = Counter()
    with fake_service(late(asked_at, 2)) as (url, asked):
        assert (await execute(url, grace_seconds=0.1, wall_seconds=0.2, errors=errors)).value == 1
        assert asked[0] == asked[1] == asked[2]
        first, second = (after - before for before, after in itertools.pairwise(asked_at))
        assert 0.3 <= first < 0.6 <= second < 5.0
        assert errors == {"reply_late": 2}


async def test_a_reply_is_due_when_the_call_has_had_its_time():
    call = ExecuteRequest(source=SOURCE, function="f", limits=Limits(wall_seconds=0.4))
    for calls in ([call.model_copy(update={"limits": Limits(wall_seconds=1.0)})], [call] * 3):
        with fake_service(late([], 1, hang_seconds=0.9)) as (url, asked):
            with pytest.raises(SandboxUnavailable, match=r"in 0.8 s: no reply"):
                await execute_batch(url, *calls, deadline_seconds=0.8, grace_seconds=0.01)
            assert len(asked) == 1


async def test_a_call_that_waits_for_a_connection_of_its_client_is_not_late():
    def answer(*_):
        time.sleep(0.3)
        return 200, OK_REPLY

    limits = Limits(wall_seconds=0.5)
    with fake_service(answer) as (url, asked):
        async with AsyncSandboxClient(url, grace_seconds=0.1, max_connections=1) as client:
            await asyncio.gather(*(client.execute(SOURCE, "f", {}, limits=limits) for _ in range(4)))
        assert len(asked) == 4


@pytest.mark.parametrize("garbage", [b"hello", b"{}", b"5", b'{"status": "ok"}', b'{"status": "error", "usage": {}}'])
async def test_a_reply_of_another_protocol_is_never_a_value(garbage):
    with fake_service(lambda *_: (200, garbage)) as (url, asked):
        with pytest.raises(SandboxUnavailable, match="not one of this protocol"):
            await execute(url)
        with pytest.raises(SandboxUnavailable, match="not one of this protocol"):
            await execute_batch(url, ExecuteRequest(source=SOURCE, function="f"))
        assert len(asked) == 2


async def test_a_source_is_sent_once_and_then_named_by_its_hash_and_sent_again_when_forgotten():
    def answer(count, request):
        if count == 3:
            return 404, b'{"error": {"code": "unknown_source", "message": "?"}}'
        return 200, OK_REPLY

    with fake_service(answer) as (url, asked):
        async with AsyncSandboxClient(url) as client:
            for _ in range(3):
                await client.execute(SOURCE, "f", {})
        assert ["source" in request for request in asked] == [True, False, False, True]


async def test_a_batch_that_is_not_answered_whole_has_no_replies():
    calls = [ExecuteRequest(source=SOURCE, function="f")] * 2
    with fake_service(lambda *_: (200, b"[%s, %s]" % (OK_REPLY, OK_REPLY))) as (url, _):
        assert len(await execute_batch(url, *calls)) == 2
    half = fake_service(lambda *_: (200, b"[%s]" % OK_REPLY))
    with half as (url, _), pytest.raises(SandboxUnavailable, match="answered 1 of 2 calls"):
        await execute_batch(url, *calls)


@pytest.mark.parametrize(
    "changes", [{"status": "error"}, {"error": {"kind": "timeout", "message": "late"}}, {"status": "perhaps"}]
)
def test_a_reply_has_an_error_exactly_where_it_failed(changes):
    ExecuteReply.model_validate_json(OK_REPLY)
    with pytest.raises(ValueError, match=r"status|exactly when"):
        ExecuteReply.model_validate({**json.loads(OK_REPLY), **changes})


TOKEN = "t0ken-of-this-test"


@pytest.mark.parametrize(
    ("variable", "argument", "sent"),
    [
        (TOKEN, None, f"Bearer {TOKEN}"),
        (f" {TOKEN}\n", None, f"Bearer {TOKEN}"),
        ("", None, None),
        (TOKEN, "another", "Bearer another"),
        (TOKEN, "", None),
    ],
)
async def test_a_client_sends_the_environments_token_unless_it_is_given_one(variable, argument, sent, monkeypatch):
    monkeypatch.setenv("ASTRA_SANDBOX_TOKEN", variable)
    headers: list[str | None] = []
    with fake_service(lambda *_: (200, OK_REPLY), headers) as (url, _):
        await execute(url, token=argument)
    assert headers == [sent]


@pytest.mark.parametrize("token", [TOKEN, ""])
async def test_a_token_that_is_wrong_or_missing_is_one_line_at_once_that_does_not_hold_it(token):
    refusal = b'{"error": {"code": "unauthorized", "message": "the bearer token is missing or wrong"}}'
    with fake_service(lambda *_: (401, refusal)) as (url, asked):
        with pytest.raises(SandboxUnavailable, match="set ASTRA_SANDBOX_TOKEN in the environment") as unavailable:
            await execute(url, token=token)
        assert len(asked) == 1
    assert ("refuses the token" if token else "wants a token") in str(unavailable.value)
    assert TOKEN not in str(unavailable.value)
    assert "\n" not in str(unavailable.value)


@pytest.mark.parametrize("token", ["se cret\x00", "a\nb", "geheim-ü"])
@pytest.mark.parametrize("where", ["argument", "environment"])
async def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(token, where, monkeypatch):
    monkeypatch.setattr("sandbox.bearer_token.os.environ", {"ASTRA_SANDBOX_TOKEN": token})
    with pytest.raises(InvalidToken, match="has characters other than visible ASCII") as invalid:
        await execute("http://127.0.0.1:9", token=token if where == "argument" else None)
    assert (" in ASTRA_SANDBOX_TOKEN " in str(invalid.value)) == (where == "environment")
    assert token not in str(invalid.value)


async def test_a_batch_whose_replies_are_too_long_together_is_sent_in_parts():
    def answer(_, batch):
        if len(batch) > 2 or batch[0]["arguments"]["x"] == 9:
            return 413, b'{"error": {"code": "batch_too_large", "message": "send fewer calls at once"}}'
        return 200, b"[%b]" % b",".join(
            OK_REPLY.replace(b'"value": 1', b'"value": %d' % one["arguments"]["x"]) for one in batch
        )

    calls = [ExecuteRequest(source=SOURCE, function="f", arguments={"x": x}) for x in range(5)]
    with fake_service(answer) as (url, asked):
        assert [reply.value for reply in await execute_batch(url, *calls)] == [0, 1, 2, 3, 4]
        assert [len(batch) for batch in asked] == [5, 2, 3, 1, 2]
        asked.clear()
        with pytest.raises(SandboxUnavailable, match="refuses one call as a batch"):
            await execute_batch(url, calls[0].model_copy(update={"arguments": {"x": 9}}))
        assert len(asked) == 1
