"""A run keeps to its budget: it stops after the calls in flight, and goes on with a larger budget."""

import asyncio
import io
import json
from contextlib import closing
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from synthesis.stage import StageReport
from synthesis.teacher.budget import Budget
from synthesis.teacher.config import OpenAITeacherConfig, RoleConfig
from synthesis.teacher.protocol import TeacherUnavailable
from synthesis.teacher.usage import Usage, cost_so_far
from synthesis.track.journal import Journal, run_stage
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.teacher.asking import SCORES, question, scored, teacher_of
from tests.synthesis.teacher.mock_endpoint import MockEndpoint
from tests.synthesis.teacher.told_teacher import ToldTeacher, said, told

PRICES = {"usd_per_million_prompt_tokens": 1000.0, "usd_per_million_completion_tokens": 0.0}
"""A call of the mock endpoint has 100 prompt tokens: 0.10 USD."""


async def ask_all(endpoint, count: int, **settings):
    teacher = teacher_of(endpoint, request_seconds=5, **PRICES, **settings)
    asked = [teacher.ask(question(str(number)), seed=0) for number in range(count)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    await teacher.close()
    return teacher, outcomes


@pytest.mark.parametrize("limit", [{"max_usd": 0.35}, {"max_tokens": 430}])
async def test_a_run_stops_at_its_budget_and_goes_on_with_a_larger_one(tmp_path, limit):
    async with MockEndpoint(scored).serving() as endpoint:
        cache = tmp_path / "replies.sqlite"
        teacher, outcomes = await ask_all(endpoint, 10, cache=cache, max_concurrency=1, **limit)
        stopped = [outcome for outcome in outcomes if outcome != SCORES]
        assert len(endpoint.bodies) == 4
        assert all(isinstance(outcome, TeacherUnavailable) for outcome in stopped)
        assert "is used up" in str(stopped[0])
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
    config = TrajectoriesConfig(
        count=4, out=tmp_path / "out", max_offered_tools=6, proposals_per_server=4, walks_per_server=3, chain_votes=1
    )
    replies: dict[str, dict] = {}
    async with MockEndpoint(lambda body: said(told(replies, body))).serving() as endpoint:
        for max_usd in (2.0, 5.0, 1000.0):
            settings = {"cache": tmp_path / "replies.sqlite", "request_seconds": 20, "max_usd": max_usd}
            teacher = teacher_of(endpoint, ToldTeacher, **settings, **PRICES)
            teacher.replies = replies
            if max_usd < 1000:
                with pytest.raises(TeacherUnavailable, match="budget of this run is used up"):
                    await synthesize_trajectories(config, teacher, progress=io.StringIO())
            else:
                report = await synthesize_trajectories(config, teacher, progress=io.StringIO())
            await teacher.close()
        assert report.kept == 4
        asked = [json.dumps([body["messages"], body["seed"]]) for body in endpoint.bodies]
        assert len(set(asked)) == len(asked)


def test_a_budget_in_dollars_needs_prices_of_every_role():
    with pytest.raises(ValidationError, match="expected prices beside max_usd"):
        OpenAITeacherConfig(model="m", max_usd=1.0)
    free = {"judges": RoleConfig(usd_per_million_prompt_tokens=0.0, usd_per_million_completion_tokens=0.0)}
    with pytest.raises(ValidationError, match="expected prices beside max_usd"):
        OpenAITeacherConfig(model="m", max_usd=1.0, roles=free, **PRICES)


@pytest.mark.parametrize("limit", [{"max_usd": 1.0}, {"max_tokens": 1}])
def test_a_budget_is_refused_if_no_command_would_know_the_spending_of_the_one_before(limit):
    with pytest.raises(ValidationError, match="expected keep_replies beside max_usd or max_tokens"):
        OpenAITeacherConfig(model="m", keep_replies=False, **limit, **PRICES)


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
