"""Large bodies: read in a process of their own, passed on as bytes, and bounded for a batch."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox import bodies, strict_json
from sandbox.bodies import BodyReader, encoded
from sandbox.execution import Execution, InvalidRequest
from sandbox.isolation import Tier
from sandbox.jail.zygote import BY_ITSELF
from sandbox.protocol import ErrorKind, ExecuteRequest, Limits
from sandbox.worker import Outcome
from tests.sandbox.processes import children

LARGE = [["ü", 1.5, {"a": None}]] * 5000
END = {"state": None, "stdout": "é"}


def written(value: object, **rest: Any) -> bytes:
    document = {"status": "ok", "value": value, **END, **rest}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.fixture
async def reader() -> AsyncIterator[BodyReader]:
    reader = BodyReader()
    yield reader
    await reader.close()


@pytest.fixture
def not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read in this process."""

    def refuse(*_: object) -> None:
        raise AssertionError("a large body was read where everybody waits")

    monkeypatch.setattr(strict_json, "parse", refuse)


async def test_a_large_reply_is_read_elsewhere_and_passed_on_as_it_is(reader: BodyReader, not_here: None) -> None:
    body = await reader.reply(written(LARGE))
    assert body.kind is None
    assert body.value == json.dumps(LARGE, ensure_ascii=False, separators=(",", ":")).encode()
    assert (body.state, body.stdout) == (b"null", '"é"'.encode())


async def test_a_large_request_is_read_elsewhere(reader: BodyReader, not_here: None) -> None:
    call = {"source": "def f(x):\n    return '\ud800'\n", "function": "f", "arguments": {"x": LARGE}, "seed": 7}
    read = await reader.call(json.dumps(call).encode())
    assert read.source == b"def f(x):\n    return '\xed\xa0\x80'\n"
    assert json.loads(read.arguments) == {"x": LARGE}
    assert (read.state, read.seed, read.limits) == (b"null", 7, Limits())
    first, second = await reader.batch(json.dumps([call, {**call, "state": {"n": 1}}]).encode())
    assert first == read
    assert second.state == b'{"n":1}'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (written(LARGE) + b" ", "it is not spelled as JSON is written here"),
        (written(LARGE)[:-1], "Expecting"),
        (written(LARGE, more=1), "it is neither a value nor an error"),
        (written([LARGE, {}]).replace(b"{}", b'{"a":1,"a":1}'), "two keys of an object are the same text: 'a'"),
    ],
)
async def test_a_large_reply_that_is_none_is_said_to_be_none(reader: BodyReader, value: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        await reader.reply(value)
    assert (await reader.reply(written(1))).value == b"1"


async def test_a_large_request_is_refused_in_the_words_of_a_small_one(reader: BodyReader) -> None:
    for padding in ("", "x" * bodies.INLINE_BYTES):
        with pytest.raises(ValueError, match=r"^seed: Input should be greater than or equal to 0$"):
            await reader.call(json.dumps({"source": padding, "function": "f", "seed": -1}).encode())
        with pytest.raises(ValueError, match=r"^request 1: function: Field required$"):
            await reader.batch(json.dumps([{"source": padding, "function": "f"}, {"source": ""}]).encode())
        with pytest.raises(ValueError, match=r"^the body is not JSON that is taken here: "):
            await reader.call(padding.encode() + b"[")


async def test_a_reading_process_that_dies_costs_its_body_and_is_replaced(reader: BodyReader) -> None:
    await reader.reply(written(LARGE))
    (process,) = [child for child in children(os.getpid()) if child == reader._middling._process.pid]  # type: ignore[union-attr]
    os.kill(process, signal.SIGKILL)
    with pytest.raises(OSError, match="the process that reads large bodies ended"):
        await reader.reply(written(LARGE))
    assert (await reader.reply(written(LARGE))).kind is None


async def test_a_reading_process_ends_after_a_giant_and_when_it_is_idle(
    reader: BodyReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children(os.getpid())
    await reader.reply(written("x" * (5 << 20)))
    assert children(os.getpid()) == before
    monkeypatch.setattr(bodies, "_IDLE_SECONDS", 0.0)
    await reader.reply(written(LARGE))
    async with asyncio.timeout(10):
        while children(os.getpid()) != before:
            await asyncio.sleep(0.01)


def test_a_document_has_its_raw_parts_as_they_are() -> None:
    document = {"a": "ü", "b": bodies.RawJSON('[1.50,"ü"]'.encode())}
    assert encoded(document) == '{"a":"\\u00fc","b":[1.50,"ü"]}'.encode()


class Pool:
    """Every call's value has 1,000 bytes."""

    tier = Tier.NAMESPACES

    async def run(self, *_: Any) -> Outcome:
        return Outcome(written("x" * 998), b"code", False, False, 0, BY_ITSELF, 0.0, 0.0, 0, 0.0)


async def test_the_replies_of_a_batch_are_bounded_together() -> None:
    execution = Execution(Pool())  # type: ignore[arg-type]
    execution.max_batch_bytes = 5000
    call = bodies.call_request(ExecuteRequest(source="def f(): return 1", function="f"))
    assert len(json.loads(await execution.execute_batch("a", [call] * 4))) == 4
    with pytest.raises(InvalidRequest, match="more than 5000 bytes together; send fewer calls at once") as found:
        await execution.execute_batch("a", [call] * 5)
    assert (found.value.status, found.value.code) == (413, "batch_too_large")
    assert ErrorKind.OUTPUT_LIMIT not in execution.metrics.calls  # no tool is blamed for it
    await execution.bodies.close()
