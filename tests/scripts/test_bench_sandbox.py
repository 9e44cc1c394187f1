"""Each call of the sandbox's benchmark is answered by each service that it compares, with the tool's own value."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from scripts.bench_sandbox import Connection, requests, service


@pytest.mark.parametrize("kind", ["ours", "python", "bwrap"])
async def test_a_service_of_the_benchmark_answers_its_requests(kind: str) -> None:
    if kind == "bwrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap, one of the baselines, is not on the PATH")
    with service(kind, 1) as (port, _):
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        reply = json.loads(await connection.ask(next(requests(None))))
    assert reply["status"] == "ok"
    assert reply["value"]["count"] > 0
