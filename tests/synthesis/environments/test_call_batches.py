"""Calls that are asked for at one moment travel together, and in as many requests as the service can take."""

from __future__ import annotations

import asyncio

import pytest

from astra_jax.testing import InProcessSandbox
from sandbox.client import AsyncSandboxClient, ExecuteRequest, SandboxUnavailable
from synthesis.environments.proving.call_batches import MAX_CALLS, CallBatches


class Counting(AsyncSandboxClient):
    """Answers each call with the number in it, and takes no more at once than the service."""

    def __init__(self):
        self.sizes: list[int] = []

    async def execute_batch(self, requests):
        self.sizes.append(len(requests))
        if len(requests) > MAX_CALLS:
            raise SandboxUnavailable("a batch is a list of at most 1024 requests")
        sandbox = InProcessSandbox()
        return [await sandbox.execute("def f(n):\n    return n\n", "f", request.arguments) for request in requests]


def asked(first: int, count: int) -> list[ExecuteRequest]:
    return [ExecuteRequest(source="", function="f", arguments={"n": first + number}) for number in range(count)]


@pytest.mark.parametrize(
    ("counts", "sizes"), [((3, 2), [5]), ((700, 324), [1024]), ((700, 700), [1024, 376]), ((2100,), [1024, 1024, 52])]
)
async def test_each_gets_its_own_replies_in_order_however_many_are_asked_for(counts, sizes):
    client = Counting()
    starts = [sum(counts[:place]) for place in range(len(counts))]
    batches = CallBatches(client)
    replies = await asyncio.gather(
        *(batches.execute_batch(asked(first, count)) for first, count in zip(starts, counts, strict=True))
    )
    for first, count, own in zip(starts, counts, replies, strict=True):
        assert [reply.value for reply in own] == list(range(first, first + count))
    assert client.sizes == sizes


async def test_a_batch_of_more_than_a_mebibyte_is_sent_without_a_warning(sandbox_url):
    source = f"def one() -> int:\n    return 1\n# {'x' * 2**18}\n"
    async with AsyncSandboxClient(sandbox_url) as client:
        replies = await client.execute_batch([ExecuteRequest(source=source, function="one", arguments={})] * 5)
    assert [reply.value for reply in replies] == [1] * 5
