"""Calls of one new source that come together: one compiles it, and none waits for longer than that takes."""

from __future__ import annotations

import asyncio
import json

import pytest

from sandbox.execution import Execution, InvalidRequest
from sandbox.jail.zygote import BY_ITSELF
from sandbox.protocol import ErrorKind, ExecuteRequest
from sandbox.worker import Outcome

SOURCE = "def f(): return 1"


def ended(body: bytes | None, compiled: bytes | None) -> Outcome:
    return Outcome(body, compiled, False, False, 0, BY_ITSELF, 0.0, 0.0, 0, 0.0)


class ScriptedPool:
    """Compiles when it is let, and ends a call's tool when it is let."""

    def __init__(self, can_compile: bool = True):
        self.operations: list[str] = []
        self.can_compile, self.compiles, self.ends = can_compile, asyncio.Event(), asyncio.Event()

    async def run(self, client, document, code, limits, max_reply_bytes, on_code=None) -> Outcome:
        self.operations.append("run" if on_code is None else "compile")
        assert json.loads(document)["compiles"] == (on_code is not None)
        compiled = None
        if on_code is not None:
            if self.can_compile:
                await self.compiles.wait()
                on_code(b"code")
                compiled = b"\x01code"
            await self.ends.wait()
        return ended(b'{"status":"ok","value":1,"state":null,"stdout":""}', compiled)


def ask(execution: Execution, client: str = "a") -> asyncio.Task:
    async def reply() -> dict:
        return json.loads(await execution.execute_call(client, ExecuteRequest(source=SOURCE, function="f")))

    return asyncio.get_running_loop().create_task(reply())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_of_several_compiles_and_the_others_run_while_its_tool_still_does():
    pool = ScriptedPool()
    execution = Execution(pool)
    first, *others = [ask(execution) for _ in range(4)]
    await settle()
    assert pool.operations == ["compile"]
    pool.compiles.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*others)
    assert not first.done()
    assert pool.operations == ["compile"] + ["run"] * 3
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
    assert pool.operations == ["compile"] * 2
    pool.compiles.set()
    pool.ends.set()
    await asyncio.gather(*asked)


@pytest.mark.parametrize("how", ["is cancelled", "cannot compile"])
async def test_where_the_first_does_not_compile_it_the_others_go_on_each_for_itself(how):
    pool = ScriptedPool(can_compile=how == "is cancelled")
    execution = Execution(pool)
    first, *others = [ask(execution) for _ in range(3)]
    await settle()
    assert pool.operations == ["compile"]
    if how == "is cancelled":
        first.cancel()
    pool.compiles.set()
    pool.ends.set()
    async with asyncio.timeout(5):
        replies = await asyncio.gather(*others)
    assert [reply["value"] for reply in replies] == [1, 1]
    assert not execution._compiling


async def test_a_source_that_does_not_compile_is_said_to_be_invalid_whatever_follows():
    class Pool(ScriptedPool):
        async def run(self, *_: object) -> Outcome:
            return ended(None, b'\x00{"kind":"invalid_source","message":"SyntaxError: \\ud800"}')

    reply = await ask(Execution(Pool()))
    assert reply["error"] == {"kind": "invalid_source", "message": "SyntaxError: \ud800"}


class LongReplies(ScriptedPool):
    """Every call's value has 1,000 bytes."""

    async def run(self, *_: object) -> Outcome:
        return ended(b'{"status":"ok","value":"%b","state":null,"stdout":""}' % (b"x" * 998), b"\x01code")


async def test_the_replies_of_a_batch_are_bounded_together() -> None:
    execution = Execution(LongReplies())  # type: ignore[arg-type]
    execution.max_batch_bytes = 5000
    call = ExecuteRequest(source=SOURCE, function="f")
    assert len(json.loads(await execution.execute_batch("a", [call] * 4))) == 4
    with pytest.raises(InvalidRequest, match="more than 5000 bytes together; send fewer calls at once") as found:
        await execution.execute_batch("a", [call] * 5)
    assert (found.value.status, found.value.code) == (413, "batch_too_large")
    assert ErrorKind.OUTPUT_LIMIT not in execution.metrics.calls  # no tool is blamed for it
