"""A second run in a folder ends in one line and touches nothing; however the first one dies, the folder is free."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from astra_jax.cli.command import main
from synthesis.run.destination import DestinationRefused
from synthesis.run.lock import AnotherRun, run_lock

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    ("command", "lock"),
    [
        (["quickstart", "--out", "OUT"], "OUT.lock"),
        (["synthesize", "tools", "SRC", "--out", "OUT"], "OUT.lock"),
        (["synthesize", "trajectories", f"{CONFIGS}/tiny_trajectories.toml", "out=OUT"], "OUT.lock"),
        (["synthesize", "environments", f"{CONFIGS}/tiny_environments.toml", "out=OUT"], "OUT.lock"),
        (["sft", f"{CONFIGS}/tiny_sft.toml", "out=OUT"], "OUT/.lock"),
        (["rl", f"{CONFIGS}/tiny_rl.toml", "out=OUT"], "OUT/.lock"),
        (["convert", "hf-to-orbax", "SRC", "OUT"], "OUT.lock"),
        (["convert", "orbax-to-hf", "SRC", "OUT"], "OUT.lock"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_every_command_that_makes_or_trains_is_refused_while_another_does(tmp_path, capsys, command, lock):
    def named(argument):
        return argument.replace("OUT", f"{tmp_path}/out").replace("SRC", f"{tmp_path}/source")

    with run_lock(Path(named(lock))):
        before = contents(tmp_path)
        assert main([named(argument) for argument in command]) == 2
        assert contents(tmp_path) == before
    error = capsys.readouterr().err
    assert error.startswith("astra: AnotherRun: ")
    assert error.count("\n") == 1


def test_a_file_of_the_users_that_has_the_name_of_a_lock_is_left_alone(tmp_path, capsys):
    lock = tmp_path / "poetry.lock"
    lock.write_text("[[package]]")
    assert main(["convert", "hf-to-orbax", str(tmp_path / "source"), str(tmp_path / "poetry")]) == 2
    assert "this file is not the lock of an earlier run" in capsys.readouterr().err
    assert lock.read_text() == "[[package]]"


def test_the_file_is_taken_away_with_the_lock_also_when_the_run_fails(tmp_path):
    lock = tmp_path / "deep" / "lock"
    with pytest.raises(FileExistsError), run_lock(lock):
        lock.touch(exist_ok=False)  # it is there
    assert not lock.exists()


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from synthesis.run.lock import run_lock
with run_lock(Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_child_that_outlives_its_run_does_not_hold_the_lock(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(AnotherRun, match=f"in use by process {holder.pid} on "), run_lock(path):
                pass
            holder.kill()
            holder.wait()
            os.kill(child, 0)  # it lives
            with run_lock(path):
                assert path.read_text().startswith(f"process {os.getpid()} on ")
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


CONTENDER = """
import sys, time
from pathlib import Path
from synthesis.run.lock import AnotherRun, run_lock
path, alone = Path(sys.argv[1]), Path(sys.argv[1] + ".alone")
held, end = 0, time.monotonic() + 1
while time.monotonic() < end:
    try:
        with run_lock(path):
            alone.touch(exist_ok=False)
            held += 1
            alone.unlink()
    except AnotherRun:
        pass
assert held, "never held it"
"""


def test_no_two_hold_the_lock_while_it_is_taken_and_let_go_of_all_the_time(tmp_path):
    command = [sys.executable, "-c", CONTENDER, str(tmp_path / "new" / "lock")]
    contenders = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [contender.communicate(timeout=60)[1] for contender in contenders]
    assert [contender.returncode for contender in contenders] == [0] * 4, "\n".join(errors)


def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    folder, made = tmp_path / "new", []

    def mkdir(self, **_):
        made.append(self)
        if len(made) == 1:
            raise FileExistsError(self)  # it was there, and is not any more
        os.mkdir(self)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with run_lock(folder / "lock"):
        assert made == [folder, folder]


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("lock", ["new/lock", "new/run/lock", "new"])
def test_a_file_in_the_place_of_a_folder_is_not_waited_for(tmp_path, is_link, lock):
    if is_link:
        (tmp_path / "new").symlink_to("no/where")
    else:
        (tmp_path / "new").write_text("mine")
    with pytest.raises((OSError, DestinationRefused)), run_lock(tmp_path / lock):
        pass


def test_a_file_system_without_locks_is_told_of_and_used(tmp_path, monkeypatch, capsys):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    code = errno.ENOSYS
    monkeypatch.setattr(fcntl, "flock", flock)
    with run_lock(tmp_path / "lock"):
        pass
    assert "no lock (Function not implemented); see to it that no other run writes here" in capsys.readouterr().err
    code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"), run_lock(tmp_path / "lock"):
        pass
