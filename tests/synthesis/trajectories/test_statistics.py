"""The paper's table of a set of trajectories, and what a run would cost."""

from collections import Counter

import pytest

from synthesis.record_io import RecordSource
from synthesis.records import Trajectory
from synthesis.teacher.openai import OpenAITeacherConfig
from synthesis.trajectories.cost_estimate import estimate_costs
from synthesis.trajectories.statistics import trajectory_statistics
from tests.synthesis.trajectories.test_pipeline import config, synthesize


async def test_the_statistics_are_those_of_a_naive_count(tmp_path):
    await synthesize(tmp_path / "out", count=80)
    records = list(RecordSource(tmp_path / "out", Trajectory))
    found = trajectory_statistics(tmp_path / "out")
    calls = [sum(len(m.tool_calls) for m in r.messages) for r in records]
    assert found.trajectories == 80
    assert found.messages == sum(len(r.messages) for r in records)
    assert found.tool_calls_per_trajectory == pytest.approx(sum(calls) / 80)
    assert found.share_with_1_to_5_calls == pytest.approx(sum(1 <= n <= 5 for n in calls) / 80)
    assert found.messages_by_number == Counter(len(r.messages) for r in records)
    offered = {(r.server, tool.name) for r in records for tool in r.tools}
    called = {(r.server, call.name) for r in records for m in r.messages for call in m.tool_calls}
    assert (found.distinct_functions, found.distinct_functions_called) == (len(offered), len(called & offered))
    assert sum(found.roles.values()) == pytest.approx(1)
    assert found.injected_failure_rate == pytest.approx(0.2, abs=0.08)
    assert found.reward["mean"] == pytest.approx(sum(r.reward.mean for r in records) / 80)
    assert found.reward["tool_call_status"] < 1
    status = [r.reward.tool_call_status for r in records if r.reward.tool_call_status is not None]
    assert sum(found.reward_tenths["tool_call_status"]) == len(status) < 80
    assert found.reward_tenths["tool_call_status"][5] == sum(0.5 <= score < 0.6 for score in status) > 0
    assert found.reward_tenths["tool_call_status"][9] == sum(score >= 0.9 for score in status) > 0
    assert found.task_scores["realism"] == pytest.approx(sum(r.task.scores.realism for r in records) / 80)
    assert [sum(tenths) for tenths in found.task_score_tenths.values()] == [80, 80, 80]


async def test_an_estimate_grows_with_the_trajectories_wanted_and_spends_nothing(tmp_path):
    prices = OpenAITeacherConfig(model="m", usd_per_million_prompt_tokens=1.0, usd_per_million_completion_tokens=4.0)
    small = (await estimate_costs(config(tmp_path / "out", count=100), prices)).questions
    large = (await estimate_costs(config(tmp_path / "out", count=1000), prices)).questions
    assert large["TakeTurn"].calls == 10 * small["TakeTurn"].calls
    assert large["ProposeChains"].calls == small["ProposeChains"].calls == 15
    assert small["TakeTurn"].calls >= 200
    assert large["TakeTurn"].usage.cost_usd > 5 * small["TakeTurn"].usage.cost_usd > 0
    assert not list(tmp_path.iterdir())
