"""SFT over a mesh and over hosts gives the losses of one device; SIGTERM saves; parts of a batch add up to it."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import subprocess

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.policy import load_policy
from astra_jax.config import ConfigError
from astra_jax.metrics_file import read_metrics
from astra_jax.model.sharding import MeshConfig
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.data import make_batch, render_sample
from astra_jax.sft.stage import run_sft
from astra_jax.sft.train import sft_loss
from astra_jax.testing import tiny_environment
from astra_jax.training.accumulation import loss_and_gradients
from tests.astra_jax.curves import curve
from tests.astra_jax.killed_process import wait_for_steps
from tests.astra_jax.sft.configs import tiny_sft_config
from tests.astra_jax.two_hosts import finish, two_hosts

STEPS = 4
MESH = MeshConfig(fsdp=2, context=2, tensor=2)
LONG = {"steps": 10_000, "checkpoint_every_steps": 10_000}


@pytest.fixture(scope="module")
def config(tokenizer, tmp_path_factory) -> SFTConfig:
    return tiny_sft_config(
        tmp_path_factory.mktemp("sft"),
        tokenizer,
        [tiny_environment(rent=rent) for rent in range(4)],
        steps=STEPS,
        batch_tokens=1280,
        optimizer={"learning_rate": 5e-3},
        checkpoint_every_steps=2,
    )


@pytest.fixture(scope="module")
def on_one_device(config) -> list[dict]:
    run_sft(config)
    return read_metrics(config.out / "metrics.jsonl")


def assert_same_curve(found: list[dict], expected: list[dict]) -> None:
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    for name, tolerance in (("loss", 1e-5), ("loss_environments", 1e-5), ("grad_norm", 1e-4)):
        np.testing.assert_allclose([line[name] for line in found], [line[name] for line in expected], rtol=tolerance)


def test_a_run_over_a_mesh_has_the_losses_of_one_device(config, on_one_device, tmp_path):
    run_sft(config.model_copy(update={"out": tmp_path, "mesh": MESH}))
    assert_same_curve(read_metrics(tmp_path / "metrics.jsonl"), on_one_device)
    weights, expected = load_policy(tmp_path / "policy").params, load_policy(config.out / "policy").params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), weights, expected)


def on_two_hosts(config: SFTConfig) -> contextlib.AbstractContextManager[list[subprocess.Popen]]:
    """SFT in two processes, each with half of the devices."""
    return two_hosts(["-m", "tests.astra_jax.sft.run_sft", config.model_dump_json()], devices_per_host=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(MESH, id="rows over hosts"),
        pytest.param(MeshConfig(context=8), id="sequences over hosts"),
    ],
)
def test_two_hosts_have_the_losses_of_one(config, on_one_device, tmp_path, mesh):
    """Each makes only its rows of a batch; the second also resumes from the checkpoint of both."""
    run = config.model_copy(update={"out": tmp_path, "mesh": mesh})
    with on_two_hosts(run) as processes:
        finish(processes)
    shutil.rmtree(tmp_path / "policy")
    shutil.rmtree(tmp_path / "checkpoints" / f"{STEPS:08d}")
    with on_two_hosts(run) as processes:
        finish(processes)
    for folder in (tmp_path, tmp_path / "hosts" / "1"):
        assert_same_curve(read_metrics(folder / "metrics.jsonl"), on_one_device)
    weights, expected = load_policy(tmp_path / "policy").params, load_policy(config.out / "policy").params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), weights, expected)


@pytest.mark.slow
def test_a_signal_at_one_of_two_hosts_ends_both_after_the_same_step(config, tmp_path):
    """In training, before the first step of a run that resumes, and Ctrl-C; then the curve is that of one run."""
    long = config.model_copy(update={"out": tmp_path / "long", "mesh": MESH, **LONG})
    saved = 0
    for host, signum, moment in (
        (1, signal.SIGTERM, after_two_steps),
        (0, signal.SIGTERM, before_the_first_step),
        (1, signal.SIGINT, after_two_steps),
    ):
        with on_two_hosts(long) as processes:
            moment(processes, long)
            processes[host].send_signal(signum)
            errors = [process.communicate(timeout=300)[1] for process in processes]
        steps, name, code = len(curve(long.out)), *(("Ctrl-C", 130) if signum == signal.SIGINT else ("SIGTERM", 0))
        assert [process.returncode for process in processes] == ([0, code] if host else [code, 0]), "\n".join(errors)
        assert f"saved after step {steps} on {name}" in errors[host]
        assert f"saved after step {steps} on SIGTERM" in errors[1 - host]
        assert (long.out / "checkpoints" / f"{steps:08d}" / "train.whole.json").exists()
        assert steps > saved
        saved = steps
    undisturbed = long.model_copy(update={"out": tmp_path / "undisturbed", "steps": saved})
    with on_two_hosts(undisturbed) as processes:
        finish(processes)
    for folder in ("", "hosts/1"):
        assert curve(long.out / folder) == curve(undisturbed.out / folder)


def after_two_steps(processes: list[subprocess.Popen], config: SFTConfig) -> None:
    wait_for_steps(config.out / "metrics.jsonl", len(curve(config.out)) + 2, processes)


def before_the_first_step(processes: list[subprocess.Popen], _: SFTConfig) -> None:
    for process in processes:
        assert "joined\n" in process.stdout


@pytest.mark.parametrize("accumulation", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_parts_of_a_batch_add_up_to_it(untrained, accumulation):
    """One part has no token with loss at all; the figures of tokens come back in the order of the rows."""
    tokenizer, environment = untrained.tokenizer, tiny_environment()
    sample = render_sample(environment.gold_messages(), [tool.document for tool in environment.tools], tokenizer)
    batch = make_batch([[sample]] * 3, num_rows=4, row_tokens=320, pad_id=tokenizer.pad_id)
    loss_of = functools.partial(
        sft_loss, model_config=untrained.model_config, num_loss_tokens=batch.loss_mask_BT.sum(), chunk_tokens=128
    )
    step = jax.jit(functools.partial(loss_and_gradients, loss_of), static_argnames="parts")

    def worked_through(parts: int):
        return step(untrained.params, batch, parts=parts)

    (losses, gradients), (expected_losses, expected) = worked_through(accumulation), worked_through(1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), losses, expected_losses)
    loss, of_tokens_BT = losses
    of_rows = np.asarray(of_tokens_BT).sum(axis=1) / batch.loss_mask_BT.sum()
    np.testing.assert_allclose(of_rows, loss * np.array([1, 1, 1, 0]) / 3, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradients, expected)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mesh": MeshConfig(fsdp=4)}, "needs 4 devices, found 8"),
        ({"max_position_embeddings": 256}, "sequences of 320 tokens exceed the model's context of 256"),
        ({"vocab_size": 300}, "tokens, more than the 300 of the model's vocabulary"),
    ],
)
def test_a_mesh_or_a_model_that_does_not_fit_is_refused_before_anything_is_read(config, tmp_path, changes, problem):
    if "mesh" not in changes:
        changes = {"model": config.model.model_copy(update=changes)}
    nowhere = {"out": tmp_path, "environments": (tmp_path / "missing",)}
    with pytest.raises(ConfigError, match=problem):
        run_sft(config.model_copy(update={**nowhere, **changes}))
