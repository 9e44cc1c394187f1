"""A second run in a folder ends in one line and touches nothing; however the first one dies, the folder is free."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from astra_jax.cli.command import main
from synthesis.run.destination import DestinationRefused
from synthesis.run.lock import AnotherRun, run_lock
from tests.synthesis.journals import num_finished

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
TRAJECTORIES = ["synthesize", "trajectories", f"{CONFIGS}/tiny_trajectories.toml", "mcp_servers=[]", "count=200"]


def astra(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    command = [sys.executable, "-m", "astra_jax.cli", *arguments]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, **pipes, text=True)


@contextlib.contextmanager
def stopped_at_work(processes: list[subprocess.Popen[str]], is_at_work: Callable[[], bool]) -> Iterator[None]:
    """Processes that stand still in the middle of their work, and are killed -9 at the end of the block."""
    deadline = time.monotonic() + 120
    try:
        while not is_at_work():
            assert [process.poll() for process in processes] == [None] * len(processes), processes[0].communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


def assert_refused(process: subprocess.Popen[str], lock: Path, holder: subprocess.Popen[str]) -> None:
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 2, error
    assert error == (
        f"astra: AnotherRun: expected no other run in this folder, found process {holder.pid} on "
        f"{socket.gethostname()}, which holds {lock}; wait until it ends, or choose another folder\n"
    )


@pytest.mark.slow
def test_a_second_synthesis_is_refused_until_the_first_is_killed(tmp_path):
    folder, lock = tmp_path / "runs", tmp_path / "runs" / "out.lock"
    command = (*TRAJECTORIES, f"out={folder}/out")
    first = astra(*command)
    with stopped_at_work([first], lambda: num_finished((folder / "out.work").glob("*.sqlite")) >= 30):
        before = contents(folder)
        assert_refused(astra(*command), lock, first)
        assert contents(folder) == before
    assert lock.exists()
    assert main(list(command)) == 0
    assert main([*TRAJECTORIES, f"out={tmp_path}/undisturbed/out"]) == 0
    assert contents(folder) == contents(tmp_path / "undisturbed")


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
    def named(argument: str) -> str:
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
    assert "expected no file, or the lock of an earlier run, found another file" in capsys.readouterr().err
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
            with pytest.raises(AnotherRun, match=f"found process {holder.pid} on "), run_lock(path):
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
held, end = 0, time.monotonic() + 2
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
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    code = errno.ENOSYS
    monkeypatch.setattr(fcntl, "flock", flock)
    with run_lock(tmp_path / "lock"):
        pass
    assert "no lock (Function not implemented); see to it that no other run writes here" in capsys.readouterr().err
    code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"), run_lock(tmp_path / "lock"):
        pass
