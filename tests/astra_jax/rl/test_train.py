"""Whole RL runs: no variance, no update; and a run that was killed -9 goes on as if it had never stopped."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections import Counter

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.checkpoint import Checkpoints, load_params
from astra_jax.config import ConfigError, parse_config
from astra_jax.episodes.log import logs_of_run, read_episodes
from astra_jax.episodes.rollout import EvaluationRollout
from astra_jax.metrics_file import read_metrics
from astra_jax.model.sharding import MeshConfig
from astra_jax.recipes.data_sets import describe
from astra_jax.report import write_report
from astra_jax.rl import train
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.rollouts import Rollouts
from astra_jax.rl.stage import run_rl
from astra_jax.rl.train import rl_loss
from astra_jax.testing import InProcessSandbox
from astra_jax.training.optimizer import make_optimizer, updates_applied
from tests.astra_jax.curves import weights
from tests.astra_jax.rl.configs import tiny_rl_config

STEPS = 5
MESH = MeshConfig(fsdp=2, context=2, tensor=2)


@pytest.fixture(scope="module")
def config(taught, tmp_path_factory) -> RLConfig:
    """One group per rollout and per update, so that no group waits in the buffer."""
    return tiny_rl_config(tmp_path_factory.mktemp("rl"), taught, steps=STEPS, checkpoint_every_steps=2)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """The folder of a whole run of three steps, of which every second one has its episodes logged."""
    out = tmp_path_factory.mktemp("finished") / "run"
    run = config.model_copy(update={"out": out, "steps": 3, "log_episodes_every_steps": 2})
    asyncio.run(run_rl(run, InProcessSandbox()))
    return out


async def test_a_batch_that_stays_smaller_is_learnt_from_as_if_it_were_whole(config, finished, tmp_path, capsys):
    """Rows that are empty change no loss: the group is one that a whole batch of one group has as well."""
    expected, *_ = read_metrics(finished / "metrics.jsonl")
    limits = {"groups_per_step": 2, "max_rollouts_per_step": expected["groups_submitted"], "accumulation": 2}
    smaller = config.model_copy(update={"out": tmp_path / "smaller", "steps": 1, **limits})
    figures = await run_rl(smaller, InProcessSandbox())
    (found,) = read_metrics(smaller.out / "metrics.jsonl")
    assert (found["groups_in_batch"], found["groups_learnt"], figures["groups_learnt"]) == (1, 1, 1)
    assert found["reward"] == expected["reward"]
    for name in ("loss", "grad_norm", "mean_abs_logprob_difference"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert capsys.readouterr().err.count("step 0 learns from 1 of 2 groups: ") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0}, r"rollout\.temperature: .*greedy episodes of a group are all alike.*found 0$"),
        *(({name: value}, rf"unknown key rollout\.{name}; ") for name, value in {"top_p": 0.9, "top_k": 20}.items()),
        ({"episodes_per_row": 3}, "expected episodes_per_row that divides group_size = 4, found 3"),
    ],
)
def test_a_config_that_nothing_can_be_learnt_with_is_refused_in_one_line(config, changes, message):
    values = config.model_dump()
    (key,) = changes
    table = values["rollout"] if key in EvaluationRollout.model_fields else values
    table.update(changes)
    with pytest.raises(ConfigError, match=rf"^[^\n]*{message}[^\n]*$"):
        parse_config(RLConfig, values, where="rl.toml")
    assert EvaluationRollout.model_validate(values["rollout"]), "an evaluation may"


async def test_while_episodes_are_rolled_out_moments_that_wait_on_the_host_are_not_on_the_device(
    config, tmp_path, monkeypatch
):
    moments: list[weakref.ref[jax.Array]] = []
    left: list[int] = []
    in_memory, batch = train.in_memory, Rollouts.batch

    def watched(kind, tree):
        found = in_memory(kind, tree)
        moments.extend(weakref.ref(leaf) for leaf in jax.tree.leaves(tree if kind == "pinned_host" else found))
        return found

    async def counted(*arguments, **options):
        of_device = [leaf for ref in moments if (leaf := ref()) is not None and leaf.sharding.memory_kind == "device"]
        left.append(sum(not leaf.is_deleted() for leaf in of_device))
        return await batch(*arguments, **options)

    monkeypatch.setattr(train, "in_memory", watched)
    monkeypatch.setattr(Rollouts, "batch", counted)
    run = config.model_copy(update={"out": tmp_path / "run", "steps": 2, "optimizer_waits_on_host": True})
    await run_rl(run, InProcessSandbox())
    assert moments
    assert left == [0, 0]


def test_a_run_logs_episodes_with_their_token_ids_and_its_report_shows_them(finished, taught):
    assert sorted(path.name for path in (finished / "episodes").iterdir()) == ["step_000000.jsonl", "step_000002.jsonl"]
    first, last = logs_of_run(finished)
    logged = read_episodes(last)
    ((whole, size), *others) = Counter(episode.environment_id for episode in logged).most_common()
    assert size > 1, "the first valid group is logged whole"
    assert all(count == 1 for _, count in others)
    assert sum(each.advantage for each in logged if each.environment_id == whole) == pytest.approx(0, abs=1e-5)
    assert all(episode.seconds for episode in logged)
    (of_learner,) = {bool(episode.learner_logprobs) for episode in logged if episode.environment_id == whole}
    assert of_learner, "the whole group was learnt from"
    for episode in logged:
        sampled = [token.sampled_logprob for token in episode.tokens if token.source == "model"]
        assert not episode.learner_logprobs or episode.learner_logprobs == pytest.approx(sampled, abs=2e-5)
    for path, name in ((first, "step 0"), (last, "step 2")):
        for episode in read_episodes(path):
            assert episode.policy == name
            text = taught.tokenizer.decode([token.id for token in episode.tokens])
            assert text == "".join(token.text for token in episode.tokens)
    html = write_report(finished, describe).read_text()
    for policy in ("step 0", "step 2"):
        assert f'"policy":"{policy}"' in html


async def test_a_step_that_is_not_finite_is_not_applied_but_told_of(config, taught, tmp_path, monkeypatch, capsys):
    """The first of two batches has a log-prob that no ratio can be taken of; the second one is learnt from."""
    made = []

    def make(*arguments, **options):
        batch, placed = make_rl_batch(*arguments, **options)
        made.append(batch)
        spoilt = batch._replace(sampled_logprobs_BT=batch.sampled_logprobs_BT - np.inf)
        return spoilt if len(made) == 1 else batch, placed

    make_rl_batch = train.make_rl_batch
    monkeypatch.setattr(train, "make_rl_batch", make)
    run = config.model_copy(update={"out": tmp_path / "run", "steps": 2, "checkpoint_every_steps": 1})
    await run_rl(run, InProcessSandbox())
    lines = read_metrics(run.out / "metrics.jsonl")
    assert [line["applied"] for line in lines] == [0, 1]
    assert lines[0]["loss"] is None
    assert np.isfinite(lines[1]["loss"])
    assert weights(run.init) == weights(run.out / "checkpoints" / "00000001")
    said = capsys.readouterr().err
    assert ("step 0 is not applied: loss nan, gradient norm nan\n" in said, "learns from" in said) == (True, False)
    with Checkpoints(run.out / "checkpoints", taught.model_config) as checkpoints:
        end = checkpoints.restore_latest(make_optimizer(run.optimizer, run.steps))
    assert updates_applied(end.optimizer_state) == 1
    objective = Objective(run.rollout.temperature, run.clip_epsilon, run.logprob_chunk_tokens)
    loss_of = jax.jit(functools.partial(rl_loss, model_config=taught.model_config, objective=objective))
    start = load_params(run.init)[1]
    before, now = (float(loss_of(params, made[1])[0]) for params in (start, end.params))
    assert now < before - 1e-4, "an update makes the better rewarded tokens more likely"


@pytest.mark.slow
async def test_a_run_over_a_mesh_has_the_rewards_and_losses_of_one_device(config, tmp_path):
    """Four groups at a time, so that rollouts too are dealt out over their mesh, another than the learner's."""
    four = {"groups_per_step": 2, "groups_per_rollout": 4, "steps": 2}
    pod = {
        "mesh": MESH,
        "rollout_mesh": MeshConfig(data=4, tensor=2),
        "accumulation": 2,
        "optimizer_waits_on_host": True,
    }
    one_device = config.model_copy(update={**four, "out": tmp_path / "one"})
    on_mesh = config.model_copy(update={**four, **pod, "out": tmp_path / "mesh"})
    for run in (one_device, on_mesh):
        await run_rl(run, InProcessSandbox())
    expected, found = (read_metrics(run.out / "metrics.jsonl") for run in (one_device, on_mesh))
    assert [line["reward"] for line in found] == [line["reward"] for line in expected]
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(
            [line[name] for line in found], [line[name] for line in expected], rtol=1e-4, atol=1e-6
        )
    assert found[0]["mean_abs_logprob_difference"] < 1e-5, "the learner has the sampled tokens"
