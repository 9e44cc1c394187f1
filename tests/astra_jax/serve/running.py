"""A server in a thread of this process, so that a test can look at its decoder, and shares what is compiled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn

from astra_jax.checkpoints.policy import Policy
from astra_jax.engine.interface import Decoder
from astra_jax.engine.sizes import Limits
from astra_jax.serve.policy import ServedPolicy
from astra_jax.serve.server import _compiled_decoder, http_server, listen
from astra_jax.serve.service import Service
from tests.astra_jax.engine.test_conformance import END_IDS, LIMITS

SAMPLING_FAULTS: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, "hot", True, 100.5, 1e308, 10**400),
    "top_p": (0, 1.5, 1e-40, 1e-320),
    "top_k": (-2, 2**31, 10**30),
    "min_p": (0.1, 1e308),
    "presence_penalty": (1.5,),
    "repetition_penalty": (0, 1.1),
    "min_tokens": (5,),
    "logit_bias": ({"5": 1},),
    "seed": ("x", 2**63, -(2**63) - 1),
    "n": (0, True, 10**30),
    "max_tokens": (0,),
}
"""Field to values that no request for a message may have."""


@dataclass(frozen=True)
class Running:
    """A server that is up."""

    url: str
    decoder: Decoder
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
    decoder: Decoder | None = None,
    is_compiled: bool = False,
) -> Iterator[Running]:
    up: list[Running] = []
    is_up = threading.Event()
    failures: list[BaseException] = []

    async def serve(listener: socket.socket) -> None:
        made = decoder or (await _compiled_decoder(policy) if is_compiled else policy.decoder())
        server = http_server(Service(policy, made, default_max_tokens), key)
        up.append(Running(f"http://127.0.0.1:{listener.getsockname()[1]}", made, server))
        is_up.set()
        await server.serve(sockets=[listener])
        await made.close()

    def run() -> None:
        try:
            with listen("127.0.0.1", 0) as listener:
                asyncio.run(serve(listener))
        except BaseException as error:  # noqa: BLE001 - the test is told
            failures.append(error)
            is_up.set()

    thread = threading.Thread(target=run)
    thread.start()
    is_up.wait()
    try:
        if not failures:
            yield up[0]
    finally:
        if up:
            up[0].server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()
    assert failures == []
