"""SFT lowers the loss, and a run that was killed -9 goes on as if it had never stopped."""

from __future__ import annotations

import gc
import shutil

import jax
import numpy as np
import pytest

from astra_jax import checkpoint
from astra_jax.checkpoint import CheckpointError
from astra_jax.metrics import read_metrics
from astra_jax.model.context_parallel import balance
from astra_jax.model.qwen3 import bind
from astra_jax.model.sharding import MeshConfig, make_mesh, param_shardings, spec
from astra_jax.policy import load_policy
from astra_jax.sft.data import SFTBatch, make_batch, render_sample
from astra_jax.sft.train import SFTConfig, sft_loss, train_sft
from astra_jax.testing import tiny_environment
from tests.astra_jax.killed_process import kill_after_steps
from tests.astra_jax.sft.configs import tiny_sft_config

STEPS, CHECKPOINT_EVERY = 10, 3
NAMES = [("Quartz Heron", "Amber Falcon"), ("Teal Finch", "Opal Gate"), ("Iron Wren", "Moss Hall"), ("Red Kite", "Ash")]


@pytest.fixture(scope="module")
def config(tokenizer, tmp_path_factory) -> SFTConfig:
    environments = [tiny_environment(owner=owner, flat=flat, rent=i) for i, (owner, flat) in enumerate(NAMES)]
    return tiny_sft_config(
        tmp_path_factory.mktemp("sft"),
        tokenizer,
        environments,
        steps=STEPS,
        batch_tokens=640,
        optimizer={"learning_rate": 5e-3, "schedule": "cosine", "warmup_fraction": 0.2},
        checkpoint_every_steps=CHECKPOINT_EVERY,
    )


def curve(config: SFTConfig) -> list[dict]:
    """The metrics without what a clock wrote."""
    lines = read_metrics(config.out / "metrics.jsonl")
    return [{key: value for key, value in line.items() if "second" not in key} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(config) -> SFTConfig:
    train_sft(config)
    return config


def test_the_loss_falls(undisturbed):
    losses = [line["loss"] for line in curve(undisturbed)]
    assert len(losses) == STEPS
    assert losses[-1] < 0.7 * losses[0]


def test_a_run_killed_at_any_moment_resumes_to_the_identical_loss_curve(undisturbed, tmp_path):
    """kill -9 after the fifth step, between two checkpoints, in another process; then the same command again."""
    interrupted = undisturbed.model_copy(update={"out": tmp_path / "run"})
    metrics = interrupted.out / "metrics.jsonl"
    kill_after_steps("tests.astra_jax.sft.run_sft", [interrupted.model_dump_json()], metrics=metrics, steps=5)
    assert len(read_metrics(metrics)) < STEPS
    train_sft(interrupted)
    assert curve(interrupted) == curve(undisturbed)
    policy, expected = load_policy(interrupted.out / "policy"), load_policy(undisturbed.out / "policy")
    jax.tree.map(np.testing.assert_array_equal, policy.params, expected.params)


def test_a_finished_run_is_not_run_again(undisturbed):
    before = (undisturbed.out / "metrics.jsonl").read_bytes()
    figures = train_sft(undisturbed)
    assert figures == {
        "steps": STEPS,
        "loss": curve(undisturbed)[-1]["loss"],
        "samples": 4,
        "dropped_over_length": 0,
        "already_complete": True,
    }
    assert (undisturbed.out / "metrics.jsonl").read_bytes() == before


def test_a_run_killed_after_its_last_step_closes_with_the_figures_of_that_step(undisturbed, tmp_path):
    run = undisturbed.model_copy(update={"out": tmp_path / "run"})
    shutil.copytree(undisturbed.out, run.out)
    shutil.rmtree(run.out / "policy")
    figures = train_sft(run)
    assert figures["loss"] == curve(undisturbed)[-1]["loss"]
    assert "already_complete" not in figures


def test_a_run_that_resumes_needs_no_weights_but_those_it_saved(undisturbed, tmp_path):
    """Of the policy that it started from only the small files are left: what it is, and the tokenizer."""
    start = shutil.copytree(undisturbed.out / "policy", tmp_path / "start")
    changes = {"init": start, "model": None, "tokenizer": None, "out": tmp_path / "run"}
    run = undisturbed.model_copy(update=changes)
    train_sft(run)
    expected = curve(run)
    shutil.rmtree(start / "params")
    shutil.rmtree(run.out / "policy")
    shutil.rmtree(run.out / "checkpoints" / f"{STEPS:08d}")
    assert "already_complete" not in train_sft(run)
    assert curve(run) == expected
    with pytest.raises(CheckpointError, match="is damaged"):
        train_sft(run.model_copy(update={"out": tmp_path / "another run"}))


def test_a_run_that_resumes_holds_one_state(undisturbed, monkeypatch):
    """Nothing lives on the devices when it starts to read."""
    held_bytes, read_part = [], checkpoint._read_part

    def reading(*arguments):
        held_bytes.append(live_bytes())
        return read_part(*arguments)

    monkeypatch.setattr(checkpoint, "_read_part", reading)
    shutil.rmtree(undisturbed.out / "policy")  # else it is finished
    gc.collect()
    before_bytes = live_bytes()
    train_sft(undisturbed)
    assert held_bytes[0] - before_bytes < 1000 < held_bytes[1] - held_bytes[0]


def live_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def test_the_loss_is_the_mean_over_the_tokens_the_assistant_said(untrained):
    """Against float64 log-softmax, one token at a time."""
    tokenizer, environment = untrained.tokenizer, tiny_environment()
    sample = render_sample(environment.gold_messages(), [tool.document for tool in environment.tools], tokenizer)
    batch = make_batch([[sample]], num_rows=2, row_tokens=320, pad_id=tokenizer.pad_id)
    loss = float(
        jax.jit(lambda params: sft_loss(params, untrained.model, batch, batch.loss_mask_BT.sum(), 128))(
            untrained.params
        )
    )
    qwen3 = bind(untrained.model, untrained.params)
    count = len(sample.ids)
    hidden = qwen3(batch.tokens_BT[:1], np.arange(320)[None], batch.segment_ids_BT[:1])
    logits_TV = np.asarray(qwen3.logits(hidden)[0, : count - 1], np.float64)
    logprobs_T = logits_TV[np.arange(count - 1), sample.ids[1:]] - np.log(np.exp(logits_TV).sum(-1))
    said = sample.loss_mask[1:] > 0
    assert loss == pytest.approx(-logprobs_T[said].mean(), rel=1e-5)


def test_a_run_without_a_start_says_what_it_needs(config):
    with pytest.raises(ValueError, match="needs `init`"):
        train_sft(config.model_copy(update={"model": None}))


def test_the_loss_is_the_same_where_sequences_are_split_over_devices(untrained, tokenizer):
    """Positions travel with the tokens when `balance` deals the pieces of a sequence out to context shards."""
    environment = tiny_environment()
    documents = [tool.document for tool in environment.tools]
    sample = render_sample(environment.gold_messages(), documents, tokenizer)
    batch = make_batch([[sample]], num_rows=1, row_tokens=384, pad_id=tokenizer.pad_id)
    num_loss_tokens = batch.loss_mask_BT.sum()
    expected = sft_loss(untrained.params, untrained.model, batch, num_loss_tokens, 128)
    mesh = make_mesh(MeshConfig(context=4), jax.devices()[:4])
    arrays = balance({name: np.asarray(array) for name, array in batch._asdict().items()}, shards=4)
    placed = jax.device_put(arrays, jax.NamedSharding(mesh, spec("batch", "sequence")))
    params = jax.device_put(untrained.params, param_shardings(untrained.params, mesh))
    with jax.set_mesh(mesh):
        sharded_loss = jax.jit(sft_loss, static_argnums=(1, 4))
        loss = sharded_loss(params, untrained.model, SFTBatch(**placed), num_loss_tokens, 128)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
