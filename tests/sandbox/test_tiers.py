"""The tiers of isolation where less is allowed: simulated containers, ordinary users, refusals."""

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sandbox.client import SandboxClient
from sandbox.contract.bounds import PROCESSES
from sandbox.contract.promises import PROMISES
from sandbox.contract.walls import CHANGES, LEFTOVERS, NETWORK, SECRETS
from sandbox.isolation import Tier
from sandbox.jail import linux
from sandbox.jail.limits import THREADS_OF_A_CALL
from sandbox.local import local_sandbox

ROOT = Path(__file__).parent.parent.parent
IS_ROOT = os.geteuid() == 0
# What Docker's default profile refuses to a container without CAP_SYS_ADMIN, on x86-64.
DOCKER_REFUSES = {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155}
LANDLOCK = {"landlock_create_ruleset": 444}
LAUNCH = """
import errno, json, os, struct, sys
sys.path.insert(0, {root!r})
from sandbox.jail import linux
refused, arguments = json.loads(sys.argv[1]), sys.argv[2:]
word = lambda code, k, t=0, f=0: struct.pack("=HBBI", code, t, f, k)
program = [word(0x20, 0)]
for number, answer in refused:
    program += [word(0x15, number, 0, 1), word(0x06, 0x00050000 | answer)]
program += [word(0x15, 56, 0, 3), word(0x20, 16), word(0x45, 0x7E020000, 0, 1), word(0x06, 0x00050000 | errno.EPERM)]
program.append(word(0x06, 0x7FFF0000))
code = b"".join(program)
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
import ctypes, resource
if {most_threads} >= 0: resource.setrlimit(resource.RLIMIT_NPROC, ({most_threads},) * 2)
buffer = ctypes.create_string_buffer(code, len(code))
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))
loaded = Program(len(code) // 8, ctypes.addressof(buffer))
assert linux.libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(loaded), 0, 0) == 0
os.execv(sys.executable, [sys.executable, *arguments])
"""


def world_readable_python() -> str:
    """An interpreter that an ordinary user can run too."""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    say = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in (own, shutil.which("python3", path="/usr/bin")):
        if python and not python.startswith("/root"):
            version = subprocess.run([python, "-c", say], capture_output=True, text=True, check=True).stdout.strip()
            if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
                return python
    pytest.skip("no Python of this version that every user may read")


def environment() -> dict[str, str]:
    """Lets that interpreter find the packages of this one."""
    packages = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    return {"PYTHONPATH": packages, "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}


def server(
    python: str, *options: str, refused: dict[str, int] | None = None, as_user: bool = False, most_threads: int = -1
) -> subprocess.Popen[str]:
    """A service, in a simulated container, possibly as the user `nobody`, who may have so many threads in all."""
    arguments = ["-m", "sandbox.server", "--port", "0", "--workers", "1", *options]
    command = [python, *arguments]
    if refused is not None:
        launch = LAUNCH.format(root=str(ROOT), most_threads=most_threads)
        numbers = [[number, 38 if name in LANDLOCK else 1] for name, number in refused.items()]
        command = [python, "-c", launch, json.dumps(numbers), *arguments]
    user = {"user": 65534, "group": 65534, "extra_groups": []} if as_user and IS_ROOT else {}
    return subprocess.Popen(
        command, cwd="/", env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **user
    )  # type: ignore[call-overload, no-any-return]


def url_of(process: subprocess.Popen[str]) -> str:
    """Where it listens, as it says first."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "sandbox on http" in line, f"the service did not start: {line}{process.communicate()[1]}"
    return line.split("sandbox on ")[1].split(",")[0]


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate(timeout=20)


def datagrams_that_arrive(client: SandboxClient) -> list[bytes]:
    """What a tool gets to sockets of the host that everybody may write to: one with a path, one abstract."""
    promises = [promise for promise in NETWORK if promise.name.startswith("a datagram to")]
    assert len(promises) == 2
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        os.chmod(name, 0o755)
        arrived = []
        for promise, address in zip(promises, (f"{name}/socket", f"\0{name}"), strict=True):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            listener.bind(address)
            listener.setblocking(False)
            if not address.startswith("\0"):
                os.chmod(address, 0o777)
            assert dataclasses.replace(promise, arguments={"address": address}).check(client) is None
            with contextlib.suppress(BlockingIOError):
                arrived.append(listener.recv(9))
        return arrived


x86_only = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the simulated container speaks x86-64")
WITHOUT_NAMESPACES = [promise for promise in PROMISES if not promise.needs_namespaces]
OF_THE_WALLS = [*PROCESSES, *CHANGES, *NETWORK, *SECRETS, *LEFTOVERS]  # which do not take seconds


@x86_only
@pytest.mark.parametrize("as_user", [False, True])
def test_without_namespaces_landlock_and_seccomp_hold_the_same_promises(as_user: bool) -> None:
    promises = [promise for promise in WITHOUT_NAMESPACES if as_user or promise in OF_THE_WALLS]
    process = server(world_readable_python(), refused=DOCKER_REFUSES, as_user=as_user)
    try:
        url = url_of(process)
        health = httpx.get(f"{url}/health").json()
        assert health["tier"] == Tier.LANDLOCK
        assert "unshare" in health["stronger_tiers"]["namespaces"]
        with SandboxClient(url) as client:
            checked = ((promise.name, promise.check(client, overshoot_seconds=5.0)) for promise in promises)
            broken = {name: found for name, found in checked if found}
            assert datagrams_that_arrive(client) == []
        assert broken == {}
        with file_of_the_service(as_user=True) as path:  # as root or not: without namespaces tools are this user
            before = path.stat()
            with SandboxClient(url) as client:
                attack = dataclasses.replace(CHANGES[0], arguments={"path": str(path)})
                assert attack.check(client) is None
                assert client.execute(OPEN_TO_CUT_OFF, "f", {}).value == [1, 1]  # seccomp's EPERM, on any Landlock
            assert path.stat() == before
            assert path.parent.stat().st_mode & 0o777 == 0o755
    finally:
        stop(process)


# Threads of the tools' own user which are none of the sandbox's.
CROWD = """
import sys, threading, time
threading.stack_size(65536)
for _ in range(400): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("there", flush=True)
sys.stdin.read()
"""
HONEST_THREADS = """
from concurrent.futures import ThreadPoolExecutor
def f():
    with ThreadPoolExecutor(8) as pool: return sum(pool.map(abs, range(-9, 1)))
"""
ENDLESS_THREADS = """
import threading, time
threading.stack_size(65536)
def f():
    try:
        while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError: return threading.active_count()
"""


@x86_only
@pytest.mark.parametrize("as_user", [False, True])
def test_the_threads_of_others_are_never_counted_against_a_tool(as_user: bool) -> None:
    process = server(world_readable_python(), refused=DOCKER_REFUSES, as_user=as_user)
    crowd = None
    try:
        with SandboxClient(url_of(process)) as client:
            crowd = start_crowd()
            assert client.execute(HONEST_THREADS, "f", {}).value == 45
            assert 32 < client.execute(ENDLESS_THREADS, "f", {}).value <= 128  # its own are
            assert client.execute(HONEST_THREADS, "f", {}).value == 45
    finally:
        if crowd is not None:
            crowd.communicate()
        stop(process)


def test_the_threads_of_neighbours_are_never_counted_against_a_call() -> None:
    """Four calls of one worker start as many threads as they are given, while three others want eight each."""
    hold = "\ndef g():\n    started = f()\n    time.sleep(1)\n    return started\n"
    honest = "import time\n" + HONEST_THREADS + "\ndef g():\n    time.sleep(0.5)\n    return f()\n"
    with local_sandbox(workers=1) as url, SandboxClient(url) as client, ThreadPoolExecutor(7) as asking:
        bombs = [asking.submit(client.execute, ENDLESS_THREADS + hold, "g", {}) for _ in range(4)]
        others = [asking.submit(client.execute, honest, "g", {}) for _ in range(3)]
        assert [call.result().value for call in others] == [45] * 3
        assert [call.result().value for call in bombs] == [1 + THREADS_OF_A_CALL] * 4


@x86_only
def test_a_thread_that_the_user_has_no_room_for_is_the_services_failure() -> None:
    """The user may have so many threads and no more, and others take the last ones while a call runs."""
    uid = 65534 if IS_ROOT else os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        filled = Path(name) / "filled"
        most = threads_of(uid) + 250
        process = server(world_readable_python(), refused=DOCKER_REFUSES, as_user=True, most_threads=most)
        crowd = None
        try:
            url = url_of(process)
            source = f"import os, time\n{HONEST_THREADS}\ndef g(path):\n"
            source += "    while not os.path.exists(path): time.sleep(0.01)\n    return f()\n"
            call = {
                "source": source,
                "function": "g",
                "arguments": {"path": str(filled)},
                "limits": {"wall_seconds": 50},
            }
            with ThreadPoolExecutor(1) as asking:
                reply = asking.submit(httpx.post, f"{url}/v1/execute", json=call, timeout=60)
                while httpx.get(f"{url}/health").json()["queue"]["in_flight"] == 0:
                    assert not reply.done()
                crowd = start_crowd()
                filled.touch()
                assert (reply.result().status_code, "no process or thread to give" in reply.result().text) == (
                    503,
                    True,
                )
            crowd.communicate()
            assert httpx.post(f"{url}/v1/execute", json=call, timeout=60).json()["value"] == 45
        finally:
            if crowd is not None:
                crowd.communicate()
            stop(process)


def threads_of(uid: int) -> int:
    """How many threads a user has, all of its processes together."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == uid or f"Uid:\t{uid}\t" in (process / "status").read_text():
                found += len(list((process / "task").iterdir()))
    return found


def start_crowd() -> subprocess.Popen[bytes]:
    """A process of the tools' own user with 400 threads."""
    user = {"user": 65534, "group": 65534, "extra_groups": []} if IS_ROOT else {}
    command = [world_readable_python(), "-c", CROWD]
    crowd = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **user)  # type: ignore[call-overload]
    crowd.stdout.readline()
    return crowd  # type: ignore[no-any-return]


# Landlock before its third version lets a file be cut off that may be read.
OPEN_TO_CUT_OFF = """
import os
def f():
    found = []
    for flags in (os.O_RDONLY | os.O_TRUNC, os.O_RDWR):
        try: os.open(os.__file__, flags)
        except OSError as error: found.append(error.errno)
    return found
"""


@contextlib.contextmanager
def file_of_the_service(*, as_user: bool) -> Iterator[Path]:
    """A file in a folder, both owned by the user who runs the service."""
    with tempfile.TemporaryDirectory(prefix="of-the-service-") as name:
        path = Path(name) / "checkpoint"
        path.write_text("weights")
        for one, mode in ((path, 0o600), (path.parent, 0o755)):
            one.chmod(mode)
            if as_user and IS_ROOT:
                os.chown(one, 65534, 65534)
        yield path


def test_an_ordinary_user_has_the_strongest_tier() -> None:
    if not IS_ROOT:
        pytest.skip("this run is by an ordinary user already: the other tests show it")
    process = server(world_readable_python(), as_user=True)
    try:
        url = url_of(process)
        assert httpx.get(f"{url}/health").json()["tier"] == Tier.NAMESPACES
        with SandboxClient(url) as client:
            source = (
                "import os\ndef f():\n    return [os.getuid(), os.listdir('/tmp'), open('/tmp/x', 'w').write('abc')]\n"
            )
            assert client.execute(source, "f", {}).value == [65534, [], 3]
            with file_of_the_service(as_user=True) as path:
                before = path.stat()
                attack = dataclasses.replace(CHANGES[0], arguments={"path": str(path)})
                assert attack.check(client) is None
                assert path.stat() == before
    finally:
        stop(process)


@x86_only
def test_below_the_minimum_tier_the_service_refuses_and_says_what_is_missing() -> None:
    process = server(world_readable_python(), refused={**DOCKER_REFUSES, **LANDLOCK})
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "refuses to start: no isolation of at least the tier `landlock`" in log
    assert "unshare(0x10000000): Operation not permitted" in log
    assert "this kernel has no Landlock" in log
    assert "to have it: Linux 5.13 or newer" in log


@x86_only
def test_a_minimum_of_namespaces_is_not_met_by_landlock() -> None:
    process = server(world_readable_python(), "--min-tier", "namespaces", refused=DOCKER_REFUSES)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "at least the tier `namespaces`" in log
    assert "user.max_user_namespaces" in log


def test_a_filter_that_lets_a_call_through_is_caught_by_the_self_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "sandbox", tmp_path / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "sandbox" / "jail" / "seccomp.py"
    path.write_text(path.read_text().replace("getrandom 318 278,", "getrandom 318 278, bpf 321 280,"))
    command = [sys.executable, "-m", "sandbox.server", "--port", "0", "--workers", "1", "--min-tier", "namespaces"]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "system calls off the list are refused: expected the value [], found ['bpf']" in result.stderr


@x86_only
@pytest.mark.parametrize("call", ["chmod 90 -", "fchmodat 268 53"])
def test_landlock_is_refused_when_the_tools_user_may_change_its_files(call: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        paths = environment()["PYTHONPATH"].split(os.pathsep)
        shutil.copytree(ROOT / "sandbox", folder / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / "sandbox" / "jail" / "seccomp.py"
        text = path.read_text()
        assert f"{call}," in text.partition("WITH_FILES")[2]
        path.write_text(text.replace("getrandom 318 278,", f"getrandom 318 278, {call},"))
        numbers = json.dumps([[number, 1] for number in DOCKER_REFUSES.values()])
        arguments = ["-m", "sandbox.server", "--port", "0", "--workers", "1"]
        result = subprocess.run(
            [world_readable_python(), "-c", LAUNCH.format(root=name, most_threads=-1), numbers, *arguments],
            cwd=name,
            # The packages may lie in a .venv below ROOT: they stay where they are.
            env={**environment(), "PYTHONPATH": os.pathsep.join(name if p == str(ROOT) else p for p in paths)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 1
    assert f"found ['{call.split()[0]}']" in result.stderr
    assert "no file outside of /tmp gets another mode" in result.stderr


def test_landlock_is_there_or_reported_missing() -> None:
    assert linux.landlock_abi() >= 0
