"""SFT lowers the loss, and a run that was killed -9 goes on as if it had never stopped."""

from __future__ import annotations

import functools
import gc
import gzip
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from astra_jax.checkpoints import checkpoint
from astra_jax.checkpoints.checkpoint import Checkpoints
from astra_jax.checkpoints.policy import load_policy, save_policy
from astra_jax.config import ConfigError
from astra_jax.metrics_file import goodput, read_metrics
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import bind
from astra_jax.sft.batches import SFTBatches
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.data import make_batch, render_sample
from astra_jax.sft.stage import batches_of, first_params, run_sft
from astra_jax.sft.train import LOSSES, sft_loss
from astra_jax.testing import tiny_environment
from astra_jax.training import run as run_module
from astra_jax.training.optimizer import learning_rate_schedule, make_optimizer
from astra_jax.training.run import NotFinite, checked_parts
from synthesis.record_io import write_records
from synthesis.run.fingerprint import MadeOtherwise
from tests.astra_jax.curves import curve, weights
from tests.astra_jax.killed_process import kill_after_steps
from tests.astra_jax.sft.configs import tiny_sft_config
from tests.astra_jax.sft.test_batches import a_trajectory

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


@pytest.fixture(scope="module")
def undisturbed(config) -> SFTConfig:
    run_sft(config)
    return config


def test_the_loss_falls(undisturbed):
    losses = [line["loss"] for line in curve(undisturbed.out)]
    assert len(losses) == STEPS
    assert losses[-1] < 0.7 * losses[0]


def test_a_share_of_init_is_in_the_policy(undisturbed, tmp_path):
    changes = {"init": undisturbed.out / "policy", "model": None, "tokenizer": None, "steps": 2}
    whole, mixed = (
        SFTConfig.model_validate(
            {**undisturbed.model_dump(), **changes, "out": tmp_path / f"{share}", "init_share": share}
        )
        for share in (0.0, 0.25)
    )
    for config in (whole, mixed):
        run_sft(config)
    policies = (changes["init"], whole.out / "policy", mixed.out / "policy")
    first, learnt, mean = (jax.tree.leaves(load_policy(policy).params) for policy in policies)
    for of_first, of_learnt, of_mean in zip(first, learnt, mean, strict=True):
        np.testing.assert_allclose(of_mean, 0.75 * of_learnt + 0.25 * of_first, rtol=0, atol=1e-7)
        assert np.any(of_learnt != of_first)
    assert curve(mixed.out) == curve(whole.out)  # the run learns from its own weights


@pytest.mark.parametrize("changes", [{"init": None}, {"init": "base", "lora": {"rank": 2}}])
def test_a_share_of_init_needs_all_its_weights(undisturbed, changes):
    with pytest.raises(ValueError, match="name `init`, and leave `lora` out"):
        SFTConfig.model_validate({**undisturbed.model_dump(), **changes, "init_share": 0.25})


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_to_the_identical_loss_curve(undisturbed, tmp_path):
    """kill -9 after the fifth step, between two checkpoints, in another process; then the same command again."""
    interrupted = undisturbed.model_copy(update={"out": tmp_path / "run"})
    metrics = interrupted.out / "metrics.jsonl"
    kill_after_steps("tests.astra_jax.sft.run_sft", [interrupted.model_dump_json()], metrics=metrics, steps=5)
    assert len(read_metrics(metrics)) < STEPS
    run_sft(interrupted)
    assert curve(interrupted.out) == curve(undisturbed.out)
    assert weights(interrupted.out / "policy") == weights(undisturbed.out / "policy")


def test_a_run_killed_after_its_last_step_closes_with_the_figures_of_that_step(undisturbed, tmp_path):
    run = undisturbed.model_copy(update={"out": tmp_path / "run"})
    shutil.copytree(undisturbed.out, run.out)
    shutil.rmtree(run.out / "policy")
    figures = run_sft(run)
    assert figures["loss"] == curve(undisturbed.out)[-1]["loss"]
    assert "already_complete" not in figures


def test_more_steps_make_a_finished_run_the_longer_run_that_was_never_stopped(config, undisturbed, tmp_path):
    constant = config.optimizer.model_copy(update={"schedule": "constant", "warmup_fraction": 0.0})

    def run(name: str, steps: int) -> SFTConfig:
        longer = config.model_copy(update={"out": tmp_path / name, "steps": steps, "optimizer": constant})
        assert "already_complete" not in run_sft(longer)
        return longer

    run("grown", 4)
    grown, whole = run("grown", 6), run("whole", 6)
    assert curve(grown.out) == curve(whole.out)
    assert weights(grown.out / "policy") == weights(whole.out / "policy")
    assert run_sft(grown)["already_complete"]
    with pytest.raises(MadeOtherwise, match="steps"):  # shorter
        run_sft(grown.model_copy(update={"steps": 5}))
    # The rate of every step of a cosine depends on their number.
    copied = undisturbed.model_copy(update={"out": tmp_path / "copied", "steps": STEPS + 1})
    shutil.copytree(undisturbed.out, copied.out)
    with pytest.raises(MadeOtherwise, match="steps"):
        run_sft(copied)


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
    run_sft(undisturbed)
    assert held_bytes[0] - before_bytes < 1000 < held_bytes[1] - held_bytes[0]


def test_a_trace_of_the_steps_that_a_config_names_is_written_and_changes_nothing(undisturbed, tmp_path):
    run = undisturbed.model_copy(update={"out": tmp_path / "run", "profile_steps": (4, 5)})
    run_sft(run)
    (session,) = (run.out / "profile/plugins/profile").iterdir()
    assert list(session.glob("*.xplane.pb"))
    events = json.loads(gzip.decompress((session / "perfetto_trace.json.gz").read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "PjitFunction(sft_step)" for event in events) >= 2
    assert curve(run.out) == curve(undisturbed.out)


def test_a_trace_of_steps_that_the_run_does_not_have_is_refused(undisturbed, tmp_path):
    run = undisturbed.model_copy(update={"out": tmp_path / "run", "profile_steps": (8, 10)})
    with pytest.raises(
        ConfigError, match=r"profile_steps ends at step 10, but the last of 10 steps is 9; name earlier"
    ):
        run_sft(run)


def test_every_second_of_a_run_that_stopped_and_went_on_has_a_cause(undisturbed, tmp_path, monkeypatch, capsys):
    run = undisturbed.model_copy(update={"out": tmp_path / "run"})
    shutil.copytree(undisturbed.out, run.out)
    shutil.rmtree(run.out / "policy")
    shutil.rmtree(run.out / "checkpoints" / "00000010")
    lines = read_metrics(run.out / "metrics.jsonl")
    for line in lines:  # as if it had been stopped an hour ago
        line["ended_unix_seconds"] -= 3600
    (run.out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    capsys.readouterr()
    run_sft(run)
    lines = read_metrics(run.out / "metrics.jsonl")
    assert lines[9]["restore_seconds"] > 0 == lines[8]["restore_seconds"]
    assert lines[0]["compile_seconds"] > 0
    shares, whole = goodput(lines), lines[-1]["ended_unix_seconds"] - lines[0]["ended_unix_seconds"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["other"] * whole == pytest.approx(3600, rel=0.05)
    assert "sft: time " in capsys.readouterr().err


def spoil_batches(monkeypatch, spoiled_steps) -> None:
    """From now on the batches of these steps have no finite loss."""
    make = SFTBatches.__getitem__

    def make_spoiled(batches, step):
        batch = make(batches, step)
        if step in spoiled_steps:
            batch = batch._replace(loss_mask_BT=np.where(batch.loss_mask_BT > 0, np.float32("inf"), np.float32(0)))
        return batch

    monkeypatch.setattr(SFTBatches, "__getitem__", make_spoiled)


def strict_lines(path) -> list[dict]:
    """Lines of JSON in which NaN and Infinity are no values."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def state_after(run: SFTConfig, step: int) -> list[np.ndarray]:
    """Weights and optimiser state as they were saved after so many steps."""
    with Checkpoints(run.out / "checkpoints", run.model) as checkpoints:
        state = checkpoints._restore(
            run.out / "checkpoints" / f"{step:08d}", make_optimizer(run.optimizer, STEPS), None
        )
    return [np.asarray(leaf) for leaf in jax.tree.leaves((state.params, state.optimizer_state))]


def test_a_step_that_is_not_finite_is_not_applied_but_told_of(undisturbed, tmp_path, monkeypatch, capsys):
    """And the schedule of the learning rate goes on where it stood."""
    spoil_batches(monkeypatch, {2, 3, 9})
    run = undisturbed.model_copy(update={"out": tmp_path / "run", "checkpoint_every_steps": 1})
    figures = run_sft(run)
    lines, rate = strict_lines(run.out / "metrics.jsonl"), learning_rate_schedule(run.optimizer, STEPS)
    assert [line["applied"] for line in lines] == [1, 1, 0, 0, 1, 1, 1, 1, 1, 0]
    assert [line["learning_rate"] for line in lines] == [float(rate(n)) for n in (0, 1, 2, 2, 2, 3, 4, 5, 6, 7)]
    assert (lines[9]["loss"], lines[9]["grad_norm"]) == (None, None)
    assert [line["loss"] for line in lines[:2]] == [line["loss"] for line in curve(undisturbed.out)[:2]]
    assert figures["loss"] == lines[8]["loss"] < lines[0]["loss"]
    before, after = state_after(run, 9), state_after(run, 10)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))
    told = [line for line in capsys.readouterr().err.splitlines() if "not applied" in line]
    assert told == [f"sft: step {step} is not applied: loss nan, gradient norm nan" for step in (2, 3, 9)]


def test_too_many_steps_in_a_row_that_are_not_finite_stop_the_run_which_can_go_on(undisturbed, tmp_path, monkeypatch):
    run = undisturbed.model_copy(update={"out": tmp_path / "run"})
    monkeypatch.setattr(run_module, "_MAX_NOT_FINITE_STEPS", 2)
    with monkeypatch.context() as spoiled:
        spoil_batches(spoiled, {1, 4, 5})
        with pytest.raises(
            NotFinite, match=r"steps 4 to 5 had no finite .* data of these steps; the same command goes on"
        ):
            run_sft(run)
    assert [line["applied"] for line in strict_lines(run.out / "metrics.jsonl")] == [1, 0, 1, 1, 0, 0]
    assert (run.out / "checkpoints" / "00000006").is_dir()
    assert not (run.out / "policy").exists()
    spoil_batches(monkeypatch, {6})
    run_sft(run)
    assert [line["applied"] for line in strict_lines(run.out / "metrics.jsonl")] == [1, 0, 1, 1, 0, 0, 0, 1, 1, 1]


def live_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def loss_of(model_config: ModelConfig, num_loss_tokens: jax.Array) -> functools.partial:
    return functools.partial(sft_loss, model_config=model_config, num_loss_tokens=num_loss_tokens, chunk_tokens=128)


def test_the_loss_is_the_mean_over_the_tokens_the_assistant_said(untrained):
    """Against float64 log-softmax, one token at a time."""
    tokenizer, environment = untrained.tokenizer, tiny_environment()
    sample = render_sample(environment.gold_messages(), [tool.document for tool in environment.tools], tokenizer)
    batch = make_batch([[sample]], num_rows=2, row_tokens=320, pad_id=tokenizer.pad_id)
    loss, _ = jax.jit(loss_of(untrained.model_config, batch.loss_mask_BT.sum()))(untrained.params, batch)
    qwen3 = bind(untrained.model_config, untrained.params)
    count = len(sample.ids)
    hidden = qwen3(batch.tokens_BT[:1], np.arange(320)[None], batch.segment_ids_BT[:1])
    logits_TV = np.asarray(qwen3.logits(hidden)[0, : count - 1], np.float64)
    logprobs_T = logits_TV[np.arange(count - 1), sample.ids[1:]] - np.log(np.exp(logits_TV).sum(-1))
    said = sample.loss_mask[1:] > 0
    assert float(loss) == pytest.approx(-logprobs_T[said].mean(), rel=1e-5)


def test_a_step_from_a_policy_tells_the_loss_of_each_kind_of_row(config, untrained, tmp_path):
    """Each loss is the one that a batch of these rows alone has; together they are the loss of the whole."""
    save_policy(untrained, tmp_path / "init")
    start = {"init": tmp_path / "init", "model": None, "tokenizer": None}
    mixed = mixed_run(config, tmp_path, packing=True, accumulation=2, **start)
    figures = run_sft(mixed)
    (line,) = read_metrics(mixed.out / "metrics.jsonl")
    parts = checked_parts(mixed)
    batch, params = batches_of(mixed, parts)[0], first_params(mixed, parts)
    assert max(len(set(row) - {0}) for row in batch.kinds_BT.tolist()) > 1
    total = 0.0
    for kind, name in enumerate(LOSSES, start=1):
        alone = batch._replace(loss_mask_BT=np.where(batch.kinds_BT == kind, batch.loss_mask_BT, 0))
        count = alone.loss_mask_BT.sum()
        loss, _ = jax.jit(loss_of(untrained.model_config, count))(params, alone)
        assert (line[name], figures[name]) == (pytest.approx(float(loss), rel=1e-5), line[name])
        total += line[name] * count
    assert line["loss"] == pytest.approx(total / line["loss_tokens"], rel=1e-5)
    assert len({round(line[name], 3) for name in LOSSES}) == 3


def test_checkpoints_tell_the_loss_on_records_that_nothing_is_learnt_from(config, undisturbed, tmp_path):
    run = config.model_copy(update={"held_out_share": 0.5, "out": tmp_path / "run"})
    figures = run_sft(run)
    told = {
        line["step"]: line["held_out_loss"]
        for line in read_metrics(run.out / "metrics.jsonl")
        if "held_out_loss" in line
    }
    assert sorted(told) == [CHECKPOINT_EVERY - 1, 2 * CHECKPOINT_EVERY - 1, 3 * CHECKPOINT_EVERY - 1, STEPS - 1]
    assert not any("held_out_loss" in line for line in read_metrics(undisturbed.out / "metrics.jsonl"))
    policy, loss, tokens = load_policy(run.out / "policy"), 0.0, 0
    for batch, _ in batches_of(run, checked_parts(run, run.tokenizer)).held_out():
        loss += float(jax.jit(loss_of(policy.model_config, 1.0))(policy.params, batch)[0])
        tokens += (batch.loss_mask_BT > 0).sum()
    assert told[STEPS - 1] == figures["held_out_loss"] == pytest.approx(loss / tokens, rel=1e-5)


def mixed_run(config: SFTConfig, folder: Path, **changes) -> SFTConfig:
    """One step on trajectories, environments and conversations; there are several of each."""
    write_records(folder / "trajectories", [a_trajectory(number, 1) for number in range(3)], kind="trajectory")
    said = [{"role": "user", "content": "Hm?"}, {"role": "assistant", "content": "A loft by the old mill."}]
    (folder / "mine.jsonl").write_text(json.dumps({"messages": said}) + "\n" + json.dumps({"messages": said}))
    sources = {"trajectories": (folder / "trajectories",), "conversations": (folder / "mine.jsonl",)}
    shape = {"steps": 1, "length_buckets": (384,), "batch_tokens": 384 * 10, "out": folder / "run"}
    return config.model_copy(update=sources | shape | changes)


def test_a_kind_without_a_row_in_a_step_has_no_loss_there(undisturbed):
    lines = read_metrics(undisturbed.out / "metrics.jsonl")
    assert all(line["loss_environments"] == pytest.approx(line["loss"], rel=1e-6) for line in lines)
    assert not any("loss_trajectories" in line or "loss_conversations" in line for line in lines)


def test_a_run_without_a_start_asks_for_one(config):
    with pytest.raises(ValueError, match="needs `init`"):
        run_sft(config.model_copy(update={"model": None}))
