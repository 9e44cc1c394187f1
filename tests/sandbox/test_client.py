"""The clients against services that misbehave: what is retried, what is not, and when they give up."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sandbox.bearer_token import InvalidToken
from sandbox.client import AsyncSandboxClient, SandboxClient, SandboxUnavailable
from sandbox.protocol import ErrorKind, ExecuteReply, ExecuteRequest

SOURCE = "def f():\n    return 1\n"
OK = {"status": "ok", "value": 1, "state": None, "stdout": ""}
OK_REPLY = json.dumps({**OK, "usage": {"wall_seconds": 0, "cpu_seconds": 0, "max_rss_bytes": 0}}).encode()
Answer = tuple[int, bytes]


@contextmanager
def fake_service(
    answer: Callable[[int, dict], Answer | None], authorizations: list[str | None] | None = None
) -> Iterator[tuple[str, list[dict]]]:
    """A service whose answer is a function of how often it was asked and of the request; None hangs up."""
    asked: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            if authorizations is not None:
                authorizations.append(self.headers["authorization"])
            found = answer(len(asked), asked[-1])
            if found is None:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(found[0])
            self.send_header("content-length", str(len(found[1])))
            self.end_headers()
            self.wfile.write(found[1])

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def execute(url: str, kind: str, deadline_seconds: float = 20.0) -> object:
    """The value of one call, by either client."""
    if kind == "async":
        async with AsyncSandboxClient(url, deadline_seconds=deadline_seconds) as client:
            return (await client.execute(SOURCE, "f", {})).value
    with SandboxClient(url, deadline_seconds=deadline_seconds) as blocking:
        return await asyncio.to_thread(lambda: blocking.execute(SOURCE, "f", {}).value)


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
@pytest.mark.parametrize("failure", [(503, b"{}"), (429, b"{}"), (502, b"<html>"), None])
async def test_a_failure_of_the_service_is_retried(kind: str, failure: Answer | None) -> None:
    with fake_service(lambda count, _: failure if count < 3 else (200, OK_REPLY)) as (url, asked):
        assert await execute(url, kind) == 1
        assert len(asked) == 3


@both
async def test_a_refusal_is_not_retried(kind: str) -> None:
    with fake_service(lambda *_: (400, b'{"error": {"message": "no such limit"}}')) as (url, asked):
        with pytest.raises(SandboxUnavailable, match="no such limit"):
            await execute(url, kind)
        assert len(asked) == 1


@both
async def test_a_service_that_stays_down_ends_at_the_deadline(kind: str) -> None:
    with fake_service(lambda *_: (503, b'{"error": {"message": "tired"}}')) as (url, _):
        began = time.monotonic()
        with pytest.raises(SandboxUnavailable, match=r"in 0.6 s: HTTP 503: tired"):
            await execute(url, kind, deadline_seconds=0.6)
        assert time.monotonic() - began < 1.5


@both
async def test_a_service_that_never_answers_ends_at_the_deadline(kind: str) -> None:
    release = threading.Event()
    with fake_service(lambda *_: (release.wait(10), (200, OK_REPLY))[1]) as (url, _):
        began = time.monotonic()
        with pytest.raises(SandboxUnavailable):
            await execute(url, kind, deadline_seconds=0.5)
        assert time.monotonic() - began < 1.5
        release.set()


@both
async def test_a_service_that_is_not_there_ends_at_the_deadline(kind: str) -> None:
    with pytest.raises(
        SandboxUnavailable, match=r"in 0.5 s: (ConnectError|ClientConnectorError): .*refused|Connect call failed"
    ):
        await execute("http://127.0.0.1:9", kind, deadline_seconds=0.5)


@both
@pytest.mark.parametrize("garbage", [b"hello", b"{}", b'{"status": "ok"}', b'{"status": "error", "usage": {}}'])
async def test_a_reply_of_another_protocol_is_never_a_value(kind: str, garbage: bytes) -> None:
    with fake_service(lambda *_: (200, garbage)) as (url, _), pytest.raises(SandboxUnavailable):
        await execute(url, kind)


@both
async def test_a_source_is_sent_once_and_then_named_by_its_hash_and_sent_again_when_forgotten(kind: str) -> None:
    def answer(count: int, request: dict) -> Answer:
        if count == 3:
            return 404, b'{"error": {"code": "unknown_source", "message": "?"}}'
        return 200, OK_REPLY

    with fake_service(answer) as (url, asked):
        if kind == "async":
            async with AsyncSandboxClient(url) as client:
                for _ in range(3):
                    await client.execute(SOURCE, "f", {})
        else:
            with SandboxClient(url) as blocking:
                for _ in range(3):
                    await asyncio.to_thread(blocking.execute, SOURCE, "f", {})
        assert ["source" in request for request in asked] == [True, False, False, True]


@both
async def test_a_batch_that_is_not_answered_whole_has_no_replies(kind: str) -> None:
    requests = [ExecuteRequest(source=SOURCE, function="f")] * 2

    async def execute_both(url: str) -> int:
        if kind == "async":
            async with AsyncSandboxClient(url) as client:
                return len(await client.execute_batch(requests))
        with SandboxClient(url) as blocking:
            return len(await asyncio.to_thread(blocking.execute_batch, requests))

    with fake_service(lambda *_: (200, b"[%s, %s]" % (OK_REPLY, OK_REPLY))) as (url, _):
        assert await execute_both(url) == 2
    half = fake_service(lambda *_: (200, b"[%s]" % OK_REPLY))
    with half as (url, _), pytest.raises(SandboxUnavailable, match="answered 1 of 2 calls"):
        await execute_both(url)


@pytest.mark.parametrize(
    "changes", [{"status": "error"}, {"error": {"kind": "timeout", "message": "late"}}, {"status": "perhaps"}]
)
def test_a_reply_has_an_error_exactly_where_it_failed(changes: dict) -> None:
    ExecuteReply.model_validate_json(OK_REPLY)
    with pytest.raises(ValueError, match=r"status|exactly when"):
        ExecuteReply.model_validate({**json.loads(OK_REPLY), **changes})


@pytest.mark.parametrize("sources", [{}, {"source": SOURCE, "source_sha256": "0" * 64}])
def test_a_call_names_its_source_in_one_way(sources: dict) -> None:
    with pytest.raises(ValueError, match="exactly one of"):
        ExecuteRequest(function="f", **sources)


def test_arguments_that_json_cannot_say_are_the_callers_mistake(client: SandboxClient) -> None:
    with pytest.raises(ValueError, match="JSON"):
        client.execute(SOURCE, "f", {"x": float("nan")})


def test_a_null_argument_arrives_as_none(client: SandboxClient) -> None:
    source = "def f(x, y):\n    return [x is None, y]\n"
    for _ in range(2):
        assert client.execute(source, "f", {"x": None, "y": {"z": None}}).value == [True, {"z": None}]


def test_a_batch_mixes_successes_and_failures(client: SandboxClient) -> None:
    requests = [
        ExecuteRequest(source=SOURCE, function="f"),
        ExecuteRequest(source=SOURCE, function="g"),
        ExecuteRequest(source="def f(", function="f"),
    ]
    for _ in range(2):
        replies = client.execute_batch(requests)
        kinds = [reply.error.kind if reply.error else None for reply in replies]
        assert kinds == [None, ErrorKind.INVALID_SOURCE, ErrorKind.INVALID_SOURCE]
    assert client.execute_batch([]) == []


TOKEN = "t0ken-of-this-test"


def authorization_of(url: str, kind: str, **options: str) -> None:
    """One call by either client."""
    if kind == "sync":
        with SandboxClient(url, **options) as client:  # type: ignore[arg-type]
            client.execute(SOURCE, "f", {})
        return

    async def call() -> None:
        async with AsyncSandboxClient(url, **options) as client:  # type: ignore[arg-type]
            await client.execute(SOURCE, "f", {})

    asyncio.run(call())


@both
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
def test_a_client_sends_the_environments_token_unless_it_is_given_one(
    kind: str, variable: str, argument: str | None, sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRA_SANDBOX_TOKEN", variable)
    headers: list[str | None] = []
    with fake_service(lambda *_: (200, OK_REPLY), headers) as (url, _):
        authorization_of(url, kind, **({} if argument is None else {"token": argument}))
    assert headers == [sent]


@both
@pytest.mark.parametrize("token", [TOKEN, ""])
def test_a_token_that_is_wrong_or_missing_is_one_line_at_once_that_does_not_hold_it(kind: str, token: str) -> None:
    refusal = b'{"error": {"code": "unauthorized", "message": "the bearer token is missing or wrong"}}'
    with fake_service(lambda *_: (401, refusal)) as (url, asked):
        with pytest.raises(SandboxUnavailable, match="set ASTRA_SANDBOX_TOKEN in the environment") as unavailable:
            authorization_of(url, kind, token=token)
        assert len(asked) == 1
    assert ("refuses the token" if token else "wants a token") in str(unavailable.value)
    assert TOKEN not in str(unavailable.value)
    assert "\n" not in str(unavailable.value)


@both
@pytest.mark.parametrize("token", ["se cret\x00", "a\nb", "geheim-ü"])
def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(
    kind: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "\0" not in token:
        monkeypatch.setenv("ASTRA_SANDBOX_TOKEN", token)
        with pytest.raises(InvalidToken, match="visible ASCII characters in ASTRA_SANDBOX_TOKEN") as invalid:
            authorization_of("http://127.0.0.1:9", kind)
        assert token not in str(invalid.value)
    with pytest.raises(InvalidToken) as invalid:
        authorization_of("http://127.0.0.1:9", kind, token=token)
    assert token not in str(invalid.value)
