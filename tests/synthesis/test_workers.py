"""On a Ray cluster the records have the bytes of one machine's, even if a worker, a node or the run is killed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from sandbox.local import local_sandbox
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.agent_turn import TakeTurn
from synthesis.record_io import RecordSource, read_card
from synthesis.records import Trajectory
from synthesis.stage import Rejected
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.openai import OpenAITeacher
from synthesis.teacher.protocol import TeacherUnavailable
from synthesis.track.fingerprint import synthesis_fingerprint
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.workers import RayConfig, WorkersUnavailable, workers_on_ray
from tests.synthesis.journals import finished_items
from tests.synthesis.teacher.mock_endpoint import MockEndpoint
from tests.synthesis.teacher.told_teacher import name_of_call, reply_of, said
from tests.synthesis.tools.servers import TIME

ROOT = Path(__file__).parents[2]
ZONES = ("Europe/Paris", "Asia/Tokyo", "America/Lima")
CLOCK = TIME.model_copy(
    update={"argument_values": {"timezone": ZONES, "source_timezone": ZONES, "target_timezone": ZONES}}
)


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


class SlowTeacher(ProceduralTeacher):
    """Leaves the number of its process in a folder, and takes its time."""

    def __init__(self, seen: Path):
        self.seen = seen

    async def ask(self, request, *, seed):
        (self.seen / str(os.getpid())).touch()
        await asyncio.sleep(0.01)
        return await super().ask(request, seed=seed)


class FailingTeacher(ProceduralTeacher):
    """Is down from the first question for an agent's turn."""

    async def ask(self, request, *, seed):
        if isinstance(request, TakeTurn):
            raise TeacherUnavailable("the endpoint is down")
        return await super().ask(request, seed=seed)


class ToldTeacher(OpenAITeacher):
    """Tells the endpoint, by a file, the embedded teacher's reply to each prompt."""

    async def _reply(self, request, seed, **options):
        told_in(request.messages(), seed).write_text(json.dumps(reply_of(request, seed)))
        return await super()._reply(request, seed, **options)


def told_in(messages: list[dict], seed: int) -> Path:
    return Path(os.environ["TOLD"]) / sha256(name_of_call(messages, seed).encode()).hexdigest()


class Suicide:
    """A worker whose work is to end its process."""

    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def reject(self, reason: str) -> None:
        raise Rejected(reason, "in detail")


@asynccontextmanager
async def opened_suicide(teacher):
    yield Suicide()


def test_a_rejection_is_the_same_after_a_journey():
    rejected = pickle.loads(pickle.dumps(Rejected("wrong answer", "5 and not 6")))
    assert (rejected.reason, rejected.detail) == ("wrong answer", "5 and not 6")
    assert str(rejected) == "wrong answer: 5 and not 6"


def test_the_machines_of_a_run_do_not_change_its_fingerprint(tmp_path):
    elsewhere = RayConfig(address="head:6379", workers_per_node=7)
    trajectories = TrajectoriesConfig(count=1, out=tmp_path)
    environments = EnvironmentsConfig(seed=0, count=1, out=tmp_path)
    for config in (trajectories, environments):
        here, there = (
            synthesis_fingerprint("synthesis.stage", each, ProceduralTeacher(), {})
            for each in (config, config.model_copy(update={"ray": elsewhere}))
        )
        assert here == there


async def test_without_ray_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    config = TrajectoriesConfig(count=1, out=tmp_path / "out", ray=RayConfig())
    with pytest.raises(WorkersUnavailable, match=r"pip install 'astra-jax\[ray\]'"):
        await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense"])
async def test_a_cluster_that_is_not_there_is_said_to_be_missing_at_once(address):
    pytest.importorskip("ray", reason="needs the extra `ray`")
    with pytest.raises(WorkersUnavailable, match=f"expected a Ray cluster at {address}, found none"):
        async with workers_on_ray(RayConfig(address=address), opened_suicide, ProceduralTeacher()):
            pass


# --- on a cluster of two nodes ---


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:  # of every node's `ray start`
        environment.setenv("PYTHONPATH", str(ROOT))
        environment.setenv("TEST_KEY", "sk-test")
        environment.setenv("TOLD", str(tmp_path_factory.mktemp("told")))
        node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
        quick = {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 5}
        head = {**node, "include_dashboard": False, "_system_config": quick}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(**node)
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def ray_config(cluster) -> RayConfig:
    return RayConfig(address=cluster.address, workers_per_node=1)


def trajectories_config(out: Path, **changes) -> TrajectoriesConfig:
    return TrajectoriesConfig(
        **{"count": 60, "out": out, "max_offered_tools": 6, "follow_up_share": 0.3, "concurrency": 8} | changes
    )


def environments_config(out: Path, **changes) -> EnvironmentsConfig:
    varieties = {"plain": 0.5, "stateful": 0.25, "withheld_tool": 0.25}
    lookups = {"single_hop": {1: 1}, "parallel_single_hop": {2: 1}, "multi_hop": {2: 1}, "parallel_multi_hop": {3: 1}}
    defaults = {"seed": 0, "count": 12, "out": out, "max_hops": 3, "varieties": varieties, "lookups": lookups}
    return EnvironmentsConfig.model_validate(defaults | changes)


async def synthesize(config: TrajectoriesConfig, teacher=None) -> Path:
    await synthesize_trajectories(config, teacher or ProceduralTeacher(), progress=io.StringIO())
    return config.out


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, bytes]:
    """The bytes of `trajectories_config`, synthesised on one machine."""
    return bytes_of(asyncio.run(synthesize(trajectories_config(tmp_path_factory.mktemp("undisturbed") / "out"))))


def journalled(out: Path) -> list[int]:
    """Return the items of the last stage that are finished, in the order of their completion."""
    return finished_items(out.with_name(f"{out.name}.work") / "trajectories.sqlite")


async def until_journalled(out: Path, count: int) -> None:
    async with asyncio.timeout(120):
        while len(journalled(out)) < count:
            await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_trajectories_of_two_nodes_are_those_of_one_machine(tmp_path, ray_config):
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    changes = {"mcp_servers": (CLOCK,), "filters": {"min_tools": 2}}
    (tmp_path / "seen").mkdir()
    await synthesize(trajectories_config(tmp_path / "here", **changes))
    on_ray = trajectories_config(tmp_path / "there", ray=ray_config, **changes)
    await synthesize(on_ray, SlowTeacher(tmp_path / "seen"))
    assert bytes_of(tmp_path / "there") == bytes_of(tmp_path / "here")
    assert {record.tool_backend for record in RecordSource(tmp_path / "here", Trajectory)} == {"mcp", "emulator"}
    workers = {int(path.name) for path in (tmp_path / "seen").iterdir()}
    assert len(workers) == 2
    assert os.getpid() not in workers


@pytest.mark.slow
async def test_environments_of_two_nodes_are_those_of_one_machine(tmp_path, ray_config):
    with local_sandbox(workers=2) as url:
        other = environments_config(tmp_path / "other", seed=1, count=6)
        await synthesize_environments(other, ProceduralTeacher(), url)
        here = environments_config(tmp_path / "here", disjoint_from=(other.out,))
        there = here.model_copy(update={"out": tmp_path / "there", "ray": ray_config})
        reports = [await synthesize_environments(config, ProceduralTeacher(), url) for config in (here, there)]
    assert reports[0].kept == 12
    assert [report.rejected for report in reports] == [reports[0].rejected] * 2
    assert bytes_of(there.out) == bytes_of(here.out)


@pytest.mark.slow
async def test_a_node_that_is_lost_takes_no_record_with_it(tmp_path, cluster, ray_config, undisturbed):
    (tmp_path / "seen").mkdir()
    node = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    config = trajectories_config(tmp_path / "out", ray=ray_config)
    run = asyncio.create_task(synthesize(config, SlowTeacher(tmp_path / "seen")))
    await until_journalled(config.out, 10)
    assert not run.done()
    cluster.remove_node(node, allow_graceful=False)
    await run
    assert bytes_of(config.out) == undisturbed
    assert len(list((tmp_path / "seen").iterdir())) >= 4  # three, and one in the place of the lost one


@pytest.mark.slow
async def test_a_worker_that_is_killed_takes_no_record_with_it(tmp_path, ray_config, undisturbed):
    (tmp_path / "seen").mkdir()
    config = trajectories_config(tmp_path / "out", ray=ray_config)
    run = asyncio.create_task(synthesize(config, SlowTeacher(tmp_path / "seen")))
    for count in (5, 20, 35):
        await until_journalled(config.out, count)
        newest = max((tmp_path / "seen").iterdir(), key=lambda path: path.stat().st_mtime)
        os.kill(int(newest.name), signal.SIGKILL)
    assert not run.done()
    await run
    assert bytes_of(config.out) == undisturbed
    assert len(list((tmp_path / "seen").iterdir())) == 5


RUN = """
import asyncio, sys
from pathlib import Path
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.test_workers import SlowTeacher

config = TrajectoriesConfig.model_validate_json(sys.argv[1])
asyncio.run(synthesize_trajectories(config, SlowTeacher(Path(sys.argv[2]))))
"""


@pytest.mark.slow
async def test_a_killed_run_goes_on_elsewhere_and_does_nothing_twice(tmp_path, ray_config, undisturbed):
    (tmp_path / "seen").mkdir()
    config = trajectories_config(tmp_path / "out", ray=ray_config)
    command = [sys.executable, "-c", RUN, config.model_dump_json(), str(tmp_path / "seen")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    await until_journalled(config.out, 15)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "the run had ended before it could be killed"
    finished = journalled(config.out)
    assert 15 <= len(finished) < 60
    here = config.model_copy(update={"ray": None})
    run = asyncio.create_task(synthesize(here, SlowTeacher(tmp_path / "seen")))
    await until_journalled(config.out, 30)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    again = journalled(config.out)
    assert again[: len(finished)] == finished
    assert max(Counter(again).values()) == 1
    await synthesize(config)
    assert bytes_of(config.out) == undisturbed


@pytest.mark.slow
async def test_an_outage_that_a_node_sees_stops_the_run(tmp_path, ray_config, undisturbed):
    config = trajectories_config(tmp_path / "out", ray=ray_config)
    with pytest.raises(TeacherUnavailable, match="the endpoint is down"):
        await synthesize(config, FailingTeacher())
    assert not config.out.exists()
    await synthesize(config)
    assert bytes_of(config.out) == undisturbed


@pytest.mark.slow
async def test_an_item_that_kills_its_workers_stops_the_run(ray_config):
    async with workers_on_ray(ray_config, opened_suicide, ProceduralTeacher()) as workers:
        with pytest.raises(Rejected, match="in detail") as rejected:
            await workers.do(Suicide.reject, "a reason")
        assert rejected.value.reason == "a reason"
        with pytest.raises(WorkersUnavailable, match="lost"):
            await workers.do(Suicide.die)


@pytest.mark.slow
async def test_a_reply_that_one_node_has_paid_is_asked_again_by_no_node(tmp_path, ray_config, monkeypatch):
    pytest.importorskip("openai", reason="needs the extra `openai`")
    monkeypatch.chdir(tmp_path)  # nodes work in another folder

    def answer(body: dict) -> str | dict:
        return said(json.loads(told_in(body["messages"], body["seed"]).read_text()))

    small = {"count": 8, "proposals_per_server": 4, "walks_per_server": 3, "chain_votes": 1}
    async with MockEndpoint(answer).serving() as endpoint:
        cache = Path("replies.sqlite")
        settings = {"model": "mock", "base_url": endpoint.url, "api_key_env": "TEST_KEY", "cache": cache}
        teacher = ToldTeacher(OpenAITeacherConfig(**settings))
        await synthesize(trajectories_config(tmp_path / "there", ray=ray_config, **small), teacher)
        asked = len(endpoint.bodies)
        with sqlite3.connect(cache) as replies:
            assert replies.execute("SELECT count(*) FROM replies").fetchone() > (asked,)  # each judge has its own
        replies.close()
        await synthesize(trajectories_config(tmp_path / "again", ray=ray_config, **small), teacher)
        await synthesize(trajectories_config(tmp_path / "here", **small), teacher)
        assert len(endpoint.bodies) == asked
        await teacher.close()
    assert bytes_of(tmp_path / "there") == bytes_of(tmp_path / "again") == bytes_of(tmp_path / "here")
    assert read_card(tmp_path / "there").count == 8
