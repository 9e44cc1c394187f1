"""The file of kept replies and the budget: a fault of the file costs no reply, and a run keeps to its budget."""

import asyncio
import io
import json
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from synthesis.record_io import RecordSource
from synthesis.records import Trajectory
from synthesis.stage import StageReport
from synthesis.teacher.cache import Budget, CachedReply, ReplyFile, ReplyFileError
from synthesis.teacher.config import OpenAITeacherConfig, RoleConfig
from synthesis.teacher.protocol import TeacherUnavailable
from synthesis.teacher.usage import Usage, cost_so_far
from synthesis.track.journal import Journal, run_stage
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.teacher.asking import KEY, SCORES, question, scored, teacher_of
from tests.synthesis.teacher.mock_endpoint import MockEndpoint
from tests.synthesis.teacher.told_teacher import ToldTeacher, said, told

PRICES = {"usd_per_million_prompt_tokens": 1000.0, "usd_per_million_completion_tokens": 0.0}
"""A call of the mock endpoint has 100 prompt tokens: 0.10 USD."""


def test_a_file_that_is_none_of_ours_is_named_and_left_as_it_is(tmp_path):
    text, other = tmp_path / "notes.sqlite", tmp_path / "other.sqlite"
    text.write_text("My notes. " * 200)
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE customers (name TEXT)")
    older = tmp_path / "older.sqlite"
    with closing(sqlite3.connect(older)) as database, database:
        database.execute("CREATE TABLE replies (key TEXT PRIMARY KEY, text TEXT)")
    for path, fault in (
        (older, r"older\.sqlite: the replies of an older version, .*; move the file away"),
        (text, r"notes\.sqlite: file is not a database; .*move it away"),
        (other, r"not a file of a teacher's replies, but a database with the table 'customers'; name another file"),
        (tmp_path, "cannot keep the teacher's replies in"),
        (text / "replies.sqlite", "cannot keep the teacher's replies in"),
    ):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(ReplyFileError, match=fault) as raised:
            ReplyFile(path)
        assert "\n" not in str(raised.value)
        assert not path.is_file() or path.read_bytes() == before


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_file_that_is_damaged_stops_the_run_in_one_line(tmp_path, is_open):
    path = tmp_path / "replies.sqlite"
    file = ReplyFile(path)
    for number in range(200):
        await file.put(str(number), CachedReply(f"{number} {'x' * 300}", Usage(1, 2, 0.5)))
    assert await file.get("7") == CachedReply(f"7 {'x' * 300}", Usage(1, 2, 0.5))
    assert await file.get("b") is None
    file._rows("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    file._connection.execute("PRAGMA shrink_memory")
    with pytest.raises(ReplyFileError, match=r"replies\.sqlite: database disk image is malformed") as raised:
        await file.get("0") if is_open else ReplyFile(path)
    assert "\n" not in str(raised.value)
    await file.close()


async def ask_all(endpoint, count: int, **settings):
    teacher = teacher_of(endpoint, request_seconds=5, **PRICES, **settings)
    asked = [teacher.ask(question(str(number)), seed=0) for number in range(count)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    await teacher.close()
    return teacher, outcomes


@pytest.mark.parametrize("limit", [{"max_usd": 0.35}, {"max_tokens": 430}])
async def test_runs_of_one_file_stop_at_their_budget_and_go_on_with_a_larger_one(tmp_path, limit):
    async with MockEndpoint(scored).serving() as endpoint:
        cache = tmp_path / "replies.sqlite"
        teacher, outcomes = await ask_all(endpoint, 10, cache=cache, max_concurrency=1, **limit)
        stopped = [outcome for outcome in outcomes if outcome != SCORES]
        assert len(endpoint.bodies) == 4
        assert all(isinstance(outcome, TeacherUnavailable) for outcome in stopped)
        assert "is used up" in str(stopped[0])
        assert "replies.sqlite share it" in str(stopped[0])
        assert teacher.budget.is_used_up
        again, outcomes = await ask_all(endpoint, 10, cache=cache, max_concurrency=1, **limit)
        assert len(endpoint.bodies) == 4  # the spending of an earlier command counts
        assert outcomes.count(SCORES) == 4
        more = {name: value * 10 for name, value in limit.items()}
        again, outcomes = await ask_all(endpoint, 10, cache=cache, max_concurrency=1, **more)
        assert outcomes == [SCORES] * 10
        assert len(endpoint.bodies) == 10
    assert again.budget.spent == Usage(1000, 100, pytest.approx(1.0))


async def test_calls_in_flight_when_the_budget_ends_come_back_and_are_kept(tmp_path):
    async with MockEndpoint(scored, latency_seconds=0.05).serving() as endpoint:
        cache = tmp_path / "replies.sqlite"
        _, outcomes = await ask_all(endpoint, 12, cache=cache, max_concurrency=6, max_usd=0.1)
        paid = len(endpoint.bodies)
        assert 1 <= paid <= 6  # no more than were in flight
        assert outcomes.count(SCORES) == paid
        _, outcomes = await ask_all(endpoint, 12, cache=cache, max_usd=100.0)
        assert outcomes == [SCORES] * 12
        assert len(endpoint.bodies) == 12


async def test_a_track_that_ran_out_of_money_goes_on_where_it_was_and_pays_for_nothing_twice(tmp_path):
    replies: dict[str, dict] = {}

    async def run(name: str, max_usd: float) -> list[Trajectory]:
        config = TrajectoriesConfig(
            count=4, out=tmp_path / name, max_offered_tools=6, proposals_per_server=4, walks_per_server=3, chain_votes=1
        )
        settings = {"cache": tmp_path / "replies.sqlite", "request_seconds": 20, "max_usd": max_usd}
        teacher = teacher_of(endpoint, ToldTeacher, **settings, **PRICES)
        teacher.replies = replies
        try:
            await synthesize_trajectories(config, teacher, progress=io.StringIO())
        finally:
            await teacher.close()
        return list(RecordSource(tmp_path / name, Trajectory))

    async with MockEndpoint(lambda body: said(told(replies, body))).serving() as endpoint:
        with pytest.raises(TeacherUnavailable, match="budget of this run is used up"):
            await run("out", 2.0)
        records = await run("out", 1000.0)
        assert await run("again", 1000.0) == records
    asked = [json.dumps([body["messages"], body["seed"]]) for body in endpoint.bodies]
    assert len(set(asked)) == len(asked)
    assert len(records) == 4
    for record in records:  # a task, its scores, each turn, and at least one call to judges: 100 prompt tokens each
        num_turns = sum(message.role == "assistant" for message in record.messages)
        assert record.provenance.prompt_tokens >= 100 * (3 + num_turns)
        assert record.provenance.teacher == "openai:mock"
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


def test_a_budget_in_dollars_needs_prices_of_every_role():
    free = {"judges": RoleConfig(usd_per_million_prompt_tokens=0.0, usd_per_million_completion_tokens=0.0)}
    for settings in ({}, {"roles": free, **PRICES}):
        with pytest.raises(ValidationError, match="max_usd is set, and some role has no prices"):
            OpenAITeacherConfig(model="m", max_usd=1.0, **settings)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_the_progress_line_has_the_cost_of_the_run_so_far(tmp_path):
    teacher, line = SimpleNamespace(budget=Budget(max_usd=5.0)), Terminal()

    async def work(item):
        await asyncio.sleep(0.15)  # the line is written at most ten times a second
        teacher.budget.spend(Usage(10, 10, 0.5))
        return item

    shown = {"progress": line, "cost": lambda: cost_so_far(teacher)}
    with closing(Journal(tmp_path / "j.sqlite", "stage", {})) as journal:
        await run_stage(StageReport("stage"), [0, 1], work, journal=journal, concurrency=1, **shown)
    assert "1.00 of 5.00 USD" in line.getvalue()
    assert cost_so_far(object()) == ""
