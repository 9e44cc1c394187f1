"""From a request to a reply: the byte code that is kept, and the bounds of a batch."""

from __future__ import annotations

import asyncio
import json

import pytest

from sandbox import execution
from sandbox.errors import Refused
from sandbox.execution import Execution
from sandbox.jail.zygote import BY_ITSELF
from sandbox.protocol import ExecuteRequest
from sandbox.worker import Outcome

CALL = ExecuteRequest(source="def f(): return 1", function="f")


class ScriptedPool:
    """Ends each call with this body, and with this result of the compilation."""

    def __init__(self, body, compiled=b"\x01code"):
        self.body, self.compiled = body, compiled
        self.code: list[bytes] = []
        self.tool_runs = asyncio.Event()
        """If it is not set, a call whose process compiles does not end."""
        self.tool_runs.set()

    async def run(self, client, document, code, limits, most, on_code=None):
        assert json.loads(document)["compiles"] == (on_code is not None)
        self.code.append(code)
        await asyncio.sleep(0)
        compiled = None
        if on_code is not None:
            compiled = self.compiled
            on_code(compiled)
            await self.tool_runs.wait()
        return Outcome(self.body, compiled, False, False, 0, BY_ITSELF, 0.0, 0.0, 0, 0.0)


async def test_a_source_is_compiled_by_its_first_call_and_its_byte_code_is_kept():
    pool = ScriptedPool(b'{"status":"ok","value":1,"state":null,"stdout":""}')
    once = Execution(pool)
    for _ in range(2):
        assert json.loads(await once.execute_call("a", CALL))["value"] == 1
    assert pool.code == [b"def f(): return 1", b"code"]


async def test_calls_of_one_client_wait_for_the_first_that_compiles_and_not_for_its_end():
    pool = ScriptedPool(b'{"status":"ok","value":1,"state":null,"stdout":""}')
    pool.tool_runs.clear()
    execution = Execution(pool)
    first, *others, of_another_client = [
        asyncio.ensure_future(execution.execute_call(client, CALL)) for client in ("a", "a", "a", "b")
    ]
    await asyncio.wait_for(asyncio.gather(*others), 10)
    assert not first.done()
    pool.tool_runs.set()
    await asyncio.gather(first, of_another_client)
    source = b"def f(): return 1"
    assert pool.code == [source, source, b"code", b"code"]


async def test_calls_whose_first_does_not_compile_go_on_for_themselves():
    pool = ScriptedPool(None, b'\x00{"kind":"invalid_source","message":"SyntaxError"}')
    execution = Execution(pool)
    replies = await asyncio.gather(*(execution.execute_call("a", CALL) for _ in range(3)))
    assert [json.loads(reply)["error"]["kind"] for reply in replies] == ["invalid_source"] * 3


async def test_a_source_that_does_not_compile_is_invalid_also_without_a_result():
    pool = ScriptedPool(None, b'\x00{"kind":"invalid_source","message":"SyntaxError: \\ud800"}')
    reply = json.loads(await Execution(pool).execute_call("a", CALL))
    assert reply["error"] == {"kind": "invalid_source", "message": "SyntaxError: \ud800"}


async def test_the_replies_of_a_batch_are_bounded_together(monkeypatch):
    monkeypatch.setattr(execution, "MOST_BATCH_BYTES", 5000)
    pool = ScriptedPool(b'{"status":"ok","value":"%b","state":null,"stdout":""}' % (b"x" * 998))
    long = Execution(pool)
    assert len(json.loads(await long.execute_batch("a", [CALL] * 4))) == 4
    with pytest.raises(Refused, match="more than 5000 bytes together; send fewer calls at once") as found:
        await long.execute_batch("a", [CALL] * 5)
    assert (found.value.status, found.value.code) == (413, "batch_too_large")
    assert "output_limit" not in long.metrics.render({})  # no tool is blamed for it
