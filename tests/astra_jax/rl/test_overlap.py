"""Rollouts that go on while the learner learns: versions per token, what may be stale, and how such a run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.checkpoints.policy import load_policy
from astra_jax.config import ConfigError, parse_config
from astra_jax.mesh.layouts import copied_for_decoding
from astra_jax.metrics_file import read_metrics
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.rl import stage, train
from astra_jax.rl.config import RLConfig
from astra_jax.rl.overlap import Overlap
from astra_jax.rl.rollouts import Filling, Rollouts, oldest_version
from astra_jax.rl.stage import checked_parts, run_rl
from astra_jax.testing import InProcessSandbox
from astra_jax.training.termination import Terminated
from sandbox.client import SandboxUnavailable
from sandbox.local import local_sandbox
from tests.astra_jax.killed_process import kill_after_steps
from tests.astra_jax.rl.configs import tiny_rl_config

STEPS = 3
OVERLAP = {"overlap_rollouts": True, "importance_cap": 2.0}


@pytest.fixture(scope="module")
def config(taught, tmp_path_factory) -> RLConfig:
    config = tiny_rl_config(
        tmp_path_factory.mktemp("overlap"),
        taught,
        steps=STEPS,
        checkpoint_every_steps=1,
        optimizer={"learning_rate": 1e-3},
        min_reward_std=0.0,
    )
    rollout = config.rollout.model_dump() | {"reproducible": False, "temperature": 1.2}
    return RLConfig.model_validate(config.model_dump() | OVERLAP | {"rollout": rollout})


# --- without a model ---


class FakeRollouts:
    """Fills a batch when it is told to."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.begun: list[int] = []
        self.may_end = asyncio.Event()
        self.error: Exception | None = None
        self.num_cancelled = 0

    def begin(self, step: int) -> Filling:
        self.begun.append(step)
        return Filling(step, None, None, 0.0)  # type: ignore[arg-type]

    async def fill(self, filling: Filling) -> None:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        filling.ended_seconds = filling.started_seconds

    async def update_weights(self, params: Any, version: int) -> None:
        self.versions.append(version)

    def take(self, filling: Filling) -> Any:
        return [filling.step], []


def an_update() -> Any:
    return {}, (), {}


async def test_a_batch_is_begun_with_the_update_before_it_and_none_after_the_last():
    rollouts = FakeRollouts()
    rollouts.may_end.set()
    async with Overlap(rollouts, num_steps=7) as overlap:  # type: ignore[arg-type]
        for step in (5, 6):
            assert await overlap.batch({}, step=step) == ([step], [])
            assert await overlap.while_rolling_out(an_update, step=step) == an_update()
    assert rollouts.begun == [5, 6]
    assert rollouts.versions == [5, 6]
    assert rollouts.num_cancelled == 0


async def test_what_fails_while_an_update_is_made_is_said_by_the_next_batch_in_its_own_words():
    rollouts = FakeRollouts()
    rollouts.may_end.set()
    async with Overlap(rollouts, num_steps=7) as overlap:  # type: ignore[arg-type]
        await overlap.batch({}, step=0)
        rollouts.error = SandboxUnavailable("gone")
        assert await overlap.while_rolling_out(an_update, step=0) == an_update()
        with pytest.raises(SandboxUnavailable, match="gone"):
            await overlap.batch({}, step=1)


async def test_an_update_that_fails_gives_up_the_batch_on_its_way():
    rollouts, tasks = FakeRollouts(), asyncio.all_tasks()

    def fails() -> Any:
        raise MemoryError("no room")

    async def run() -> None:
        async with Overlap(rollouts, num_steps=7) as overlap:  # type: ignore[arg-type]
            rollouts.may_end.set()
            await overlap.batch({}, step=0)
            rollouts.may_end.clear()
            await overlap.while_rolling_out(fails, step=0)

    with pytest.raises(MemoryError, match="no room"):
        await run()
    assert rollouts.num_cancelled == 1
    assert asyncio.all_tasks() == tasks


async def test_who_gives_up_waiting_for_a_batch_gives_it_up():
    rollouts = FakeRollouts()
    async with Overlap(rollouts, num_steps=7) as overlap:  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(overlap.batch({}, step=0))
        while not rollouts.begun:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert rollouts.num_cancelled == 1


def test_what_is_decoded_with_outlives_what_an_update_gives_away(untrained):
    for dtype in ("float32", "bfloat16"):
        model_config = untrained.model_config.model_copy(update={"dtype": dtype})
        params = jax.tree.map(jnp.copy, untrained.params)
        copies = copied_for_decoding(model_config, None, params)
        pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(params)}
        assert pointers.isdisjoint(leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(copies))
        for leaf in jax.tree.leaves(params):
            leaf.delete()
        assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree.leaves(copies))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"importance_cap": None}, "expected importance_cap beside overlap_rollouts, found none"),
        ({"rollout.reproducible": True}, "expected rollout.reproducible = false beside overlap_rollouts, found true"),
        ({"optimizer_waits_on_host": True}, "expected optimizer_waits_on_host = false beside"),
        ({"mesh": {"fsdp": 2}}, r"expected no \[mesh\] beside overlap_rollouts, found one"),
        ({"max_staleness": 0}, "expected max_staleness of at least 1 beside overlap_rollouts, found 0"),
        ({"max_staleness": 0, "stale_groups": "pace"}, "expected max_staleness of at least 1"),
    ],
)
def test_overlapping_where_it_cannot_hold_is_refused_in_one_line(config, changes, said):
    values = config.model_dump() | {name: value for name, value in changes.items() if "." not in name}
    if "rollout.reproducible" in changes:
        values["rollout"] = values["rollout"] | {"reproducible": True}
    with pytest.raises(ConfigError, match=rf"^[^\n]*{said}[^\n]*$"):
        parse_config(RLConfig, values, where="rl.toml")
    assert parse_config(RLConfig, values | {"overlap_rollouts": False}, where="rl.toml")


def test_a_mesh_that_no_key_asked_for_is_refused_in_one_line(config, monkeypatch):
    """As on TPU, where the first device has one."""
    monkeypatch.setattr(stage, "training_mesh", lambda _: make_mesh(MeshConfig(), jax.devices()[:1]))
    with pytest.raises(ConfigError, match=r"^expected one device without a mesh beside overlap_rollouts[^\n]*$"):
        checked_parts(config)


# --- whole runs ---


class HeldSandbox(InProcessSandbox):
    """While `is_held`, whoever calls a tool waits for it, and `is_called` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held, self.is_called = False, threading.Event()

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        while self.is_held:
            self.is_called.set()
            await asyncio.sleep(0.005)
        return await super().execute(*arguments, **options)


async def test_tokens_of_two_versions_in_one_episode_have_the_log_probs_of_their_own_weights(
    config, taught, tmp_path, monkeypatch
):
    """Each update waits until an episode of the next batch calls a tool, and the tool waits for new weights."""
    run, sandbox = config.model_copy(update={"out": tmp_path / "run"}), HeldSandbox()
    weights: dict[int, Any] = {}
    learnt: list[tuple[Any, Any]] = []
    rl_updates, update_weights, make_rl_batch = train.rl_updates, Rollouts.update_weights, train.make_rl_batch

    def slow(run_config, parts, state, batch):
        if state.step + 1 < STEPS:
            sandbox.is_held = True
            assert sandbox.is_called.wait(120)
        return rl_updates(run_config, parts, state, batch)

    async def noted(rollouts, params, version):
        weights[version] = jax.tree.map(np.array, params)
        await update_weights(rollouts, params, version)
        sandbox.is_held = False
        sandbox.is_called.clear()

    def made(groups, **options):
        learnt.append((groups, make_rl_batch(groups, **options)))
        return learnt[-1][1]

    monkeypatch.setattr(train, "rl_updates", slow)
    monkeypatch.setattr(Rollouts, "update_weights", noted)
    monkeypatch.setattr(train, "make_rl_batch", made)
    tasks = asyncio.all_tasks()
    await run_rl(run, sandbox)
    assert asyncio.all_tasks() == tasks
    assert len(learnt) == STEPS
    mixed, apart = 0, []
    for step, (groups, batch) in enumerate(learnt):
        versions_BT = np.full(batch.targets_BT.shape, -1)
        episodes = [episode for group in groups for episode in group.group]
        for row, episode in enumerate(episodes):
            ledger = episode.ledger
            versions_BT[row, : len(ledger) - 1] = ledger.policy_versions[1:]
            sampled = [version for version in ledger.policy_versions if version >= 0]
            assert sampled == sorted(sampled)
            mixed += len(set(sampled)) > 1
        for group in groups:
            assert group.policy_version == oldest_version(group.group) >= step - 1
        sampled_BT = np.asarray(batch.sampled_logprobs_BT)
        for version in set(versions_BT.flat) - {-1}:
            learner_BT = np.asarray(
                train.policy_logprobs(
                    weights[version], batch, model_config=taught.model_config, objective=train.objective_of(run)
                )
            )
            its = versions_BT == version
            np.testing.assert_allclose(learner_BT[its], sampled_BT[its], rtol=0, atol=2e-5)
            if (others := (versions_BT >= 0) & ~its).any():
                apart.append(np.abs(learner_BT - sampled_BT)[others].max())
    assert mixed >= STEPS - 1
    assert min(apart) > 1e-3, "others' log-probs are those of other weights"
    lines = read_metrics(run.out / "metrics.jsonl")
    assert [line["group_age_max"] for line in lines] == [0, 1, 1]
    assert [line["overlapped_seconds"] > 0 for line in lines] == [False, True, True]


class DiesLater(InProcessSandbox):
    """Answers so many calls, then no more."""

    def __init__(self, answers: int):
        super().__init__()
        self._answers = answers

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        if self.num_calls >= self._answers:
            raise SandboxUnavailable("gone")
        return await super().execute(*arguments, **options)


async def test_a_sandbox_that_goes_while_an_update_is_made_ends_the_run_after_that_step_and_it_resumes(
    config, tmp_path, monkeypatch
):
    run, sandbox = config.model_copy(update={"out": tmp_path / "run"}), DiesLater(10**9)
    rl_updates = train.rl_updates

    def dying(*arguments):
        sandbox._answers = 0
        return rl_updates(*arguments)

    monkeypatch.setattr(train, "rl_updates", dying)
    tasks = asyncio.all_tasks()
    with pytest.raises(SandboxUnavailable, match=r"^gone$"):
        await run_rl(run, sandbox)
    assert asyncio.all_tasks() == tasks
    assert len(read_metrics(run.out / "metrics.jsonl")) == 1, "its step has ended"
    monkeypatch.setattr(train, "rl_updates", rl_updates)
    figures = await run_rl(run, InProcessSandbox())
    assert figures["groups_learnt"] == STEPS
    assert [line["step"] for line in read_metrics(run.out / "metrics.jsonl")] == list(range(STEPS))


class StuckSandbox(InProcessSandbox):
    """Stops answering once it `is_stuck`; at the first call after that a signal may come."""

    def __init__(self, signum: int | None):
        super().__init__()
        self.is_stuck, self._signum, self.num_cancelled = False, signum, 0

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        if not self.is_stuck:
            return await super().execute(*arguments, **options)
        if self._signum is not None:
            signum, self._signum = self._signum, None
            os.kill(os.getpid(), signum)
        try:
            await asyncio.Event().wait()
        finally:
            self.num_cancelled += 1


@pytest.mark.slow
@pytest.mark.parametrize("where", ["rollout", "update"])
async def test_a_signal_ends_the_run_within_a_rollout_or_an_update_and_it_resumes(
    config, tmp_path, monkeypatch, capsys, where
):
    """No tool answers any more from the second update on; the signal comes from a call, or from within the update."""
    run = config.model_copy(update={"out": tmp_path / "run", "checkpoint_every_steps": 100})
    sandbox, rl_updates = StuckSandbox(signal.SIGTERM if where == "rollout" else None), train.rl_updates

    def stuck(run_config, parts, state, batch):
        if state.step == 1:
            sandbox.is_stuck = True
            if where == "update":
                os.kill(os.getpid(), signal.SIGTERM)
        return rl_updates(run_config, parts, state, batch)

    monkeypatch.setattr(train, "rl_updates", stuck)
    tasks = asyncio.all_tasks()
    with pytest.raises(Terminated) as ended:
        async with asyncio.timeout(120):
            await run_rl(run, sandbox)
    assert ended.value.code == 0
    assert "rl: saved after step 2 on SIGTERM; resumed, it goes on from there" in capsys.readouterr().err
    assert asyncio.all_tasks() == tasks
    assert sandbox.num_cancelled > 0 or where == "update"
    monkeypatch.setattr(train, "rl_updates", rl_updates)
    await run_rl(run, InProcessSandbox())
    assert [line["step"] for line in read_metrics(run.out / "metrics.jsonl")] == list(range(STEPS))


@pytest.mark.slow
async def test_a_run_that_overlaps_and_is_killed_resumes_and_counts_every_group_once(config, taught, tmp_path):
    """Three groups a rollout, so that some wait; what was on its way is rolled out again."""
    changes = {"groups_per_rollout": 3, "groups_per_step": 2, "steps": 5, "out": tmp_path / "run"}
    run = config.model_copy(update=changes)
    with local_sandbox(workers=1) as url:
        kill_after_steps(
            "tests.astra_jax.rl.run_rl", [run.model_dump_json(), url], metrics=run.out / "metrics.jsonl", steps=2
        )
    figures = await run_rl(run, InProcessSandbox())
    lines = read_metrics(run.out / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(5))
    for line in lines:
        causes = ("valid", "degenerate", "failed", "cancelled")
        assert line["groups_submitted"] == sum(line[f"groups_{cause}"] for cause in causes)
        assert line["groups_valid"] == line["groups_learnt"] + line["groups_stale"] + line["groups_waiting"]
        assert line["group_age_max"] <= run.max_staleness
    assert figures["groups_learnt"] == 10
    assert load_policy(run.out / "policy").params
