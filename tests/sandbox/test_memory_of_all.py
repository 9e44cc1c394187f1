"""Calls start only while all that are in flight may use the memory that they were promised."""

import asyncio
import socket

import pytest

from sandbox import cgroup, pool, server
from sandbox.cgroup import available_cores, available_memory_bytes, available_threads, has_version_1
from sandbox.isolation import Tier
from sandbox.pool import Pool
from sandbox.protocol import Limits
from sandbox.worker import Job, Outcome

MB = 1 << 20


class ScriptedWorker:
    """Takes every job, and ends one when it is let."""

    def __init__(self, owner):
        self.owner, self.ready, self.fresh = owner, True, 0
        self.flights: dict[str, Job] = {}

    def start(self, job):
        self.flights[job.document.decode()] = job
        return True

    def stop(self, job):
        pass

    def end(self, name):
        job = self.flights.pop(name)
        job.future.set_result(Outcome(b"", None, False, False, 0, 0, 0.0, 0.0, 0, 0.0))
        self.owner.on_ended(job)


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(pool, "available_memory_bytes", lambda: 1280 * MB)
    one = Pool(Tier.NAMESPACES, 1)
    one.workers = [ScriptedWorker(one)]
    return one.workers[0]


async def call(worker: ScriptedWorker, name: str, megabytes: int) -> asyncio.Task[Outcome]:
    """Ask for a call of the client that the name begins with."""
    limits = Limits(memory_bytes=megabytes * MB)
    task = asyncio.ensure_future(worker.owner.run(name[0], name.encode(), b"", limits, 1))
    await asyncio.sleep(0)
    return task


async def test_a_call_waits_until_those_in_flight_leave_it_the_memory_that_it_is_promised(worker):
    asked = [await call(worker, *job) for job in (("a1", 400), ("b1", 400), ("c1", 200), ("d1", 1))]
    assert list(worker.flights) == ["a1", "b1"]  # with 32 MB each beside, 160 are left; and d does not overtake c
    worker.end("a1")
    assert list(worker.flights) == ["b1", "c1", "d1"]
    for name in list(worker.flights):
        worker.end(name)
    await asyncio.gather(*asked)
    assert worker.owner.memory_in_flight == 0


async def test_a_call_that_may_use_more_than_there_is_runs_alone(worker):
    asked = [await call(worker, *job) for job in (("a1", 100), ("b1", 2000), ("c1", 100))]
    assert list(worker.flights) == ["a1"]
    worker.end("a1")
    assert list(worker.flights) == ["b1"]
    worker.end("b1")
    assert list(worker.flights) == ["c1"]
    worker.end("c1")
    await asyncio.gather(*asked)


async def test_one_client_leaves_memory_to_others(worker):
    asked = [await call(worker, *job) for job in (("a1", 400), ("a2", 400), ("a3", 68), ("b1", 68))]
    assert list(worker.flights) == ["a1", "a2", "b1"]
    for name in ("a1", "a2", "b1", "a3"):
        worker.end(name)
    await asyncio.gather(*asked)


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8)]
)
def test_memory_and_cores_are_the_least_that_the_containers_around_allow(tmp_path, monkeypatch, limit, cores):
    monkeypatch.setattr(cgroup.os, "sched_getaffinity", lambda pid: set(range(8)))
    own, root = tmp_path / "own", tmp_path / "fs"
    (root / "pod" / "box").mkdir(parents=True)
    own.write_text("1:name=systemd:/\n0::/pod/box\n")
    assert not has_version_1(own)
    machine = available_memory_bytes(root, own)
    assert available_cores(root, own) == 8
    (root / "pod" / "box" / "memory.max").write_text("max\n")
    assert available_memory_bytes(root, own) == machine
    (root / "pod" / "memory.max").write_text(f"{512 * MB}\n")
    (root / "pod" / "pids.max").write_text("300\n")
    (root / "pod" / "cpu.max").write_text(f"{limit}\n")  # of the pod around the container
    assert (available_memory_bytes(root, own), available_cores(root, own)) == (512 * MB, cores)
    assert available_threads(root, own) == 300


def test_a_host_with_cgroups_of_version_1_is_warned_of_at_start(tmp_path, monkeypatch, caplog):
    own = tmp_path / "own"
    own.write_text("4:cpu,cpuacct:/docker/0123\n1:name=systemd:/\n0::/\n")
    monkeypatch.setattr(server, "has_version_1", lambda: has_version_1(own))
    monkeypatch.setattr(server, "establish", lambda *_: 1 / 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(server, "_listen", lambda *_: listener)
        with pytest.raises(ZeroDivisionError):
            server.serve(port=0, workers=1)
    (warning,) = caplog.messages
    assert "a container's limits of memory, cores and threads are not read" in warning
