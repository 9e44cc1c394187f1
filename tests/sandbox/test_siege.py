"""The service under siege: more callers than descriptors, dying workers, and a stop."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sandbox.client import AsyncSandboxClient
from sandbox.execution import Execution
from sandbox.isolation import Tier
from sandbox.pool import Pool
from sandbox.protocol import ExecuteRequest
from tests.sandbox.processes import children, wait_until, zombies
from tests.sandbox.services import ONE_WORKER, ROOT, own, refusal, served

DOUBLE = "def double(x):\n    return 2 * x\n"
NAP = {"source": "import time\ndef nap(seconds):\n    time.sleep(seconds)\n", "function": "nap"}


def with_descriptors(number: int) -> list[str]:
    return ["bash", "-c", f'ulimit -n {number}; exec "$@"', "siege", sys.executable, *ONE_WORKER]


async def test_every_caller_is_answered_if_there_are_more_of_them_than_descriptors():
    with served(with_descriptors(125), cwd=ROOT) as (url, _):

        async def call(number):
            async with AsyncSandboxClient(url) as client:  # a connection of its own
                return (await client.execute(DOUBLE, "double", {"x": number})).value

        assert await asyncio.gather(*(call(number) for number in range(130))) == [2 * number for number in range(130)]


@contextlib.asynccontextmanager
async def pool_of_one() -> AsyncIterator[Pool]:
    pool = Pool(Tier.NAMESPACES, 1)
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


async def run_all(pool: Pool, calls: int) -> list[object]:
    """Return the values of so many calls that are asked for at once."""
    call = ExecuteRequest(source="def f(): return 1", function="f")
    async with asyncio.timeout(60):
        return [reply.get("value") for reply in json.loads(await Execution(pool).execute_batch("c", [call] * calls))]


async def test_calls_that_a_dead_worker_does_not_take_wait_for_the_next_one():
    async with pool_of_one() as pool:
        (zygote,) = children(pool.workers[0].process.pid)
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: zygote not in children(pool.workers[0].process.pid) or zombies([zygote]) == 1)
        assert await run_all(pool, 100) == [1] * 100
        assert pool.restarts == 1


async def test_calls_wait_for_a_descriptor_where_none_is_left():
    async with pool_of_one() as pool:
        free = [os.dup(0) for _ in range(3)]  # the lowest ones; numbers between them may be in use
        for descriptor in free:
            os.close(descriptor)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, hard))
        try:
            assert await run_all(pool, 20) == [1] * 20
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def nap(url: str, seconds: float) -> httpx.Response:
    document: dict[str, Any] = {**NAP, "arguments": {"seconds": seconds}, "limits": {"wall_seconds": 20}}
    return httpx.post(f"{url}/v1/execute", json=document, timeout=60, trust_env=False)


def wait_for_naps(url: str, number: int) -> None:
    wait_until(lambda: httpx.get(f"{url}/health").json()["queue"]["in_flight"] == number)


@pytest.mark.slow
def test_a_service_that_is_asked_to_stop_finishes_its_calls_and_accepts_none():
    with served(**own()) as (url, process), ThreadPoolExecutor(6) as threads:
        begun = [threads.submit(nap, url, 6.5) for _ in range(6)]
        wait_for_naps(url, 6)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses_connections(url), seconds=3)
        assert [call.result().status_code for call in begun] == [200] * 6
        assert process.wait(5) == -signal.SIGTERM


def refuses_connections(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.ConnectError:
        return True
    return False


def test_calls_that_outlast_the_grace_of_a_stop_are_answered_with_a_failure_of_the_service():
    program = "from sandbox import server\nserver._DRAIN_MARGIN_SECONDS = 1 - 60\nserver.main()\n"
    command = [sys.executable, "-c", program, *ONE_WORKER[2:]]
    with served(command, cwd=ROOT) as (url, process), ThreadPoolExecutor(1) as threads:
        begun = threads.submit(nap, url, 15)
        wait_for_naps(url, 1)
        process.terminate()
        assert begun.result().status_code >= 500  # of which the client sends the call again
        assert process.wait(10) == -signal.SIGTERM


def test_the_command_says_where_it_listens_and_in_which_tier_once_it_does():
    command = [sys.executable, "-m", "astra_jax.cli", "sandbox", "serve", "--port", "0", "--workers", "1"]
    with served(command, cwd=ROOT) as (url, _):
        assert httpx.get(f"{url}/health").json()["tier"] == "namespaces"


def test_a_service_with_too_few_descriptors_does_not_start():
    log = refusal(with_descriptors(100), cwd=ROOT)
    assert log.count("\n") == 1
    assert "1 workers need more descriptors than this user may open: raise `ulimit -n`" in log
