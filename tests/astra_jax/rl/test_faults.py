"""Whole RL runs on a sandbox that fails: within the deadline nothing changes, beyond it the run stops and resumes."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import sandbox.client
from astra_jax.cli.command import main
from astra_jax.metrics_file import read_metrics
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from astra_jax.testing import InProcessSandbox
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from tests.astra_jax.curves import curve, episodes
from tests.astra_jax.rl.configs import tiny_rl_config
from tests.astra_jax.rl.faulty_service import faulty_proxy, kill_and_start_again, start
from tests.sandbox.faulty_proxy import SHARES
from tests.sandbox.processes import service_process

STEPS = 4


@pytest.fixture(scope="module")
def config(taught, tmp_path_factory) -> RLConfig:
    return tiny_rl_config(
        tmp_path_factory.mktemp("faults"),
        taught,
        steps=STEPS,
        groups_per_rollout=2,
        checkpoint_every_steps=1,
        log_episodes_every_steps=1,
    )


@pytest.fixture(scope="module")
def expected(config) -> tuple[list[dict], dict[str, str]]:
    asyncio.run(run_rl(config, InProcessSandbox()))
    return curve(config.out), episodes(config.out)


@pytest.mark.slow
async def test_a_run_whose_sandbox_loses_replies_and_is_killed_once_learns_what_it_would_have(
    config, expected, tmp_path
):
    run = config.model_copy(update={"out": tmp_path / "run"})
    async with AsyncExitStack() as services:
        proxy = faulty_proxy(await start(services), SHARES, seed=2)
        async with proxy as url, AsyncSandboxClient(url, grace_seconds=1.0) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_and_start_again(proxy, services, after_replies=10))
            figures = await run_rl(run, client)
    assert (curve(run.out), episodes(run.out)) == expected
    assert proxy.lost["killed"] == 1
    lost = {name: count for name, count in figures.items() if name.startswith("service_errors_")}
    assert lost == {f"service_errors_{kind}": count for kind, count in client.service_errors.items()}
    assert lost["service_errors_connection_lost"] > 0
    logged = [json.loads(line) for text in expected[1].values() for line in text.splitlines()]
    assert all(episode["stop_reason"] for episode in logged)


def kill_after_a_step(url: str, metrics: Path) -> None:
    end = time.monotonic() + 300
    while len(read_metrics(metrics)) < 1 and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(service_process(url), signal.SIGKILL)


@pytest.mark.slow
def test_an_outage_beyond_the_deadline_ends_a_run_in_one_line_and_it_resumes_to_the_same_curve(
    config, expected, tmp_path, monkeypatch, capsys
):
    short = functools.partial(AsyncSandboxClient, deadline_seconds=10.0)
    monkeypatch.setattr(sandbox.client, "AsyncSandboxClient", short)
    out = tmp_path / "run"
    arguments = ["rl", str(written(config, tmp_path)), f"out={out}", "--json", "--sandbox"]
    with local_sandbox(workers=1) as url:
        killer = threading.Thread(target=kill_after_a_step, args=(url, out / "metrics.jsonl"))
        killer.start()
        assert main([*arguments, url]) == 1
        killer.join()
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("astra: ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"astra: SandboxUnavailable: no answer from the sandbox at {url} in 10 s: ")
    assert 1 <= len(read_metrics(out / "metrics.jsonl")) < STEPS
    with local_sandbox(workers=1) as url:
        assert main([*arguments, url]) == 0
    assert (curve(out), episodes(out)) == expected


def written(config: RLConfig, folder: Path) -> Path:
    """The config as a file that the command reads."""
    values = config.model_dump(mode="json", exclude_unset=True)
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if name not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    (folder / "rl.toml").write_text("\n".join(lines))
    return folder / "rl.toml"
