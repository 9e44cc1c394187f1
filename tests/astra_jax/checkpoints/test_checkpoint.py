"""A checkpoint restores bit for bit, or does not count."""

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.checkpoint import (
    CheckpointError,
    Checkpoints,
    TrainState,
    load_params,
    save_params,
    told_as_os_errors,
)
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import init_params
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer
from tests.astra_jax.two_hosts import finish, two_hosts

CONFIG = ModelConfig(
    vocab_size=31, hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=16
)
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1e-3), steps=10)


def train_state(step, seed=0):
    params = init_params(CONFIG, seed)
    optimizer_state = OPTIMIZER.init(params)
    optimizer_state = jax.tree.map(lambda x: x + step, optimizer_state)
    return TrainState(step, params, optimizer_state, {"next_record": 7 * step})


def assert_same(a, b):
    assert (a.step, a.data_position) == (b.step, b.data_position)
    same = jax.tree.map(
        lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(),
        (a.params, a.optimizer_state),
        (b.params, b.optimizer_state),
    )
    assert jax.tree.all(same)


def test_the_latest_state_comes_back_bit_for_bit(tmp_path):
    checkpoints = Checkpoints(tmp_path, CONFIG)
    assert checkpoints.restore_latest(OPTIMIZER) is None
    checkpoints.save(train_state(1, seed=1))
    checkpoints.save(train_state(2, seed=2))
    checkpoints.wait()
    assert_same(Checkpoints(tmp_path, CONFIG).restore_latest(OPTIMIZER), train_state(2, seed=2))


def test_a_restored_state_can_be_donated(tmp_path):
    with Checkpoints(tmp_path, CONFIG) as checkpoints:
        checkpoints.save(train_state(1))
    restored = Checkpoints(tmp_path, CONFIG).restore_latest(OPTIMIZER)
    step = jax.jit(lambda params: jax.tree.map(lambda x: x + 1, params), donate_argnums=0)
    step(restored.params)
    assert restored.params["embedding"].is_deleted()


def test_a_state_may_be_donated_while_it_is_written(tmp_path):
    state = train_state(1)
    step = jax.jit(lambda params: jax.tree.map(lambda x: x * 0, params), donate_argnums=0)
    with Checkpoints(tmp_path, CONFIG) as checkpoints:
        checkpoints.save(state)
        step(state.params)
        assert state.params["embedding"].is_deleted()
    assert_same(Checkpoints(tmp_path, CONFIG).restore_latest(OPTIMIZER), train_state(1))


def test_a_save_that_fails_is_told_by_the_next_call(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("astra_jax.checkpoints.checkpoint._write_manifest", full)
    checkpoints = Checkpoints(tmp_path, CONFIG)
    checkpoints.save(train_state(1))
    with pytest.raises(OSError, match="no space left"):
        checkpoints.wait()
    assert checkpoints.restore_latest(OPTIMIZER) is None


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("astra_jax.checkpoints.checkpoint.shutil.disk_usage", lambda _: usage)
    with Checkpoints(tmp_path, CONFIG) as checkpoints, pytest.raises(OSError, match=r"expected 0\.0 GB free") as told:
        checkpoints.save(train_state(1))
    assert told.value.errno == errno.ENOSPC
    assert list(tmp_path.rglob("*")) == [tmp_path / "00000001"]


def test_optimiser_state_is_kept_for_the_newest_saves_only_and_weights_for_all(tmp_path):
    checkpoints = Checkpoints(tmp_path, CONFIG, keep_train_states=1)
    for step in (1, 2, 3):
        checkpoints.save(train_state(step, seed=step))
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2, 3]
    assert not (tmp_path / "00000002" / "train").exists()
    config, params = load_params(tmp_path / "00000001")
    assert config == CONFIG
    np.testing.assert_array_equal(params["embedding"], train_state(1, seed=1).params["embedding"])


def test_old_weights_go_when_asked_to(tmp_path):
    checkpoints = Checkpoints(tmp_path, CONFIG, keep_train_states=1, keep_weights=2)
    for step in (1, 2, 3):
        checkpoints.save(train_state(step))
    checkpoints.wait()
    assert checkpoints.steps() == [2, 3]


def test_half_of_a_later_save_keeps_no_whole_state_from_being_kept(tmp_path):
    with Checkpoints(tmp_path, CONFIG, keep_train_states=1, keep_weights=1) as checkpoints:
        checkpoints.save(train_state(2))
    (tmp_path / "00000003" / "params").mkdir(parents=True)  # the run was killed in this save, and resumed from step 2
    with Checkpoints(tmp_path, CONFIG, keep_train_states=1, keep_weights=1) as checkpoints:
        assert_same(checkpoints.restore_latest(OPTIMIZER), train_state(2))
        checkpoints.save(train_state(2, seed=1))
    assert_same(Checkpoints(tmp_path, CONFIG).restore_latest(OPTIMIZER), train_state(2, seed=1))


def damage(path, how):
    arrays = [file for file in (path / "params").rglob("*") if file.is_file() and file.stat().st_size > 500]
    if how == "a flipped bit":
        data = bytearray(arrays[0].read_bytes())
        data[len(data) // 2] ^= 1
        arrays[0].write_bytes(data)
    elif how == "a truncated file":
        os.truncate(arrays[0], 100)
    elif how == "a missing file":
        arrays[0].unlink()
    elif how == "no manifest":
        (path / "train.whole.json").unlink()
    elif how == "a changed position":
        (path / "train.json").write_text(json.dumps({"step": 2, "data_position": {"next_record": 0}}))


@pytest.mark.parametrize(
    "how", ["a flipped bit", "a truncated file", "a missing file", "no manifest", "a changed position"]
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_that_names_it(tmp_path, caplog, how):
    checkpoints = Checkpoints(tmp_path, CONFIG)
    checkpoints.save(train_state(1))
    path = checkpoints.save(train_state(2))
    checkpoints.wait()
    damage(path, how)
    with caplog.at_level(logging.WARNING, logger="astra_jax.checkpoints.checkpoint"):
        assert_same(checkpoints.restore_latest(OPTIMIZER), train_state(1))
    assert str(tmp_path / "00000002") in caplog.text


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    with Checkpoints(tmp_path, CONFIG) as checkpoints:
        checkpoints.save(train_state(1))
    other = CONFIG.model_copy(update={"num_layers": 3})
    with pytest.raises(CheckpointError, match=r"holds another model.*num_layers=3.*num_layers=2"):
        Checkpoints(tmp_path, other).restore_latest(OPTIMIZER)


def test_loading_weights_that_are_not_whole_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"found no params\.json"):
        load_params(tmp_path)
    save_params(tmp_path / "weights", CONFIG, init_params(CONFIG, 0))
    (tmp_path / "weights" / "params.whole.json").unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        load_params(tmp_path / "weights")


_SAVE_FOREVER = """
import itertools, sys
sys.path[:0] = [{tests!r}, {repository!r}]
from test_checkpoint import CONFIG, train_state
from astra_jax.checkpoints.checkpoint import Checkpoints
checkpoints = Checkpoints({directory!r}, CONFIG)
for step in itertools.count(1):
    checkpoints.save(train_state(step))  # returns when the save before is whole
    print(step - 1, flush=True)
"""


def test_kill_9_in_the_middle_of_a_save_never_leaves_half_a_state_that_counts(tmp_path):
    tests = os.path.dirname(__file__)
    repository = os.path.dirname(os.path.dirname(tests))
    script = _SAVE_FOREVER.format(tests=tests, repository=repository, directory=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    saved = next(step for step in map(int, process.stdout) if step > 0)  # the first save is whole by then
    time.sleep(0.35)  # somewhere inside a later save
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    saved = int(rest.split()[-1]) if rest.split() else saved
    restored = Checkpoints(tmp_path, CONFIG).restore_latest(OPTIMIZER)
    assert restored.step >= saved
    assert_same(restored, train_state(restored.step))


_SAVE_WITH_A_SLOW_DISK = """
import sys, time
from astra_jax.checkpoints import checkpoint
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.mesh.hosts import join_hosts
from astra_jax.mesh.placement import place_params
from tests.astra_jax.checkpoints.test_checkpoint import CONFIG, train_state

join_hosts()
write = checkpoint._write_manifest

def write_slowly(*arguments):
    time.sleep(1)
    write(*arguments)

checkpoint._write_manifest = write_slowly
mesh = make_mesh(MeshConfig(fsdp=2))
state = train_state(1)
with checkpoint.Checkpoints(sys.argv[1], CONFIG) as checkpoints:
    path = checkpoints.save(checkpoint.TrainState(1, place_params(state.params, mesh), {}, {}))
    checkpoints.wait()
    assert (path / "train.whole.json").exists()
"""


@pytest.mark.slow
def test_no_host_goes_on_from_waiting_before_the_save_is_whole(tmp_path):
    with two_hosts(["-c", _SAVE_WITH_A_SLOW_DISK, str(tmp_path)], devices_per_host=1) as processes:
        finish(processes)


def test_a_write_that_the_disk_refuses_is_an_os_error_that_names_the_checkpoint(tmp_path):
    refused = "RESOURCE_EXHAUSTED: Failed to write 2347 bytes to file 11: No space left on device [os_error_code='28']"
    with pytest.raises(OSError, match="No space left on device") as told, told_as_os_errors(tmp_path):
        raise ValueError(refused)
    assert (told.value.errno, told.value.filename) == (28, str(tmp_path))
    with pytest.raises(ValueError, match=r"^a bug$"), told_as_os_errors(tmp_path):
        raise ValueError("a bug")
