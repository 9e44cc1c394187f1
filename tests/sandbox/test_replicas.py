"""Several services behind one client: who gets a call, who is left alone, and that none is lost."""

import asyncio
import contextlib
import os
import signal
from collections import Counter

import pytest

from sandbox.client import AsyncSandboxClient, SandboxClient, SandboxUnavailable, first_contact
from sandbox.local import local_sandbox
from sandbox.protocol import Limits
from tests.sandbox.processes import service_process
from tests.sandbox.test_client import OK_REPLY, SOURCE, Client, both, execute, fake_service

DOUBLE = "import time\ndef double(x):\n    time.sleep(x % 3 / 50)\n    return 2 * x\n"


@pytest.fixture
async def client() -> AsyncSandboxClient:
    return AsyncSandboxClient("http://a,http://b,http://c")


async def test_a_call_goes_to_the_replica_with_the_fewest_calls(client: AsyncSandboxClient) -> None:
    taken: Counter[str] = Counter()
    for _ in range(6):
        replica = client._next_replica(set())
        replica.outstanding += 1
        taken[replica.url] += 1
    assert taken == {"http://a": 2, "http://b": 2, "http://c": 2}
    client.replicas[1].outstanding -= 1
    assert client._next_replica(set()) is client.replicas[1]


async def test_a_replica_that_failed_rests_longer_each_time_and_then_gets_one_call_at_a_time(
    client: AsyncSandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("sandbox.client.time.monotonic", lambda: now)
    bad = client.replicas[0]
    for _ in range(3):  # calls that fail together rest it once
        bad.rest()
    assert (bad.rest_seconds, bad.failed) == (0.25, 3)
    assert bad not in [client._next_replica(set()) for _ in range(9)]
    now += 0.3
    for other in client.replicas[1:]:
        other.outstanding = 1
    assert client._next_replica(set()) is bad
    bad.outstanding += 1
    assert bad not in [client._next_replica(set()) for _ in range(9)]
    bad.rest()
    assert bad.rest_seconds == 0.5


async def test_a_replica_that_was_tried_is_not_tried_again_while_there_is_another(client: AsyncSandboxClient) -> None:
    tried = {client.replicas[0], client.replicas[2]}
    assert [client._next_replica(tried) for _ in range(3)] == [client.replicas[1]] * 3


async def test_if_all_rest_the_one_whose_rest_ends_first_is_taken(client: AsyncSandboxClient) -> None:
    for position in (2, 0, 1):
        client.replicas[position].rest()
    assert client._next_replica(set()) is client.replicas[2]


@both
async def test_a_call_goes_on_to_another_replica_at_once(kind: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.client._pause_seconds", lambda *_: pytest.fail("it waited"))
    for failure in ((503, b"{}"), (429, b"{}"), (500, b""), None):
        with (
            fake_service(lambda *_, failure=failure: failure) as (bad, bad_asked),  # type: ignore[misc]
            fake_service(lambda *_: (200, OK_REPLY)) as (good, good_asked),
        ):
            calls = 0
            while not bad_asked:  # which of two equal replicas comes first is chance
                assert (await execute(f"{bad}, {good}", kind)).value == 1
                calls += 1
            assert len(bad_asked) == 1
            assert len(good_asked) == calls


@both
async def test_a_replica_that_nobody_listens_at_costs_no_call(kind: Client) -> None:
    with fake_service(lambda *_: (200, OK_REPLY)) as (good, asked):
        for _ in range(3):
            assert (await execute(f"http://127.0.0.1:9,{good}", kind, deadline_seconds=5)).value == 1
        assert len(asked) == 3


@pytest.mark.parametrize("text", ["http://a,", ",", "http://a,http://a/", "http://a,,http://b"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SandboxUnavailable, match="different ones between commas, found"):
        SandboxClient(text)
    with pytest.raises(SandboxUnavailable, match="different ones between commas, found"):
        first_contact(text)


@pytest.mark.slow
async def test_three_replicas_one_killed_and_one_drained_under_load_lose_no_call() -> None:
    async with contextlib.AsyncExitStack() as stack:
        urls = [await asyncio.to_thread(stack.enter_context, local_sandbox(1)) for _ in range(3)]  # type: ignore[arg-type]
        pids = [service_process(url) for url in urls]
        client = await stack.enter_async_context(AsyncSandboxClient(",".join(urls), deadline_seconds=60))
        first_contact(",".join(urls))
        done = 0

        async def caller(number: int) -> None:
            nonlocal done
            for turn in range(30):
                x = 30 * number + turn
                reply = await client.execute(DOUBLE, "double", {"x": x}, limits=Limits(wall_seconds=10))
                assert reply.value == 2 * x
                done += 1

        async def until(calls: int) -> None:
            while done < calls:
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group, asyncio.timeout(120):
            for number in range(16):
                group.create_task(caller(number))
            await until(120)
            assert all(replica.answered for replica in client.replicas)
            os.kill(pids[0], signal.SIGKILL)
            await until(240)
            os.kill(pids[1], signal.SIGTERM)
        assert done == 480
        killed, drained, kept = client.replicas
        assert (killed.failed > 0, drained.failed > 0, kept.answered > 200) == (True, True, True)
        assert sum(replica.outstanding for replica in client.replicas) == 0
        assert (await client.health())["status"] == "ok"


@pytest.mark.slow
async def test_a_replica_that_comes_back_gets_calls_again() -> None:
    with contextlib.ExitStack() as services:
        kept, other = (services.enter_context(local_sandbox(1)) for _ in range(2))
        async with AsyncSandboxClient(f"{other},{kept}", grace_seconds=0.5) as client:
            replica = client.replicas[0]
            os.kill(service_process(other), signal.SIGSTOP)
            while not replica.failed:
                limits = Limits(wall_seconds=0.5)
                assert (await client.execute(SOURCE, "f", {}, limits=limits)).value == 1
            assert replica.rest_seconds > 0
            os.kill(service_process(other), signal.SIGCONT)
            async with asyncio.timeout(30):
                while not replica.answered:
                    assert (await client.execute(SOURCE, "f", {})).value == 1
            assert replica.rest_seconds == 0
