"""Freed memory goes back to the system: by one call, and around each long compilation."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from astra_jax import freed_memory
from tests.astra_jax.killed_process import ROOT

FREE_ALL_BUT_THE_LAST = """
import psutil
from astra_jax.freed_memory import give_back
def mib(): return psutil.Process().memory_info().rss / 2**20
held = [bytes(2000) for _ in range(40_000)]  # each an allocation of its own, none large enough for pages of its own
last = held.pop()
held.clear()
before = mib()
give_back()
print(before - mib())
"""


def run(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.skipif(freed_memory._glibc("malloc_trim") is None, reason="needs glibc")
def test_what_was_freed_below_what_is_held_goes_back():
    assert float(run(FREE_ALL_BUT_THE_LAST, dict(os.environ)).stdout) > 60  # of 80 MB


THREADS_THAT_ALLOCATE = """
import ctypes, threading
from astra_jax.freed_memory import share_arenas
share_arenas()
met = threading.Barrier(64)
def allocate():
    held = bytes(100_000)
    met.wait()
threads = [threading.Thread(target=allocate) for _ in range(64)]
for thread in threads: thread.start()
for thread in threads: thread.join()
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(freed_memory._glibc("malloc_stats") is None, reason="needs glibc")
def test_threads_of_a_command_share_two_arenas_a_core():
    variables = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    assert run(THREADS_THAT_ALLOCATE, variables).stderr.count("Arena ") == 2 * len(os.sched_getaffinity(0))


@pytest.fixture
def given_back(monkeypatch) -> list[None]:
    calls: list[None] = []
    monkeypatch.setattr(freed_memory, "give_back", lambda: calls.append(None))
    return calls


LOWERED, COMPILED = freed_memory._LONG_SECONDS


def test_memory_is_given_back_once_before_and_after_a_long_compilation(given_back):
    freed_memory.give_back_around_compiling()
    freed_memory.give_back_around_compiling()
    for event, seconds, count in ((LOWERED, 0.01, 0), (LOWERED, 0.02, 1), (COMPILED, 0.19, 1), (COMPILED, 9.0, 2)):
        jax.monitoring.record_event_duration_secs(event, seconds)
        assert len(given_back) == count
    jax.monitoring.record_event_duration_secs("/jax/core/compile/jaxpr_trace_duration", 9.0)
    assert len(given_back) == 2


@pytest.mark.parametrize("event", [LOWERED, COMPILED])
def test_jax_tells_of_it_by_this_name(given_back, monkeypatch, event):
    monkeypatch.setattr(freed_memory, "_LONG_SECONDS", {event: 0.0})
    freed_memory.give_back_around_compiling()
    step, x = jax.jit(lambda x: jnp.tanh(x) @ x), jnp.ones((3, 3))
    step(x)
    compiled = len(given_back)
    assert compiled >= 1
    step(x)
    assert len(given_back) == compiled
