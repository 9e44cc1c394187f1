"""A harness's program: its files, rights and network, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from astra_jax.benchmarks.harness_process import run_harness
from astra_jax.benchmarks.results import BenchmarkFailed
from sandbox import program
from sandbox.contract.bounds import PROCESSES
from sandbox.contract.walls import CHANGES, FILES, NETWORK, SECRETS
from sandbox.jail import seccomp
from tests.astra_jax.benchmarks.scripted_endpoint import reply, scripted_endpoint

ROOT = Path(__file__).parents[3]
PYTHON = os.path.realpath(sys.executable)


async def run(folder: Path, *command: str, **more: Any) -> list[str]:
    """Run a program in a folder, or a line of the shell; return the lines of its log."""
    words = ["/bin/sh", "-c", *command] if len(command) == 1 else list(command)
    log = more.pop("log", folder / "log")
    await run_harness(words, folder=folder, log=log, variables=more.pop("variables", {}), **more)
    return log.read_text().splitlines() if log.exists() else []


async def test_it_sees_none_of_our_variables_and_is_told_by_its_last_line(tmp_path, monkeypatch):
    monkeypatch.setenv("ASTRA_SERVE_KEY", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    with pytest.raises(BenchmarkFailed, match=r"sh -c ended with exit code 3: yes; see .*log"):
        await run(tmp_path, "env; cat >&2; exit 3", variables={"ONE": "1"}, said="yes\n")
    printed = (tmp_path / "log").read_text()
    assert {"ONE=1", f"HOME={tmp_path}/home"} < set(printed.splitlines())
    assert "secret" not in printed
    assert "http://proxy" not in printed


async def test_cancelled_it_ends_with_all_that_it_started(tmp_path):
    seconds = f"300.{os.getpid()}1"  # a name for processes whose numbers are those of another namespace
    running = asyncio.ensure_future(run(tmp_path, f"sleep {seconds} & touch started; wait"))
    while not sleepers(seconds):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended(seconds)


@pytest.mark.parametrize("killed", ["who evaluates", "its launcher"])
def test_it_ends_with_all_that_it_started_when_another_is_killed(tmp_path, killed):
    seconds = f"300.{os.getpid()}2"
    script = (
        "import asyncio, pathlib\n"
        "from astra_jax.benchmarks.harness_process import run_harness\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        # One that would outlive its shell, and that no signal to the group would reach.
        f"command = ['/bin/sh', '-c', 'setsid sleep {seconds} & wait']\n"
        "asyncio.run(run_harness(command, folder=folder, log=folder / 'log', variables={}))"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL) as evaluating:
        while not sleepers(seconds):
            assert evaluating.poll() is None
            time.sleep(0.01)
        (launcher,) = psutil.Process(evaluating.pid).children()
        os.kill(evaluating.pid if killed == "who evaluates" else launcher.pid, signal.SIGKILL)
        assert ended(seconds)
        assert evaluating.wait() == (-signal.SIGKILL if killed == "who evaluates" else 1)


def sleepers(seconds: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", seconds]]


def ended(seconds: str) -> bool:
    deadline = time.monotonic() + 10
    while sleepers(seconds) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not sleepers(seconds)


TRIES = """
import os, pathlib, socket, sys

def tried(what):
    try:
        return what()
    except OSError as error:
        return type(error).__name__

def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.connect(address)
    return "connected"

secret, elsewhere, port, path = sys.argv[1:]
for name, what in {
    "read": lambda: pathlib.Path(secret).read_text(),
    "write": lambda: pathlib.Path(elsewhere).write_text("mine"),
    "own": lambda: pathlib.Path("mine").write_text("mine"),
    "port": lambda: connect(socket.AF_INET, ("127.0.0.1", int(port))),
    "socket": lambda: connect(socket.AF_UNIX, path),
    "abstract": lambda: connect(socket.AF_UNIX, chr(0) + "astra-jax-test"),
    "process": lambda: os.kill(int(os.environ["OTHER"]), 0),
}.items():
    print(name, tried(what))
"""


async def test_it_reads_no_home_writes_nowhere_else_and_has_no_network(tmp_path):
    folder, home = tmp_path / "run", tmp_path / "home"
    for each in (folder, home):
        each.mkdir()
    (home / "secret").write_text("secret")
    (folder / "tries.py").write_text(TRIES)
    with (
        socket_at(f"{home}/socket"),
        socket_at("\0astra-jax-test"),
        scripted_endpoint(lambda body: reply("hi")) as other,
    ):
        arguments = [f"{home}/secret", f"{home}/mine", other.url.rpartition(":")[2], f"{home}/socket"]
        printed = await run(folder, PYTHON, "tries.py", *arguments, variables={"OTHER": str(os.getpid())})
    assert printed == [
        "read FileNotFoundError",
        "write FileNotFoundError",
        "own 4",
        "port ConnectionRefusedError",
        "socket FileNotFoundError",
        "abstract ConnectionRefusedError",
        "process ProcessLookupError",
    ]
    assert (folder / "mine").stat().st_uid == os.geteuid()
    assert not (home / "mine").exists()


async def test_no_link_that_a_program_leaves_leads_this_process_elsewhere(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_text("ours\n")
    (folder / "known").symlink_to(tmp_path)
    links = (
        f"ln -s {elsewhere} results; mkdir deep; mkfifo deep/pipe; ln -s {tmp_path} deep/folder; echo kept > deep/file"
    )
    for _ in range(2):
        await run(folder, f"rm log; ln -s {elsewhere} log; {links}; exit 0")
        assert sorted(path.name for path in folder.rglob("*")) == ["deep", "file", "home", "known"]
    assert elsewhere.read_text() == "ours\n"
    await run(folder, "rm -f known; ln -s /usr known", log=tmp_path / "log")
    assert not (folder / "known").is_symlink()
    (folder / "log").symlink_to(elsewhere)
    with pytest.raises(BenchmarkFailed, match="symbolic links; remove it"):
        await run(folder, "echo theirs")
    assert elsewhere.read_text() == "ours\n"


async def test_a_machine_that_cannot_confine_it_does_not_run_it(tmp_path, monkeypatch):
    with pytest.raises(BenchmarkFailed, match="a program did not begin: FileNotFoundError"):
        await run(tmp_path, "/nowhere/at-all", "x")
    # A launcher that is refused its namespaces, as by a container: inside, user namespaces are used up.
    refused = program._START.replace(
        "program.main()",
        "linux = program.linux; linux.unshare = lambda flags: (_ for _ in ()).throw(PermissionError(1, 'unshare')); "
        "program.main()",
    )
    monkeypatch.setattr(program, "_START", refused)
    with pytest.raises(
        BenchmarkFailed, match=r"cannot confine programs.*: PermissionError.*unshare.*the harness was not run"
    ) as one:
        await run(tmp_path, "touch ran")
    assert "\n" not in str(one.value)
    monkeypatch.setattr(program.sys, "platform", "darwin")
    with pytest.raises(BenchmarkFailed, match=r"cannot confine programs.*: darwin; .*the harness was not run"):
        await run(tmp_path, "touch ran")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("home", [f"{sys.base_prefix}/lib", "/usr/home/somebody"])
async def test_a_home_within_the_interpreters_folders_is_not_shown_to_it(tmp_path, monkeypatch, home):
    monkeypatch.setenv("HOME", home)
    with pytest.raises(BenchmarkFailed, match=r"holds the user's home .*the harness was not run"):
        await run(tmp_path, "touch ran")
    assert not (tmp_path / "ran").exists()


@contextlib.contextmanager
def socket_at(address: str):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(address)
        listening.listen()
        yield


# --- its system calls ---

COLUMN = 0 if platform.machine() == "x86_64" else 1
OPEN = seccomp.NUMBERS.keys() - (seccomp.ZYGOTE.keys() - seccomp.PROGRAMS.keys() - seccomp._WITH_ARGUMENTS.keys())
CLOSED = sorted({*range(335), *range(424, 470)} - {seccomp.NUMBERS[name][COLUMN] for name in OPEN})

# Returns the calls that were not refused with EPERM.
EVERY_CLOSED_CALL = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
found = []
for number in {CLOSED}:
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
    if result != -1 or ctypes.get_errno() != errno.EPERM: found.append([number, result, ctypes.get_errno()])
return found
"""


def function(body: str) -> str:
    return "def f(**arguments):\n" + "\n".join(f"    {line}" for line in body.strip().splitlines())


async def value_of(tmp_path, source: str):
    """Return the value of a source's function, run as a program of a harness."""
    (tmp_path / "program.py").write_text(f"{source}\nimport json\nprint(json.dumps(f()))\n")
    return json.loads((await run(tmp_path, PYTHON, "program.py"))[-1])


async def test_every_closed_call_is_refused(tmp_path):
    assert await value_of(tmp_path, function(EVERY_CLOSED_CALL)) == []


# A program has child processes, and sockets within its own network: these promises are made about tools alone.
OF_TOOLS_ALONE = {
    "Unix sockets are forbidden", "listening is forbidden", "fork is forbidden", "programs are forbidden",
    "exec is forbidden", "spawn is forbidden", "multiprocessing is forbidden", "killing all processes is forbidden",
    "killing the parent is forbidden", "all threads of a call have its 64 descriptors together",
    "nothing of the host can be opened",
}  # fmt: skip
FORBIDDEN = {
    each.name: each.sources[-1]
    for each in (*FILES, *CHANGES, *NETWORK, *SECRETS, *PROCESSES)
    if ("forbidden" in each.kinds or each.value == []) and each.name not in OF_TOOLS_ALONE
}
BREAK_PROMISES = """
import os
broken = []
for name, source in SOURCES.items():
    if not (child := os.fork()):
        space = {}
        exec(source, space)
        try: kept = space['f']() == []
        except (OSError, ValueError): kept = True
        os._exit(not kept)
    if os.waitpid(child, 0)[1]: broken.append(name)
return broken
"""


async def test_a_program_is_refused_all_that_a_tool_is(tmp_path):
    assert len(FORBIDDEN) > 20
    source = f"SOURCES = {FORBIDDEN!r}\n{function(BREAK_PROMISES)}"
    assert await value_of(tmp_path, source) == []


async def test_a_program_is_an_unprivileged_user_and_its_files_are_ours(tmp_path):
    body = "import os\nos.makedirs('deep/er')\nopen('deep/er/file', 'w').close()\nos.symlink('/usr', 'deep/link')\n"
    assert await value_of(tmp_path, function(f"{body}return [*os.getresuid(), *os.getresgid()]")) == [65534] * 6
    for path in (tmp_path, *tmp_path.rglob("*")):
        assert path.lstat().st_uid == os.geteuid(), path
    assert os.stat("/usr").st_uid == 0
