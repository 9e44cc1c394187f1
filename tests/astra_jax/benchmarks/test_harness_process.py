"""A harness's program: what it is given, and how it ends."""

from __future__ import annotations

import asyncio
import time

import psutil
import pytest

from astra_jax.benchmarks.harness_process import run_harness
from astra_jax.benchmarks.results import BenchmarkFailed


async def test_it_sees_none_of_our_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("ASTRA_SERVE_KEY", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    log = tmp_path / "log"
    await run_harness(["/bin/sh", "-c", "env; cat"], folder=tmp_path, log=log, variables={"ONE": "1"}, said="yes\n")
    printed = log.read_text()
    assert "ONE=1" in printed
    assert f"HOME={tmp_path}/home" in printed
    assert printed.endswith("yes\n")
    assert "secret" not in printed
    assert "http://proxy" not in printed


async def test_one_that_fails_is_told_by_its_last_line(tmp_path):
    with pytest.raises(BenchmarkFailed, match=r"sh -c to end well, found exit code 3: so it goes; see .*log"):
        await run_harness(
            ["/bin/sh", "-c", "echo first; echo so it goes >&2; exit 3"],
            folder=tmp_path,
            log=tmp_path / "log",
            variables={},
        )


async def test_cancelled_it_ends_with_all_that_it_started(tmp_path):
    started = tmp_path / "started"
    command = ["/bin/sh", "-c", f"sleep 300 & echo $! > {started}; wait"]
    running = asyncio.ensure_future(run_harness(command, folder=tmp_path, log=tmp_path / "log", variables={}))
    while not (started.exists() and started.read_text().strip()):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    child = int(started.read_text())
    deadline = time.monotonic() + 10
    while _is_alive(child) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert not _is_alive(child)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
