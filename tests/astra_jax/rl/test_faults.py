"""Whole RL runs on a sandbox that fails: within the deadline nothing changes, beyond it the run stops and resumes."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from astra_jax.testing import InProcessSandbox
from sandbox.client import AsyncSandboxClient
from tests.astra_jax.curves import curve, episodes
from tests.astra_jax.rl.configs import tiny_rl_config
from tests.astra_jax.rl.faulty_service import faulty_proxy, kill_and_start_again, start
from tests.sandbox.faulty_proxy import SHARES

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
