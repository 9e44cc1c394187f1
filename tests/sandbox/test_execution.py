"""Calls of one new source that come together: one compiles it, and none waits for longer than that takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandbox.execution import Execution
from sandbox.isolation import Tier
from sandbox.jail.zygote import BY_ITSELF, WALL_LIMIT
from sandbox.protocol import ExecuteRequest, Limits
from sandbox.worker import Outcome

SOURCE = "def f(): return 1"


class ScriptedPool:
    """Compiles where it is let, and ends a call's tool where it is let."""

    tier = Tier.NAMESPACES

    def __init__(self, can_compile: bool = True):
        self.operations: list[str] = []
        self.can_compile, self.compiles, self.ends = can_compile, asyncio.Event(), asyncio.Event()

    async def run(self, client, request: dict[str, Any], code, limits, max_reply_bytes, on_code=None) -> Outcome:
        self.operations.append(request["operation"])
        compiled = None
        if request["operation"] == "compile_and_run" and self.can_compile:
            await self.compiles.wait()
            compiled = b"code"
            on_code(compiled)
        if request["operation"] == "compile":
            return Outcome(b"\x01code", None, False, False, 0, BY_ITSELF, 0.0, 0.0, 0, 0.0)
        if request["operation"] == "compile_and_run":
            await self.ends.wait()
        body = b'{"status":"ok","value":1,"state":null,"stdout":""}'
        return Outcome(body, compiled, False, False, 0, BY_ITSELF, 0.0, 0.0, 0, 0.0)


def ask(execution: Execution, client: str = "a") -> asyncio.Task:
    request = ExecuteRequest(source=SOURCE, function="f")
    return asyncio.get_running_loop().create_task(execution.execute(client, request))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_of_several_compiles_and_the_others_run_while_its_tool_still_does():
    pool = ScriptedPool()
    execution = Execution(pool)
    first, *others = [ask(execution) for _ in range(4)]
    await settle()
    assert pool.operations == ["compile_and_run"]
    pool.compiles.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*others)
    assert not first.done()
    assert pool.operations == ["compile_and_run"] + ["run"] * 3
    pool.ends.set()
    await first
    await ask(execution)
    assert pool.operations[4:] == ["run"]
    assert not execution._compiling


async def test_nobody_waits_for_another_client():
    pool = ScriptedPool()
    execution = Execution(pool)
    asked = [ask(execution, "a"), ask(execution, "b")]
    await settle()
    assert pool.operations == ["compile_and_run"] * 2
    pool.compiles.set()
    pool.ends.set()
    await asyncio.gather(*asked)


@pytest.mark.parametrize("how", ["is cancelled", "cannot compile"])
async def test_where_the_first_does_not_compile_it_the_others_go_on_each_for_itself(how):
    pool = ScriptedPool(can_compile=how == "is cancelled")
    execution = Execution(pool)
    first, *others = [ask(execution) for _ in range(3)]
    await settle()
    assert pool.operations == ["compile_and_run"]
    if how == "is cancelled":
        first.cancel()
    pool.compiles.set()
    pool.ends.set()
    async with asyncio.timeout(5):
        replies = await asyncio.gather(*others)
    assert [reply["value"] for reply in replies] == [1, 1]
    assert not execution._compiling


LONG_SOURCE = "def f(): return 1\n" + "# a comment\n" * 2000


class SpentPool(ScriptedPool):
    """Compiling takes 3 s of the wall and 2 s of CPU, or its limit; says which limits each process had."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[Limits] = []

    async def run(self, client, request: dict[str, Any], code, limits, max_reply_bytes, on_code=None) -> Outcome:
        self.limits.append(limits)
        if request["operation"] == "compile" and limits.wall_seconds < 3:
            return Outcome(None, None, False, False, 9, WALL_LIMIT, limits.wall_seconds, 1.0, 7, 0.0)
        if request["operation"] == "compile":
            return Outcome(b"\x01code", None, False, False, 0, BY_ITSELF, 3.0, 2.0, 7, 0.0)
        body = b'{"status":"ok","value":1,"state":null,"stdout":""}'
        return Outcome(body, None, False, False, 0, BY_ITSELF, 0.5, 0.25, 5, 0.0)


async def test_what_compiling_takes_is_taken_from_the_calls_own_time():
    pool = SpentPool()
    call = ExecuteRequest(source=LONG_SOURCE, function="f", limits=Limits(wall_seconds=8, cpu_seconds=4))
    reply = await Execution(pool).execute("a", call)
    assert [(limits.wall_seconds, limits.cpu_seconds) for limits in pool.limits] == [(8, 4), (5, 2)]
    assert reply["usage"] == {"wall_seconds": 3.5, "cpu_seconds": 2.25, "max_rss_bytes": 7}


async def test_a_call_whose_source_takes_all_its_time_times_out():
    pool = SpentPool()
    call = ExecuteRequest(source=LONG_SOURCE, function="f", limits=Limits(wall_seconds=2))
    reply = await Execution(pool).execute("a", call)
    assert reply["error"] == {"kind": "timeout", "message": "stopped after 2 s of wall time"}
    assert reply["usage"]["wall_seconds"] == 2.0
    assert len(pool.limits) == 1
