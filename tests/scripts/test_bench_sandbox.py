"""What the sandbox's benchmark asks for is answered, and with the tool's own value."""

from __future__ import annotations

import asyncio
import json

from sandbox.local import local_sandbox
from scripts.bench_sandbox import Connection, requests


async def test_a_request_of_the_benchmark_is_one_that_a_service_answers() -> None:
    with local_sandbox(workers=1) as url:
        port = int(url.rpartition(":")[2])
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        reply = json.loads(await connection.ask(next(requests(None))))
    assert reply["kind"] == "ok" and reply["value"]["count"] > 0
