"""Rollouts that go on while the learner learns: versions per token, what may be stale, and how such a run ends."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.checkpoints.policy import Policy, load_policy
from astra_jax.config import ConfigError, parse_config
from astra_jax.mesh.layouts import copied_for_decoding
from astra_jax.metrics_file import read_metrics
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.rl import rollouts as rollouts_module
from astra_jax.rl import stage, train
from astra_jax.rl.batch import make_rl_batch
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
def config(untrained, tmp_path_factory) -> RLConfig:
    return overlapping(tmp_path_factory.mktemp("overlap"), untrained)


@pytest.fixture(scope="module")
def taught_config(taught, tmp_path_factory) -> RLConfig:
    return overlapping(tmp_path_factory.mktemp("overlap"), taught)


def overlapping(folder: Path, policy: Policy) -> RLConfig:
    config = tiny_rl_config(
        folder,
        policy,
        steps=STEPS,
        checkpoint_every_steps=1,
        optimizer={"learning_rate": 1e-3},
        min_reward_std=0.0,
        max_rollouts_per_step=100,
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


# --- with a model, and an update that only scales it ---


async def mixed_batches(config, policy, rollouts, may_update) -> list[bool]:
    """Learn from batches by updates that wait for `may_update`; of each say whether an episode has several versions.

    Each token has the log-prob of its own version's weights and of no other's. An update gives its weights away, as a
    donated buffer is.
    """
    weights = {step: jax.tree.map(functools.partial(np.multiply, 0.97**step), policy.params) for step in range(STEPS)}
    params = jax.tree.map(jnp.asarray, weights[0])

    def update(step):
        if step + 1 < STEPS:
            may_update()
        for leaf in jax.tree.leaves(params):
            leaf.delete()
        return jax.tree.map(jnp.asarray, weights.get(step + 1, weights[0])), (), {}

    learner = functools.partial(
        jax.jit(train.policy_logprobs, static_argnames=("model_config", "objective")),
        model_config=policy.model_config,
        objective=train.objective_of(config),
    )
    mixed, apart, overlapped = [], [], []
    async with Overlap(rollouts, num_steps=STEPS) as overlap:
        for step in range(STEPS):
            groups, _ = await overlap.batch(params, step=step)
            overlapped.append(overlap.overlapped_seconds > 0)
            params, *_ = await overlap.while_rolling_out(functools.partial(update, step), step=step)
            batch = make_rl_batch(groups, length_bucket_tokens=384, pad_id=policy.tokenizer.pad_id)
            versions_BT, sampled_BT = np.full(batch.targets_BT.shape, -1), np.asarray(batch.sampled_logprobs_BT)
            for group in groups:
                assert step >= group.policy_version == oldest_version(group.group) >= step - config.max_staleness
            episodes = [episode for group in groups for episode in group.group]
            for row, episode in enumerate(episodes):
                versions_BT[row, : len(episode.ledger) - 1] = episode.ledger.policy_versions[1:]
                sampled = [version for version in episode.ledger.policy_versions if version >= 0]
                assert sampled == sorted(sampled)
            mixed.append(any(len(set(each.ledger.policy_versions) - {-1}) > 1 for each in episodes))
            for version in set(versions_BT.flat) - {-1}:
                learner_BT = np.asarray(learner(weights[version], batch))
                its, others = versions_BT == version, (versions_BT >= 0) & (versions_BT != version)
                np.testing.assert_allclose(learner_BT[its], sampled_BT[its], rtol=0, atol=2e-5)
                apart += [np.abs(learner_BT - sampled_BT)[others].max()] if others.any() else []
    assert min(apart) > 1e-3, "others' log-probs are those of other weights"
    assert overlapped == [False, True, True]
    return mixed


async def test_tokens_of_two_versions_in_one_message_have_the_log_probs_of_their_own_weights(
    config, untrained, monkeypatch
):
    """Each update waits until the decoder has sampled tokens of the next batch."""
    rewards = itertools.cycle((0.0, 1.0))
    monkeypatch.setattr(rollouts_module, "episode_reward", lambda *_: next(rewards))
    rollouts = Rollouts(config, untrained.model_config, untrained.tokenizer, InProcessSandbox(), None)

    def tokens_are_sampled():
        deadline = time.monotonic() + 120
        while not any(decoder.load.sampled_tokens for decoder in rollouts._engine._at_work):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    assert await mixed_batches(config, untrained, rollouts, tokens_are_sampled) == [False, True, True]


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


@pytest.mark.slow
async def test_an_episode_whose_tool_is_slower_than_an_update_goes_on_with_its_weights(
    taught_config, taught, monkeypatch
):
    """Each update waits until an episode of the next batch calls a tool, and the tool waits for new weights."""
    sandbox = HeldSandbox()
    rollouts = Rollouts(taught_config, taught.model_config, taught.tokenizer, sandbox, None)
    update_weights = rollouts.update_weights

    async def then_let_go(*arguments):
        await update_weights(*arguments)
        sandbox.is_held = False
        sandbox.is_called.clear()

    def a_tool_is_called():
        sandbox.is_held = True
        assert sandbox.is_called.wait(120)

    monkeypatch.setattr(rollouts, "update_weights", then_let_go)
    assert await mixed_batches(taught_config, taught, rollouts, a_tool_is_called) == [False, True, True]


# --- whole runs ---


class DiesLater(InProcessSandbox):
    """Answers so many calls, then no more."""

    def __init__(self, answers: int):
        super().__init__()
        self._answers = answers

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        if self.num_calls >= self._answers:
            raise SandboxUnavailable("gone")
        return await super().execute(*arguments, **options)


@pytest.mark.slow
async def test_a_sandbox_that_goes_while_an_update_is_made_ends_the_run_after_that_step_and_it_resumes(
    taught_config, tmp_path, monkeypatch
):
    run, sandbox = taught_config.model_copy(update={"out": tmp_path / "run"}), DiesLater(10**9)
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
    lines = read_metrics(run.out / "metrics.jsonl")
    assert [line["group_age_max"] for line in lines] == [0, 0, 1], "it went on from the first, and only then ahead"
    assert [line["overlapped_seconds"] > 0 for line in lines] == [False, False, True]
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
    taught_config, tmp_path, monkeypatch, capsys, where
):
    """No tool answers any more from the second update on; the signal comes from a call, or from within the update."""
    run = taught_config.model_copy(update={"out": tmp_path / "run", "checkpoint_every_steps": 100})
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
async def test_a_run_that_overlaps_and_is_killed_resumes_and_counts_every_group_once(taught_config, taught, tmp_path):
    """Three groups a rollout, so that some wait; what was on its way is rolled out again."""
    changes = {"groups_per_rollout": 3, "groups_per_step": 2, "steps": 5, "out": tmp_path / "run"}
    run = taught_config.model_copy(update=changes)
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
