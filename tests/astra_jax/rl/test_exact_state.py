"""A run that ends in the middle of something goes on to the same bytes: on a signal in a rollout, and on kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from hashlib import sha256
from pathlib import Path

import pytest

from astra_jax.metrics_file import read_metrics
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from astra_jax.testing import InProcessSandbox
from astra_jax.training.termination import Terminated
from sandbox.local import local_sandbox
from tests.astra_jax.curves import curve, episodes, weights
from tests.astra_jax.rl.kills import config_with_surplus, measure

STEPS = 4


@pytest.fixture(scope="module")
def undisturbed(taught, tmp_path_factory) -> tuple[RLConfig, dict[int, int]]:
    """A run of three groups a rollout and two an update whose first two steps leave groups that wait.

    And how many calls it had sent to its sandbox after so many steps, where the next one sends some. Which seed leaves
    such groups hangs on the last bits of a machine's sums.
    """
    for seed in range(1, 7):
        config = config_with_surplus(tmp_path_factory.mktemp("exact"), taught, STEPS).model_copy(update={"seed": seed})
        sandbox = CountingSandbox(config)
        asyncio.run(run_rl(config, sandbox))
        if all(line["groups_waiting"] > 0 for line in read_metrics(config.out / "metrics.jsonl")[:2]):
            return config, sandbox.num_calls_after
    raise AssertionError("expected a seed with groups that wait, found none of six")


class CountingSandbox(InProcessSandbox):
    def __init__(self, config: RLConfig):
        super().__init__()
        self._metrics = config.out / "metrics.jsonl"
        self.num_calls_after: dict[int, int] = {}

    async def execute(self, *arguments, **options):
        self.num_calls_after.setdefault(len(read_metrics(self._metrics)), self.num_calls)
        return await super().execute(*arguments, **options)


class StuckSandbox(InProcessSandbox):
    """Answers so many calls; at the next a signal comes, and nothing is answered any more."""

    def __init__(self, out: Path, answers: int, signum: int):
        super().__init__()
        self._out, self._answers, self._signum = out, answers, signum
        self.num_cancelled = 0
        self.checkpoint_before: dict[str, tuple[int, str]] = {}
        """The newest checkpoint's content when the signal came."""

    async def execute(self, *arguments, **options):
        if self.num_calls < self._answers:
            return await super().execute(*arguments, **options)
        if self.num_calls == self._answers:
            self.num_calls += 1
            await self._whole_checkpoint()
            os.kill(os.getpid(), self._signum)
        try:
            await asyncio.Event().wait()
        finally:
            self.num_cancelled += 1

    async def _whole_checkpoint(self) -> None:
        for checkpoint in sorted(self._out.glob("checkpoints/*"))[-1:]:
            while not (checkpoint / "train.whole.json").exists():  # it is written in the background
                await asyncio.sleep(0.01)
            self.checkpoint_before = contents(checkpoint)


def same_bytes(run: RLConfig, expected: RLConfig) -> None:
    for found in (curve, episodes, lambda out: weights(out / "policy")):
        assert found(run.out) == found(expected.out)


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "steps", "changes"),
    [
        (signal.SIGTERM, 1, {"optimizer_waits_on_host": True}),
        (signal.SIGINT, 1, {"checkpoint_every_steps": 1}),
        (signal.SIGTERM, 0, {}),
    ],
    ids=["moments wait on the host", "the step is saved already", "no step has ended"],
)
async def test_a_signal_inside_a_rollout_ends_the_run_before_the_step_and_it_goes_on_to_the_same_bytes(
    undisturbed, tmp_path, capsys, signum, steps, changes
):
    config, num_calls = undisturbed
    run = config.model_copy(update={"out": tmp_path / "run", **changes})
    sandbox = StuckSandbox(run.out, num_calls[steps] + 2, signum)
    tasks = asyncio.all_tasks()
    with pytest.raises(Terminated) as ended:
        async with asyncio.timeout(60) as clock:
            await run_rl(run, sandbox)
    assert not clock.expired()
    name, code = {signal.SIGINT: ("Ctrl-C", 130), signal.SIGTERM: ("SIGTERM", 0)}[signum]
    assert (ended.value.code, ended.value.signum) == (code, signum)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"rl: saved after step {steps} on {name}; resumed, it goes on from there"
    assert sandbox.num_cancelled > 0
    assert asyncio.all_tasks() == tasks
    assert len(read_metrics(run.out / "metrics.jsonl")) == steps
    checkpoint = run.out / "checkpoints" / f"{steps:08d}"
    assert [path.name for path in sorted(checkpoint.parent.iterdir())][-1] == checkpoint.name
    position = json.loads((checkpoint / "train.json").read_text())["data_position"]
    assert bool(position.get("waiting")) == (steps > 0)
    if "checkpoint_every_steps" in changes:
        assert contents(checkpoint) == sandbox.checkpoint_before, "it is not written twice"
    else:
        assert sandbox.checkpoint_before == {}
    await run_rl(run, InProcessSandbox())
    same_bytes(run, config)


@pytest.mark.slow
def test_runs_killed_at_random_moments_go_on_to_the_same_bytes(taught, tmp_path):
    """Weights, metrics and episodes; `scripts/bench_kills.py` kills twenty, of thirty steps."""
    config = config_with_surplus(tmp_path, taught, steps=8)
    with local_sandbox(workers=1) as url:
        found = measure(config, url, kills=5, seed=1)
    assert found["bit_identical"] == found["kills"] == 5
    assert found["steps_with_waiting_groups"] > 0
