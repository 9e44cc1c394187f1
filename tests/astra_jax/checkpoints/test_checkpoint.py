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
    _fault_in_share,
    _files_of_this_host,
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


def test_the_latest_state_comes_back_bit_for_bit_and_can_be_donated(tmp_path):
    checkpoints = Checkpoints(tmp_path, CONFIG)
    assert checkpoints.restore_latest(OPTIMIZER) is None
    checkpoints.save(train_state(1, seed=1))
    checkpoints.save(train_state(2, seed=2))
    checkpoints.wait()
    restored = Checkpoints(tmp_path, CONFIG).restore_latest(OPTIMIZER)
    assert_same(restored, train_state(2, seed=2))
    step = jax.jit(lambda params: jax.tree.map(lambda x: x + 1, params), donate_argnums=0)
    step(restored.params)
    assert restored.params["embedding"].is_deleted()


def test_a_state_may_be_donated_while_it_is_written(tmp_path):
    state = train_state(1)
    step = jax.jit(lambda params: jax.tree.map(lambda x: x * 0, params), donate_argnums=0)
    with Checkpoints(tmp_path, CONFIG) as checkpoints:
        checkpoints.save(state)
        step(state.params)
        # Where its memory is being read, a CPU does not give an array away: gone it is all the same.
        for leaf in jax.tree.leaves(state.params):
            leaf.delete()
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
    with (
        Checkpoints(tmp_path, CONFIG) as checkpoints,
        pytest.raises(OSError, match=r"a checkpoint needs 0\.0 GB, and") as told,
    ):
        checkpoints.save(train_state(1))
    assert told.value.errno == errno.ENOSPC
    assert list(tmp_path.rglob("*")) == [tmp_path / "00000001"]


def test_optimiser_state_is_kept_for_the_newest_saves_only_and_weights_for_all_or_as_many_as_asked(tmp_path):
    checkpoints = Checkpoints(tmp_path / "all", CONFIG)
    few = Checkpoints(tmp_path / "few", CONFIG, keep_weights=2)
    for step in (1, 2, 3):
        checkpoints.save(train_state(step, seed=step))
        few.save(train_state(step))
    checkpoints.wait()
    few.wait()
    assert (checkpoints.steps(), few.steps()) == ([1, 2, 3], [2, 3])
    assert [(tmp_path / "all" / f"0000000{step}" / "train").exists() for step in (1, 2, 3)] == [False, True, True]
    config, params = load_params(tmp_path / "all" / "00000001")
    assert config == CONFIG
    np.testing.assert_array_equal(params["embedding"], train_state(1, seed=1).params["embedding"])


def test_half_of_a_later_save_keeps_no_whole_state_from_being_kept(tmp_path):
    with Checkpoints(tmp_path, CONFIG, keep_weights=1) as checkpoints:
        checkpoints.save(train_state(2))
    for step in (3, 4):  # the run was killed in each of these saves, and resumed from step 2
        (tmp_path / f"0000000{step}" / "params").mkdir(parents=True)
    with Checkpoints(tmp_path, CONFIG, keep_weights=1) as checkpoints:
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
    elif how in ("{}", "half a manif"):
        (path / "params.whole.json").write_text(how)
    elif how == "a changed position":
        (path / "train.json").write_text(json.dumps({"step": 2, "data_position": {"next_record": 0}}))


@pytest.fixture(scope="module")
def two_saves(tmp_path_factory):
    """A folder of the saves of two steps."""
    folder = tmp_path_factory.mktemp("saves")
    with Checkpoints(folder, CONFIG) as checkpoints:
        checkpoints.save(train_state(1))
        checkpoints.save(train_state(2))
    return folder


@pytest.mark.parametrize(
    "how",
    ["a flipped bit", "a truncated file", "a missing file", "no manifest", "a changed position", "{}", "half a manif"],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_that_names_it(tmp_path, two_saves, caplog, how):
    shutil.copytree(two_saves, tmp_path, dirs_exist_ok=True)
    damage(tmp_path / "00000002", how)
    with caplog.at_level(logging.WARNING, logger="astra_jax.checkpoints.checkpoint"):
        assert_same(Checkpoints(tmp_path, CONFIG).restore_latest(OPTIMIZER), train_state(1))
    assert str(tmp_path / "00000002") in caplog.text


def test_of_several_hosts_each_checks_a_share_and_every_file_is_in_one(tmp_path, two_saves):
    path = shutil.copytree(two_saves / "00000001", tmp_path / "00000001")
    files = [path / "params.json", *(file for file in (path / "params").rglob("*") if file.is_file())]
    finders = []
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        faults = [_fault_in_share(path, "params", share, num_shares=3) for share in range(3)]
        (finder,) = (share for share, fault in enumerate(faults) if fault is not None)
        assert faults[finder] == f"{file.relative_to(path)} has another checksum than when it was written"
        finders.append(finder)
        file.write_bytes(whole)
    assert set(finders) == {0, 1, 2}


@pytest.mark.parametrize("host", [0, 1, 2])
def test_the_files_of_a_host_are_known_by_their_folders(tmp_path, monkeypatch, host):
    of_first = ["params/d/1", "params/manifest.ocdbt", "params/ocdbt.process_0/d/1", "params/array_metadatas/process_0"]
    of_third = ["params/ocdbt.process_2/d/1", "params/ocdbt.process_2/manifest", "params/array_metadatas/process_2"]
    for name in (*of_first, *of_third, "params/ocdbt.process_12/d/1", "train/d/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(jax, "process_index", lambda: host)
    found = {file.relative_to(tmp_path).as_posix() for file in _files_of_this_host(tmp_path, "params")}
    assert found == set([of_first, [], of_third][host])


def test_a_checkpoint_of_another_model_is_refused(two_saves):
    other = CONFIG.model_copy(update={"num_layers": 3})
    with pytest.raises(CheckpointError, match=r"holds another model.*num_layers=3.*num_layers=2"):
        Checkpoints(two_saves, other).restore_latest(OPTIMIZER)


def test_loading_weights_that_are_not_whole_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no params\.json"):
        load_params(tmp_path)
    save_params(tmp_path / "weights", CONFIG, init_params(CONFIG, 0))
    (tmp_path / "weights" / "params.whole.json").unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        load_params(tmp_path / "weights")


_SAVE_FOREVER = """
import itertools, pathlib, sys
sys.path[:0] = [{tests!r}, {repository!r}]
from test_checkpoint import CONFIG, train_state
from astra_jax.checkpoints.checkpoint import Checkpoints
checkpoints = Checkpoints(pathlib.Path({directory!r}), CONFIG)
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


_EACH_ITS_OWN = """
import json, sys, time
from pathlib import Path
import jax
from astra_jax.checkpoints import checkpoint
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.mesh.hosts import join_hosts
from astra_jax.mesh.placement import init_optimizer_state, place_params
from tests.astra_jax.checkpoints.test_checkpoint import CONFIG, OPTIMIZER, damage, train_state

join_hosts()
directory, read = Path(sys.argv[1]), []
checksum = checkpoint._crc32

def noted(file):
    read.append(str(file.relative_to(directory)))
    return checksum(file)

def write_slowly(*arguments):
    time.sleep(1)
    write(*arguments)

write, checkpoint._write_manifest, checkpoint._crc32 = checkpoint._write_manifest, write_slowly, noted
mesh = make_mesh(MeshConfig(fsdp=2))
params = place_params(train_state(1).params, mesh)
optimizer_state = init_optimizer_state(OPTIMIZER, params, mesh)
with checkpoint.Checkpoints(directory, CONFIG) as checkpoints:
    for step in (1, 2):
        path = checkpoints.save(checkpoint.TrainState(step, params, optimizer_state, {}))
    checkpoints.wait()
    assert (path / "train.whole.json").exists(), "no host goes on before the save is whole"
saved, read[:] = list(read), []
whole = checkpoints.restore_latest(OPTIMIZER, mesh=mesh)
checked, read[:] = list(read), []
if jax.process_index() == 0:
    damage(path, "a flipped bit")
jax.experimental.multihost_utils.sync_global_devices("damaged")
before = checkpoints.restore_latest(OPTIMIZER, mesh=mesh)
steps = [whole.step, before.step]
told = json.dumps({"saved": saved, "checked": checked, "steps": steps})
Path(f"{directory}-{jax.process_index()}").write_text(told)
"""


@pytest.mark.slow
def test_each_host_sums_up_its_files_and_checks_a_share_and_all_agree(tmp_path):
    """Two saves; when the run resumes every file is read by one host, also a damaged one."""
    folder = tmp_path / "checkpoints"
    with two_hosts(["-c", _EACH_ITS_OWN, str(folder)], devices_per_host=1) as processes:
        errors = finish(processes)
    told = [json.loads((tmp_path / f"checkpoints-{host}").read_text()) for host in range(2)]
    parts = [folder / step / part for step in ("00000001", "00000002") for part in ("params", "train")]
    files = [file for part in parts for file in [part.with_suffix(".json"), *part.rglob("*")] if file.is_file()]
    of_second = [file for file in files if "process_1" in str(file)]
    assert len(of_second) >= 4 * 3, "data, its manifest, and the metadata of the arrays, in each part"
    of_first = [file for file in files if file not in of_second]
    for host, expected in enumerate((of_first, of_second)):
        assert sorted(told[host]["saved"]) == sorted(str(file.relative_to(folder)) for file in expected)
        assert told[host]["checked"]
    newest = sorted(str(file.relative_to(folder)) for file in files if "00000002" in str(file))
    assert sorted(told[0]["checked"] + told[1]["checked"]) == newest
    assert [host["steps"] for host in told] == [[2, 1], [2, 1]]
    assert "has another checksum than when it was written" in errors[0]
    assert not list(folder.rglob("*.host-*"))


def test_a_write_that_the_disk_refuses_is_an_os_error_that_names_the_checkpoint(tmp_path):
    refused = "RESOURCE_EXHAUSTED: Failed to write 2347 bytes to file 11: No space left on device [os_error_code='28']"
    with pytest.raises(OSError, match="No space left on device") as told, told_as_os_errors(tmp_path):
        raise ValueError(refused)
    assert (told.value.errno, told.value.filename) == (28, str(tmp_path))
    with pytest.raises(ValueError, match=r"^a bug$"), told_as_os_errors(tmp_path):
        raise ValueError("a bug")
