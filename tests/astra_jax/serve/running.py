"""A server in a thread of this process, so that a test can look at its decoder, and shares compiled programs."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn

from astra_jax.checkpoints.policy import Policy
from astra_jax.engine.sizes import Limits
from astra_jax.serve.policy import ServedPolicy
from astra_jax.serve.server import _compiled_decoder, http_server, listen
from astra_jax.serve.service import Service
from tests.astra_jax.engine.test_conformance import END_IDS, LIMITS


@dataclass(frozen=True)
class Running:
    """A server that is up."""

    url: str
    decoder: Any
    server: uvicorn.Server

    def client(self, **kwargs) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60, **kwargs)

    def end(self) -> None:
        """Stop the server as a signal does."""
        self.server.handle_exit(15, None)


def served(policy: Policy, limits: Limits = LIMITS, **changes) -> ServedPolicy:
    return replace(ServedPolicy(policy, ("tiny", "another/name"), None, limits, END_IDS, created=0), **changes)


@contextlib.contextmanager
def running(
    policy: ServedPolicy,
    *,
    default_max_tokens: int | None = None,
    key: str | None = None,
    decoder: Any = None,
    is_compiled: bool = False,
) -> Iterator[Running]:
    started: queue.Queue[Running | None] = queue.Queue()

    async def serve() -> None:
        with listen("127.0.0.1", 0) as listener:
            made = decoder or (await _compiled_decoder(policy) if is_compiled else policy.decoder())
            server = http_server(Service(policy, made, default_max_tokens), key)
            started.put(Running(f"http://127.0.0.1:{listener.getsockname()[1]}", made, server))
            await server.serve(sockets=[listener])
            await made.close()

    with ThreadPoolExecutor(1) as pool:
        served_all = pool.submit(lambda: asyncio.run(serve()))
        served_all.add_done_callback(lambda _: started.put(None))
        if (up := started.get()) is not None:
            try:
                yield up
            finally:
                up.server.should_exit = True
        served_all.result(60)
