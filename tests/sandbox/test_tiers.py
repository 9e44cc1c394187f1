"""The tiers of isolation where less is allowed: simulated containers, ordinary users, refusals."""

import contextlib
import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox.client import SandboxClient
from sandbox.contract.bounds import PROCESSES
from sandbox.contract.promises import PROMISES
from sandbox.contract.walls import CHANGES, LEFTOVERS, NETWORK, SECRETS
from sandbox.isolation import Tier
from sandbox.jail import limits, linux
from sandbox.jail.limits import THREADS_OF_A_CALL
from sandbox.local import local_sandbox
from tests.sandbox.services import (
    AS_TOOLS_USER,
    DOCKER_REFUSES,
    IS_ROOT,
    LANDLOCK,
    altered,
    contained,
    own,
    refusal,
    served,
    world_readable_python,
    x86_only,
)


def require_unchanged_file(client: SandboxClient) -> None:
    """Attack a file of the tools' own user, in a folder of that user."""
    with tempfile.TemporaryDirectory(prefix="of-the-service-") as name:
        path = Path(name) / "checkpoint"
        path.write_text("weights")
        for one, mode in ((path, 0o600), (path.parent, 0o755)):
            one.chmod(mode)
            if IS_ROOT:
                os.chown(one, 65534, 65534)
        before = path.stat(), path.parent.stat().st_mode
        assert dataclasses.replace(CHANGES[0], arguments={"path": str(path)}).check(client) is None
        assert (path.stat(), path.parent.stat().st_mode) == before


WITHOUT_NAMESPACES = [promise for promise in PROMISES if not promise.needs_namespaces]
OF_THE_WALLS = [*PROCESSES, *CHANGES, *NETWORK, *SECRETS, *LEFTOVERS]  # which do not take seconds


@x86_only
@pytest.mark.parametrize("as_user", [False, True])
def test_without_namespaces_landlock_and_seccomp_hold_the_same_promises(as_user):
    promises = [promise for promise in WITHOUT_NAMESPACES if as_user or promise in OF_THE_WALLS]
    with served(**contained(refused=DOCKER_REFUSES, as_user=as_user)) as (url, _):
        health = httpx.get(f"{url}/health").json()
        assert health["tier"] == Tier.LANDLOCK
        assert "unshare" in health["stronger_tiers"]["namespaces"]
        with SandboxClient(url) as client:
            with ThreadPoolExecutor(3) as threads:  # most promises wait
                checked = threads.map(lambda promise: promise.check(client, overshoot_seconds=5.0), promises)
                broken = {promise.name: found for promise, found in zip(promises, checked, strict=True) if found}
            require_unchanged_file(client)
        assert broken == {}


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
NAMED_THREADS = """
import ctypes, threading
def f(name):
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(15, name.encode("latin-1"), 0, 0, 0) == 0, ctypes.get_errno()  # PR_SET_NAME
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return "started"
"""


@x86_only
def test_the_threads_of_others_are_never_counted_against_a_tool():
    container = contained(refused=DOCKER_REFUSES, as_user=True)
    with served(**container) as (url, _), SandboxClient(url) as client, crowd():
        assert client.execute(HONEST_THREADS, "f", {}).value == 45
        assert 32 < client.execute(ENDLESS_THREADS, "f", {}).value <= 128  # its own are
        assert client.execute(HONEST_THREADS, "f", {}).value == 45
        for name in ("\xff", "a\rThreads:\t900", "a\nThreads:\t900"):
            assert client.execute(NAMED_THREADS, "f", {"name": name}).value == "started"
        assert httpx.get(f"{url}/health").json()["workers"]["restarts"] == 0


def test_a_process_is_tried_only_if_the_machine_has_few_threads_left(monkeypatch):
    def none_left():
        raise OSError

    monkeypatch.setattr(linux, "fork", none_left)
    assert limits._has_room(most_threads=1 << 30)
    assert not limits._has_room(most_threads=1)


def test_the_threads_of_neighbours_are_never_counted_against_a_call():
    """Four calls of one worker start as many threads as they are given, while three others want eight each."""
    hold = "\ndef g():\n    started = f()\n    time.sleep(1)\n    return started\n"
    honest = "import time\n" + HONEST_THREADS + "\ndef g():\n    time.sleep(0.5)\n    return f()\n"
    with local_sandbox(workers=1) as url, SandboxClient(url) as client, ThreadPoolExecutor(7) as asking:
        bombs = [asking.submit(client.execute, ENDLESS_THREADS + hold, "g", {}) for _ in range(4)]
        others = [asking.submit(client.execute, honest, "g", {}) for _ in range(3)]
        assert [call.result().value for call in others] == [45] * 3
        assert [call.result().value for call in bombs] == [1 + THREADS_OF_A_CALL] * 4


OPEN_DESCRIPTORS = """
import os, time
def f(seconds):
    time.sleep(seconds)
    found = []
    for number in range(4096):
        try: os.fstat(number)
        except OSError: continue
        found.append(number)
    return found
"""


def test_a_call_has_no_descriptor_of_the_calls_beside_it():
    """Some of the calls of one worker begin while others are at work."""
    with local_sandbox(workers=1) as url, SandboxClient(url) as client, ThreadPoolExecutor(4) as asking:
        (alone,) = {tuple(client.execute(OPEN_DESCRIPTORS, "f", {"seconds": 0}).value)}
        calls = [asking.submit(client.execute, OPEN_DESCRIPTORS, "f", {"seconds": i / 20}) for i in range(12)]
        assert [tuple(call.result().value) for call in calls] == [alone] * 12


@x86_only
def test_a_thread_that_the_user_has_no_room_for_is_the_services_failure():
    """The user may have so many threads and no more, and others take the last ones while a call runs."""
    most = threads_of(65534 if IS_ROOT else os.geteuid()) + 250
    container = contained(refused=DOCKER_REFUSES, as_user=True, most_threads=most)
    source = f"import os, time\n{HONEST_THREADS}\ndef g(path):\n"
    source += "    while not os.path.exists(path): time.sleep(0.01)\n    return f()\n"
    with tempfile.TemporaryDirectory() as name, served(**container) as (url, _), ThreadPoolExecutor(1) as asking:
        os.chmod(name, 0o755)
        filled = Path(name) / "filled"
        call: dict[str, Any] = {"source": source, "function": "g", "arguments": {"path": str(filled)}}
        call["limits"] = {"wall_seconds": 50}
        reply = asking.submit(httpx.post, f"{url}/v1/execute", json=call, timeout=60)
        while httpx.get(f"{url}/health").json()["queue"]["in_flight"] == 0:
            assert not reply.done()
        with crowd():
            filled.touch()
            assert reply.result().status_code == 503
            assert "no process or thread to give" in reply.result().text
        assert httpx.post(f"{url}/v1/execute", json=call, timeout=60).json()["value"] == 45


def threads_of(uid: int) -> int:
    """Return the number of threads of all processes of a user."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == uid or f"Uid:\t{uid}\t" in (process / "status").read_text():
                found += len(list((process / "task").iterdir()))
    return found


@contextlib.contextmanager
def crowd() -> Iterator[None]:
    """A process of the tools' own user with 400 threads."""
    command = [world_readable_python(), "-c", CROWD]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **AS_TOOLS_USER)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.communicate()


def test_an_ordinary_user_has_the_strongest_tier():
    if not IS_ROOT:
        pytest.skip("this run is by an ordinary user already: the other tests show it")
    with served(**contained(as_user=True)) as (url, _), SandboxClient(url) as client:
        assert httpx.get(f"{url}/health").json()["tier"] == Tier.NAMESPACES
        source = "import os\ndef f():\n    return [os.getuid(), os.listdir('/tmp'), open('/tmp/x', 'w').write('abc')]\n"
        assert client.execute(source, "f", {}).value == [65534, [], 3]
        require_unchanged_file(client)


LACKS = {  # system calls that a container refuses, and the refusal of a service in it
    "landlock": ({**DOCKER_REFUSES, **LANDLOCK}, ("this kernel has no Landlock", "to have it: Linux 5.13 or newer")),
    "namespaces": (DOCKER_REFUSES, ("user.max_user_namespaces",)),
}


@x86_only
@pytest.mark.parametrize("tier", LACKS)
def test_below_the_minimum_tier_the_service_refuses_and_names_the_cause(tier):
    lacks, words = LACKS[tier]
    log = refusal(**contained("--min-tier", tier, refused=lacks))
    assert f"refuses to start: no isolation of at least the tier `{tier}`" in log
    for each in ("unshare(0x10000000): Operation not permitted", *words):
        assert each in log


def test_a_filter_that_lets_a_call_through_is_caught_by_the_self_test(tmp_path):
    altered(tmp_path, "jail/seccomp.py", "getrandom 318 278,", "getrandom 318 278, bpf 321 280,")
    log = refusal(**own("--min-tier", "namespaces", root=tmp_path))
    assert "system calls off the list are refused: expected the value [], found ['bpf']" in log


@x86_only
def test_landlock_is_refused_when_the_tools_user_may_change_its_files():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        root = altered(Path(name), "jail/seccomp.py", "getrandom 318 278,", "getrandom 318 278, fchmodat 268 53,")
        log = refusal(**contained(refused=DOCKER_REFUSES, root=root))
    assert "found ['fchmodat']" in log
    assert "no file outside of /tmp gets another mode" in log
