"""The service under siege: more callers than descriptors, requests that never come, dying workers, and a stop."""

import asyncio
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from sandbox import connections, server
from sandbox.connections import CallerProtocol, Connections, most_connections
from sandbox.isolation import Tier
from sandbox.local import local_sandbox
from sandbox.pool import Pool
from sandbox.protocol import Limits
from sandbox.worker import Outcome
from tests.sandbox.processes import children, wait_until, zombies
from tests.sandbox.siege import SLEEP, Caller, Noticed, Service, ask_once, service

ROOT = Path(__file__).parents[2]
HALF_REQUESTS = (
    b"",
    b"POST /v1/execute HTTP/1.1\r\nhost: 127.0.0.1\r\n",
    b"POST /v1/execute HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n{",
)


async def call_once(one: Service, callers: int) -> Noticed:
    """One small call from each caller at once, none of which is repeated."""
    noticed = Noticed()

    async def work(number: int) -> None:
        caller = Caller(one.port)
        await noticed.call(caller, number, patience_seconds=30)
        caller.close()

    await asyncio.gather(*(work(number) for number in range(callers)))
    return noticed


async def test_every_caller_is_answered_where_there_are_more_of_them_than_descriptors() -> None:
    async with service(descriptors=300, workers=1) as one:
        noticed = await call_once(one, 400)
        assert noticed.outcomes == {"right": 400}
        assert len(one.log.read_text().splitlines()) < 6, one.log.read_text()


async def test_requests_that_never_come_make_room_for_those_that_do() -> None:
    async with service(descriptors=300, workers=1) as one, contextlib.AsyncExitStack() as held:
        for number in range(300):
            _, writer = await asyncio.open_connection("127.0.0.1", one.port)
            held.callback(writer.close)
            writer.write(HALF_REQUESTS[number % 3])
        assert (await call_once(one, 40)).outcomes == {"right": 40}
        assert len(one.log.read_text().splitlines()) < 6, one.log.read_text()


@contextlib.asynccontextmanager
async def pool_of_one() -> AsyncIterator[Pool]:
    pool = Pool(Tier.NAMESPACES, 1)
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


async def run_all(pool: Pool, calls: int) -> Counter[str]:
    """What becomes of so many calls that are asked for in one turn of the event loop."""
    document = {"operation": "compile_and_run", "function": "f", "arguments": {}, "state": None}
    document |= {"seed": 0, "output_bytes": 100, "result_bytes": 100}
    runs = (pool.run("client", document, b"def f(): return 1", Limits(), 1 << 20) for _ in range(calls))
    async with asyncio.timeout(60):
        found = await asyncio.gather(*runs, return_exceptions=True)
    return Counter("ok" if isinstance(one, Outcome) and b'"ok"' in (one.body or b"") else repr(one) for one in found)


async def test_calls_that_a_dead_worker_does_not_take_wait_for_the_next_one() -> None:
    async with pool_of_one() as pool:
        (zygote,) = children(pool.workers[0].process.pid)
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: zygote not in children(pool.workers[0].process.pid) or zombies([zygote]) == 1)
        assert await run_all(pool, 100) == {"ok": 100}
        assert pool.restarts == 1


async def test_calls_wait_for_a_descriptor_where_none_is_left() -> None:
    async with pool_of_one() as pool:
        first_free = os.dup(0)
        os.close(first_free)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + 3, hard))
        try:
            assert await run_all(pool, 20) == {"ok": 20}
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
async def test_a_service_that_is_asked_to_stop_finishes_its_calls_and_refuses_others_with_503() -> None:
    async with service(workers=1) as one:
        nap = {**SLEEP, "arguments": {"seconds": 6.5}}
        begun = [asyncio.ensure_future(ask_once(one.port, "/v1/execute", nap)) for _ in range(6)]
        old = Caller(one.port)
        while json.loads((await old.ask("/health"))[1])["queue"]["in_flight"] < 6:
            await asyncio.sleep(0.05)
        one.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        for caller in (old, Caller(one.port)):
            status, body = await caller.ask("/v1/execute", nap)
            caller.close()
            assert (status, json.loads(body)["error"]["code"], caller.retry_after) == (503, "draining", "1")
        status, body = await ask_once(one.port, "/health")
        assert (status, json.loads(body)["status"]) == (503, "draining")
        assert Counter(status for status, _ in await asyncio.gather(*begun)) == {200: 6}
        assert await asyncio.to_thread(one.process.wait, 5) == -signal.SIGTERM


def test_calls_that_outlast_the_grace_of_a_stop_are_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys\nfrom sandbox import server\nserver._DRAIN_MARGIN_SECONDS = 0.3 - 60\n"
        "sys.argv = ['', '--port', sys.argv[1], '--workers', '1']\nserver.main()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", program, str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/v1/execute", json.dumps({**SLEEP, "arguments": {"seconds": 15}}))
        while httpx.get(f"http://127.0.0.1:{port}/health").json()["queue"]["in_flight"] == 0:
            pass
        process.terminate()
        response = connection.getresponse()
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert b"shutting down" in response.read()
        assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


class Door:
    """Connections to an application that answers when it is let."""

    def __init__(self, most: int) -> None:
        self.answers, self.answered, self.body = asyncio.Event(), 0, b"ok"
        listener = server._listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.connections = Connections(listener, most)
        self.writers: list[asyncio.StreamWriter] = []
        self._config = uvicorn.Config(self._app, interface="asgi3", lifespan="off", log_level="critical")  # type: ignore[arg-type]
        self._config.load()

    def open(self) -> None:
        state = ServerState()
        self.connections.accept(
            lambda: CallerProtocol(self.connections, config=self._config, server_state=state, app_state={})
        )

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await self.answers.wait()
        length = str(len(self.body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": self.body})
        self.answered += 1

    async def come(self, words: bytes) -> asyncio.StreamReader:
        reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(self.writer)
        self.writer.write(words)
        return reader


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def door(most: int) -> AsyncIterator[Door]:
    one = Door(most)
    one.open()
    try:
        async with asyncio.timeout(15):
            yield one
    finally:
        one.connections.close()
        one.answers.set()
        for writer in one.writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)


async def test_the_connection_that_waits_longest_makes_room_and_never_one_that_is_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_LEAST_WAIT_SECONDS", 0.2)
    async with door(most=3) as one:
        busy = await one.come(GET)
        await asyncio.sleep(0.01)
        first = await one.come(b"")
        await asyncio.sleep(0.01)
        second = await one.come(b"GET / HT")
        one.writer.write(b"TP/1.1\r\n")  # more of a head is not a request
        new = await one.come(GET)
        assert await asyncio.wait_for(first.read(), 5) == b""
        newer = await one.come(GET)
        assert await asyncio.wait_for(second.read(), 5) == b""
        newest = await one.come(GET)
        await asyncio.sleep(0.4)
        assert len(one.connections) == 3  # all three are being answered, so the newest is not taken in yet
        one.answers.set()
        for reader in (busy, new, newer, newest):
            assert (await asyncio.wait_for(reader.readuntil(b"ok"), 5)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("words", [*HALF_REQUESTS, GET])
async def test_a_connection_on_which_no_whole_request_comes_ends(words: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(connections, "_SWEEP_SECONDS", 0.05)
    async with door(most=3) as one:
        one.answers.set()
        reader = await one.come(words)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 200") == (words == GET)
        assert len(one.connections) == 0


async def test_a_caller_that_does_not_read_its_reply_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(connections, "_SWEEP_SECONDS", 0.05)
    for words in (GET, GET.replace(b"host", b"connection: close\r\nhost")):
        async with door(most=3) as one:
            one.body = bytes(64 << 20)
            one.answers.set()
            await one.come(words)
            while one.answered == 0 or len(one.connections):
                await asyncio.sleep(0.02)


def test_a_service_with_too_few_descriptors_does_not_start() -> None:
    command = f"ulimit -n 100; exec {sys.executable} -m sandbox.server --port 0 --workers 1"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "expected 256 descriptors or more for 1 workers, found 100: raise `ulimit -n`" in result.stderr
    assert most_connections(256, 1, 32) == 152


def test_web_pages_and_names_that_lead_here_are_refused() -> None:
    call = {"source": "def f(): return 1", "function": "f"}
    with local_sandbox(1) as url:
        for headers, status, code in (
            ({"origin": "https://evil.example"}, 403, "web_page"),
            ({"origin": "null"}, 403, "web_page"),
            ({"host": "evil.example"}, 421, "unknown_host"),
            ({"host": "evil.example:8377"}, 421, "unknown_host"),
            ({"host": "127.0.0.1.evil.example"}, 421, "unknown_host"),
        ):
            response = httpx.post(f"{url}/v1/execute", json=call, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
            assert httpx.get(f"{url}/health", headers=headers).status_code == status
        assert httpx.post(f"{url.replace('127.0.0.1', 'localhost')}/v1/execute", json=call).json()["value"] == 1


def test_a_name_will_do_for_callers_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRA_SANDBOX_TOKEN", "secret")
    call = {"source": "def f(): return 1", "function": "f"}
    headers = {"host": "astra-sandbox:8377", "authorization": "Bearer secret"}
    with local_sandbox(1) as url:
        assert httpx.post(f"{url}/v1/execute", json=call, headers=headers).json()["value"] == 1
        response = httpx.post(f"{url}/v1/execute", json=call, headers={**headers, "origin": "http://astra-sandbox"})
        assert response.status_code == 403


@pytest.mark.parametrize("module", [["-m", "sandbox.server"], ["-m", "astra_jax.cli", "sandbox", "serve"]])
def test_where_it_listens_and_in_which_tier_is_said_once_it_does(module: list[str]) -> None:
    command = [sys.executable, *module, "--port", "0", "--workers", "1"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        words = process.stdout.readline()
        url = words.split("sandbox on ")[1].split(",")[0]
        assert "1 workers, tier namespaces (" in words
        assert httpx.get(f"{url}/health").json()["tier"] == "namespaces"
    finally:
        process.kill()
        process.communicate()
