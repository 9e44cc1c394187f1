"""A save in a bucket that fails is told in one line, and the newest whole one comes back."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from astra_jax.checkpoints import checkpoint
from astra_jax.checkpoints.checkpoint import Checkpoints, load_params, save_params
from astra_jax.rehearse.bucket import Bucket, served_bucket
from synthesis.run.places import PlaceUnusable, stage_of
from tests.astra_jax.checkpoints.test_checkpoint import CONFIG, OPTIMIZER, assert_same, train_state
from tests.synthesis.run.retries import wait_shortly


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    with served_bucket() as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
        monkeypatch.setenv("ASTRA_STAGE", str(tmp_path))
        wait_shortly(monkeypatch)
        yield bucket


def checkpoints() -> Checkpoints:
    return Checkpoints(stage_of(Path("gs://bucket/run/checkpoints")), CONFIG)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pytest's hook is in the place of ours
def test_the_newest_save_that_was_whole_comes_back_after_faults(bucket: Bucket, caplog):
    caplog.set_level(logging.ERROR)
    lines, step, whole = [], 0, 0
    while bucket.faults.injected < 40 or not lines:
        step += 1
        bucket.faults.unavailable = bucket.faults.cut = bucket.faults.slow = bucket.faults.stale = 0.02
        bucket.faults.is_down = step % 4 == 0
        try:
            with checkpoints() as saving:
                saving.save(train_state(step))
                saving.wait()
            whole = step
        except PlaceUnusable as error:
            lines.append(str(error))
    bucket.faults.unavailable = bucket.faults.cut = bucket.faults.slow = bucket.faults.stale = 0
    bucket.faults.is_down = False
    restored = checkpoints().restore_latest(OPTIMIZER)
    assert whole <= restored.step <= step  # a save may fail when its files are whole
    assert_same(restored, train_state(restored.step))
    assert [line for line in lines if not line.startswith("gs://bucket/run/checkpoints") or "\n" in line] == []
    assert caplog.messages == []


def test_writes_that_outlive_a_failed_save_say_nothing_and_other_failures_are_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(checkpoint, "_write_unraisable", shown.append)
    of_loop, other = (SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "other"))
    checkpoint._unless_loop_is_closed(of_loop)
    checkpoint._unless_loop_is_closed(other)
    assert shown == [other]


def test_weights_in_a_bucket_that_is_down_are_told_in_one_line(bucket: Bucket):
    policy = stage_of(Path("gs://bucket/policy"))
    save_params(policy, CONFIG, train_state(1).params)
    assert load_params(policy)[0] == CONFIG
    bucket.faults.is_down = True
    for use in (lambda: load_params(policy), lambda: save_params(policy, CONFIG, train_state(2).params)):
        with pytest.raises(PlaceUnusable, match=r"gs://bucket/policy: .*; look at the name") as told:
            use()
        assert "\n" not in str(told.value)
