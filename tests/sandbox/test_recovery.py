"""Real kills: the calls that fail, the retries, the recovery, and that nothing stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sandbox.client import SandboxClient
from sandbox.local import local_sandbox
from sandbox.protocol import Limits
from tests.sandbox.processes import children, descendants, service_process, wait_until, zombies, zygotes
from tests.sandbox.services import ROOT

DOUBLE = "def double(x):\n    return 2 * x\n"


def test_kill_9_under_load_loses_no_answer_and_the_pool_heals():
    with local_sandbox(2) as url, SandboxClient(url) as client, ThreadPoolExecutor(16) as threads:
        pid = service_process(url)
        stop = threading.Event()

        def load(start):
            answers, x = [], start
            while not stop.is_set():
                answers.append((x, client.execute(DOUBLE, "double", {"x": x}).value))
                x += 16
            return answers

        running = [threads.submit(load, index) for index in range(16)]
        healed = []
        for victims in (zygotes, children, zygotes):  # jailed processes, and launchers
            time.sleep(0.3)
            target = victims(pid)[0]
            os.kill(target, signal.SIGKILL)
            wait_until(lambda target=target: target not in descendants(pid) or zombies([target]) == 1)
            ready = lambda: httpx.get(f"{url}/health").json()["workers"]["ready"] == 2  # noqa: E731
            healed.append(wait_until(ready))
        stop.set()
        answers = [pair for future in running for pair in future.result(timeout=60)]
        assert all(value == 2 * x for x, value in answers)
        assert len(answers) > 50
        assert max(healed) < 10.0  # tests share their machine; alone it takes half a second
        assert httpx.get(f"{url}/health").json()["workers"]["restarts"] >= 3


def test_a_call_in_flight_when_its_zygote_dies_is_a_503_and_not_a_reply():
    sleep = {"source": "import time\ndef f():\n    time.sleep(5)\n", "function": "f", "limits": {"wall_seconds": 20}}
    with local_sandbox(1) as url, ThreadPoolExecutor(1) as threads:
        pid = service_process(url)
        pending = threads.submit(httpx.post, f"{url}/v1/execute", json=sleep, timeout=30)
        wait_until(lambda: httpx.get(f"{url}/health").json()["queue"]["in_flight"] == 1)
        time.sleep(0.3)
        os.kill(zygotes(pid)[0], signal.SIGKILL)
        response = pending.result(timeout=20)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "service_fault")
        assert "retry-after" in response.headers


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or zombies([pid]) == 1


def test_everything_ends_when_the_program_that_started_it_is_killed():
    program = (
        "from sandbox.local import local_sandbox\nimport time\n"
        "with local_sandbox(1) as url:\n    print(url, flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    below = descendants(process.pid)
    assert len(below) == 3  # server, launcher, zygote
    assert httpx.get(f"{url}/health").status_code == 200
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: all(map(has_ended, below)))


def test_a_server_killed_with_9_takes_its_jails_and_their_tools_with_it():
    with local_sandbox(1) as url:
        pid = service_process(url)
        with ThreadPoolExecutor(1) as threads:
            source = "import time\ndef f():\n    time.sleep(30)\n"
            call = {"source": source, "function": "f", "limits": {"wall_seconds": 40}}
            pending = threads.submit(httpx.post, f"{url}/v1/execute", json=call, timeout=30)
            wait_until(lambda: len(descendants(pid)) == 3)
            below = descendants(pid)
            os.kill(pid, signal.SIGKILL)
            assert isinstance(pending.exception(timeout=10), httpx.TransportError)
        wait_until(lambda: all(map(has_ended, below)))


def niceness_of_threads(pid: int) -> list[int]:
    stats = ((task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    return [int(stat.rpartition(")")[2].split()[16]) for stat in stats]


@pytest.mark.slow
def test_a_call_that_goes_on_runs_at_low_priority_with_every_thread_it_has():
    source = (
        "import os, threading\ndef work():\n    while True: pass\n"
        "def f():\n    threading.stack_size(1 << 18)\n"
        "    for _ in range(5): threading.Thread(target=work, daemon=True).start()\n    work()\n"
    )
    with local_sandbox(1) as url, SandboxClient(url) as client, ThreadPoolExecutor(1) as threads:
        pid = service_process(url)
        (zygote,) = zygotes(pid)
        running = threads.submit(client.execute, source, "f", {}, limits=Limits(wall_seconds=8, cpu_seconds=30))

        def low():
            return any(niceness_of_threads(child) == [19] * 6 for child in children(zygote))

        wait_until(low, seconds=7)
        error = running.result(timeout=30).error
        assert error is not None
        assert error.kind == "timeout"
        groups = "import os\ndef f(): return [os.getpgrp(), os.getpgid(0), os.getsid(0)]"
        assert client.execute(groups, "f", {}).value == [1, 1, 1]


@pytest.mark.slow
def test_short_calls_do_not_wait_for_another_clients_endless_loops():
    with local_sandbox(2) as url, SandboxClient(url) as honest, SandboxClient(url) as hostile:

        def p50():
            times = []
            for x in range(60):
                began = time.monotonic()
                assert honest.execute(DOUBLE, "double", {"x": x}).value == 2 * x
                times.append(time.monotonic() - began)
            return sorted(times)[30]

        p50()
        clean = p50()
        with ThreadPoolExecutor(80) as threads:
            wait = "import time\ndef f():\n    time.sleep(4)\n"  # 80 calls for the 64 places of two workers
            loop = "def f():\n    while True: pass\n"
            limits = Limits(wall_seconds=5, cpu_seconds=5)
            running = [threads.submit(hostile.execute, wait, "f", {}, limits=limits) for _ in range(72)]
            running += [threads.submit(hostile.execute, loop, "f", {}, limits=limits) for _ in range(8)]
            time.sleep(1.0)
            loaded = p50()
            assert not all(future.done() for future in running)
            kinds = [future.result(timeout=60).error for future in running]
            assert [error is None or error.kind == "timeout" for error in kinds] == [True] * 80
        assert loaded < 10 * clean + 0.2, (clean, loaded)  # tests share their machine; the benchmark measures 3
