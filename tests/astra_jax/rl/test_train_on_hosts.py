"""RL on two hosts: the episodes and losses of one process; and when one host fails or is killed, the other ends."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.policy import load_policy, save_policy
from astra_jax.config import load_config
from astra_jax.episodes.log import read_episodes
from astra_jax.metrics_file import read_metrics
from astra_jax.rehearse.bucket import served_bucket
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.record_io import write_records
from synthesis.run.places import fetch, stage_of
from tests.astra_jax.cli.test_signals import StuckProxy, served
from tests.astra_jax.curves import without_times
from tests.astra_jax.episodes.run_rollout import environments
from tests.astra_jax.killed_process import wait_for_steps
from tests.astra_jax.two_hosts import finish, two_hosts

CONFIG = Path(__file__).parents[3] / "configs" / "tiny_rl.toml"


@pytest.fixture(scope="module")
def overrides(taught, tmp_path_factory) -> list[str]:
    """Overrides of the tiny config: four groups a rollout, on a mesh of eight devices."""
    folder = tmp_path_factory.mktemp("rl")
    save_policy(taught, folder / "init")
    write_records(folder / "environments", environments(), kind="environment")
    values = {
        "init": folder / "init",
        "environments": folder / "environments",
        "seed": 1,
        "steps": 2,
        "group_size": 4,
        "groups_per_step": 2,
        "groups_per_rollout": 4,
        "rollout.max_prompt_tokens": 256,
        "rollout.max_turns": 6,
        "optimizer.learning_rate": 1e-4,
        "length_bucket_tokens": 384,
        "episodes_per_row": 2,
        "accumulation": 2,
        "mesh.fsdp": 2,
        "mesh.context": 2,
        "mesh.tensor": 2,
    }
    return [f"{name}={value}" for name, value in values.items()]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[str]:
    with local_sandbox(workers=1) as url:
        yield url


def on_two_hosts(
    overrides: list[str], out: Path | str, *options: str, variables: Sequence[Mapping[str, str]] = ({}, {})
) -> contextlib.AbstractContextManager[list[subprocess.Popen[str]]]:
    """`astra rl` in two processes, each with half of the devices."""
    command = ["-m", "astra_jax.cli", "rl", str(CONFIG), f"out={out}", *overrides, *options]
    return two_hosts(command, devices_per_host=4, variables=variables)


@pytest.fixture(scope="module")
def on_shared_disk(overrides, sandbox, tmp_path_factory) -> Path:
    """The folder of a run on two hosts."""
    out = tmp_path_factory.mktemp("shared") / "two"
    with on_two_hosts(overrides, out, "--sandbox", sandbox) as processes:
        finish(processes)
    return out


@pytest.mark.slow
async def test_two_hosts_have_the_episodes_and_losses_of_one_process(overrides, on_shared_disk, sandbox, tmp_path):
    config = load_config(RLConfig, CONFIG, [*overrides, f"out={tmp_path / 'one'}"])
    async with AsyncSandboxClient(sandbox) as client:
        await run_rl(config, client)
    runs = (tmp_path / "one", on_shared_disk, on_shared_disk / "hosts" / "1")
    expected, *found = (read_metrics(run / "metrics.jsonl") for run in runs)
    assert [line["step"] for line in expected] == [0, 1]
    for lines in found:
        for line, of_one in zip(lines, expected, strict=True):
            timeless, expected_line = without_times(line), without_times(of_one)
            assert timeless.keys() == expected_line.keys()
            for name, value in timeless.items():
                np.testing.assert_allclose(value, expected_line[name], rtol=1e-4, atol=1e-6, err_msg=name)
    logs = [sorted(run.glob("episodes/*")) for run in runs[:2]]
    assert [path.name for path in logs[0]] == ["step_000000.jsonl", "step_000001.jsonl"]
    assert [path.name for path in logs[1]] == [path.name for path in logs[0]]
    one, two = (
        [[token.id for episode in read_episodes(log) for token in episode.tokens] for log in of_run] for of_run in logs
    )
    assert one == two


class SlowProxy(StuckProxy):
    """Hands each call on to a sandbox after so many seconds."""

    seconds = 0.5

    def do_POST(self) -> None:
        self.calls.release()
        time.sleep(self.seconds)
        super().do_POST()


@pytest.mark.slow
@pytest.mark.parametrize("tool_seconds", [0.5, 30.0], ids=["between two calls", "while both wait for tools"])
def test_sigterm_at_one_host_ends_both_inside_a_rollout(overrides, sandbox, tmp_path, monkeypatch, tool_seconds):
    metrics = tmp_path / "run" / "metrics.jsonl"
    monkeypatch.setattr(StuckProxy, "url", sandbox)
    monkeypatch.setattr(StuckProxy, "answers", threading.Semaphore(100_000))
    with (
        served(SlowProxy) as url,
        on_two_hosts(overrides, tmp_path / "run", "steps=1000", "--sandbox", url) as processes,
    ):
        wait_for_steps(metrics, 1, processes, timeout_seconds=900)
        monkeypatch.setattr(SlowProxy, "seconds", tool_seconds)
        monkeypatch.setattr(SlowProxy, "calls", threading.Semaphore(0))
        assert SlowProxy.calls.acquire(timeout=600)  # the next rollout has begun
        processes[1].send_signal(signal.SIGTERM)
        asked = time.monotonic()
        errors = [process.communicate(timeout=120)[1] for process in processes]
        seconds = time.monotonic() - asked
    assert [process.returncode for process in processes] == [0, 0], errors
    for error in errors:
        assert "rl: saved after step 1 on SIGTERM; resumed, it goes on from there" in error
    assert len(read_metrics(metrics)) == 1
    assert (tmp_path / "run" / "checkpoints" / "00000001").is_dir()
    assert seconds < 10, seconds


@pytest.mark.slow
def test_two_hosts_with_only_a_bucket_have_the_losses_of_a_shared_disk(
    overrides, on_shared_disk, sandbox, tmp_path, monkeypatch
):
    """SIGTERM ends both hosts in the second step; two fresh machines go on, bit for bit."""
    with served_bucket() as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
        for machines in ("first", "second"):
            stages = [tmp_path / f"{machines} {host}" for host in range(2)]
            variables = [{"ASTRA_STAGE": str(stage)} for stage in stages]
            with on_two_hosts(overrides, "gs://bucket/run", "--sandbox", sandbox, variables=variables) as processes:
                if machines == "first":
                    wait_for_steps(stages[0] / "gs/bucket/run/metrics.jsonl", 1, processes)
                    processes[1].send_signal(signal.SIGTERM)
                errors = finish(processes)
            ends = ["rl: saved after step 1 on SIGTERM" in error for error in errors]
            assert ends == [machines == "first"] * 2, errors
        monkeypatch.setenv("ASTRA_STAGE", str(tmp_path / "reader"))
        there = stage_of(Path("gs://bucket/run"))
        fetch(there)
        one, other = load_policy(there / "policy"), load_policy(on_shared_disk / "policy")
    for metrics in ("metrics.jsonl", "hosts/1/metrics.jsonl"):
        of_both = [list(map(without_times, read_metrics(run / metrics))) for run in (there, on_shared_disk)]
        assert [line["step"] for line in of_both[0]] == [0, 1]
        assert of_both[0] == of_both[1]
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
