"""Several services behind one client: who gets a call, who is left alone, and that none is lost."""

import asyncio
import contextlib
import os
import signal
from collections import Counter

import pytest

from sandbox import replicas
from sandbox.client import AsyncSandboxClient, SandboxClient, SandboxUnavailable, first_contact
from sandbox.local import local_sandbox
from sandbox.protocol import Limits
from sandbox.replicas import Replica, Replicas
from tests.sandbox.processes import service_process
from tests.sandbox.test_client import OK_REPLY, SOURCE, both, execute, fake_service

DOUBLE = "import time\ndef double(x):\n    time.sleep(x % 3 / 50)\n    return 2 * x\n"


def three() -> tuple[Replicas, list[Replica]]:
    listed = [Replica(url) for url in "abc"]
    return Replicas(listed), listed


def test_a_call_goes_to_the_replica_with_the_fewest_calls() -> None:
    replicas, listed = three()
    taken = [replicas.take(set()) for _ in range(6)]
    assert Counter(replica.url for replica in taken) == {"a": 2, "b": 2, "c": 2}
    replicas.give_back(listed[1], is_in_order=True)
    assert replicas.take(set()) is listed[1]
    replicas.give_back(listed[0], is_in_order=None)
    assert (listed[0].outstanding, listed[0].answered, listed[0].failed) == (1, 0, 0)


def test_a_replica_that_failed_rests_longer_each_time_and_one_caller_asks_for_its_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(replicas.time, "monotonic", lambda: now)
    ours, (bad, *_) = three()
    for _ in range(3):  # calls that fail together rest it once
        bad.outstanding += 1
        ours.give_back(bad, is_in_order=False)
    assert (bad.rest_seconds, bad.failed) == (0.25, 3)
    assert bad not in [ours.take(set()) for _ in range(9)]
    now += 0.3
    assert ours.take(set()) is bad
    assert bad.is_asked
    assert bad not in [ours.take(set()) for _ in range(9)]  # the others go elsewhere meanwhile
    ours.give_back(bad, is_in_order=False)
    assert bad.rest_seconds == 0.5
    now += 0.6
    assert ours.take(set()) is bad
    ours.is_well(bad)
    assert bad.rest_seconds == 0
    assert ours.take(set()) is bad


def test_what_was_tried_is_not_tried_again_while_there_is_another() -> None:
    replicas, listed = three()
    tried = {listed[0], listed[2]}
    assert replicas.has_another(tried)
    assert [replicas.take(tried) for _ in range(3)] == [listed[1]] * 3
    assert not replicas.has_another(set(listed))


def test_where_all_rest_the_one_whose_rest_ends_first_is_taken() -> None:
    replicas, listed = three()
    for replica in (listed[2], listed[0], listed[1]):
        replica.outstanding += 1
        replicas.give_back(replica, is_in_order=False)
    assert replicas.take(set()) is listed[2]


@both
async def test_a_call_goes_on_to_another_replica_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.exchange.Session._pause", lambda *_: pytest.fail("it waited"))
    for failure in ((503, b"{}"), (429, b"{}"), (500, b""), None):
        with (
            fake_service(lambda *_, failure=failure: failure) as (bad, bad_asked),  # type: ignore[misc]
            fake_service(lambda *_: (200, OK_REPLY)) as (good, good_asked),
        ):
            for _ in range(2):
                assert (await execute(f"{bad}, {good}", kind)).value == 1
            assert len(bad_asked) >= 1
            assert len(good_asked) == 2


@both
async def test_a_replica_that_nobody_listens_at_costs_no_call(kind: str) -> None:
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
            assert all(replica.answered for replica in client.replicas.all)
            os.kill(pids[0], signal.SIGKILL)
            await until(240)
            os.kill(pids[1], signal.SIGTERM)
        assert done == 480
        assert client.waits.calls == 480
        assert client.waits.longest_seconds < 60
        killed, drained, kept = client.replicas.all
        assert (killed.failed > 0, drained.failed > 0, kept.answered > 200) == (True, True, True)
        assert sum(replica.outstanding for replica in client.replicas.all) == 0
        assert (await client.health())["status"] == "ok"


@pytest.mark.slow
async def test_a_replica_that_comes_back_gets_calls_again() -> None:
    with contextlib.ExitStack() as services:
        kept, other = (services.enter_context(local_sandbox(1)) for _ in range(2))
        async with AsyncSandboxClient(f"{other},{kept}") as client:
            replica = client.replicas.all[0]
            os.kill(service_process(other), signal.SIGSTOP)
            replica.rest_seconds, replica.rests_until = 0.01, 0.0  # as after a failure
            assert (await client.execute(SOURCE, "f", {})).value == 1
            assert replica.rest_seconds > 0
            os.kill(service_process(other), signal.SIGCONT)
            async with asyncio.timeout(30):
                while not replica.answered:
                    assert (await client.execute(SOURCE, "f", {})).value == 1
            assert replica.rest_seconds == 0
