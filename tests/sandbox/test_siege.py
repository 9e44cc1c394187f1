"""The service under siege: more callers than descriptors, dying workers, and a stop."""

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

import httpx
import pytest

from sandbox.client import AsyncSandboxClient
from sandbox.isolation import Tier
from sandbox.local import local_sandbox
from sandbox.pool import Pool
from sandbox.protocol import Limits
from sandbox.worker import Outcome
from tests.sandbox.processes import children, wait_until, zombies
from tests.sandbox.siege import SLEEP, SMALL, Caller, Noticed, Service, ask_once, service

ROOT = Path(__file__).parents[2]


async def call_once(one: Service, callers: int) -> Noticed:
    """One small call from each caller at once, none of which is repeated."""
    noticed = Noticed()

    async def work(number: int) -> None:
        caller = Caller(one.port)
        await noticed.call(caller, number, patience_seconds=30)
        caller.close()

    await asyncio.gather(*(work(number) for number in range(callers)))
    return noticed


async def test_every_caller_is_answered_if_there_are_more_of_them_than_descriptors() -> None:
    async with service(descriptors=300, workers=1) as one:

        async def call(number: int) -> object:
            async with AsyncSandboxClient(f"http://127.0.0.1:{one.port}") as client:  # a connection of its own
                return (await client.execute(SMALL["source"], "double", {"x": number})).value

        assert await asyncio.gather(*(call(number) for number in range(400))) == [2 * number for number in range(400)]


async def test_a_thousand_connections_are_answered_without_an_error() -> None:
    async with service(descriptors=4096, workers=1) as one:
        assert (await call_once(one, 1000)).outcomes == {"right": 1000}


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
    document = {"compiles": True, "function": "f", "arguments": {}, "state": None}
    text = json.dumps(document | {"seed": 0, "output_bytes": 100, "result_bytes": 100}).encode()
    keep: list[bytes] = []
    runs = (pool.run("c", text, b"def f(): return 1", Limits(), 1 << 20, keep.append) for _ in range(calls))
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
async def test_a_service_that_is_asked_to_stop_finishes_its_calls_and_lets_nobody_in() -> None:
    async with service(workers=1) as one:
        nap = {**SLEEP, "arguments": {"seconds": 6.5}}
        begun = [asyncio.ensure_future(ask_once(one.port, "/v1/execute", nap)) for _ in range(6)]
        while json.loads((await ask_once(one.port, "/health"))[1])["queue"]["in_flight"] < 6:
            await asyncio.sleep(0.05)
        one.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        with pytest.raises(OSError, match=r"refused|failed"):
            await asyncio.open_connection("127.0.0.1", one.port)
        assert Counter(status for status, _ in await asyncio.gather(*begun)) == {200: 6}
        assert await asyncio.to_thread(one.process.wait, 5) == -signal.SIGTERM


def test_calls_that_outlast_the_grace_of_a_stop_are_answered_with_a_failure_of_the_service() -> None:
    program = (
        "import sys\nfrom sandbox import server\nserver._DRAIN_MARGIN_SECONDS = 1 - 60\n"
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
        assert connection.getresponse().status >= 500  # of which the client sends the call again
        assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_a_service_with_too_few_descriptors_does_not_start() -> None:
    command = f"ulimit -n 100; exec {sys.executable} -m sandbox.server --port 0 --workers 1"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "1 workers need more descriptors than this user may open: raise `ulimit -n`" in result.stderr


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
