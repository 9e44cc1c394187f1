"""The trajectories track on an endpoint that fails: nothing is lost, nothing is scored by default."""

import io

import pytest

pytest.importorskip("openai", reason="needs the extra `openai`")

from synthesis.record_io import RecordSource
from synthesis.records import Trajectory
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.faults import SCORES, survive_faults


@pytest.mark.slow
async def test_with_thirty_percent_faults_no_task_is_lost_and_every_score_is_one_that_was_given(tmp_path, monkeypatch):
    out = tmp_path / "out"
    config = TrajectoriesConfig(
        count=24, out=out, max_offered_tools=6, proposals_per_server=4, walks_per_server=3, chain_votes=1,
        max_attempts_per_trajectory=40,
    )  # fmt: skip
    report, rejected = await survive_faults(
        tmp_path / "replies.sqlite",
        monkeypatch,
        lambda teacher: synthesize_trajectories(config, teacher, progress=io.StringIO()),
    )
    assert report.kept == 24
    assert report.rejected["unusable reply"] > 0
    for trajectory in RecordSource(out, Trajectory):
        assert trajectory.provenance.teacher == "openai:mock"
        scores = trajectory.task.scores.model_dump()
        assert scores == {name: SCORES[name] for name in scores}
        reward = trajectory.reward
        judged = (reward.query_understanding, reward.planning)
        judged += (reward.tool_response_understanding, reward.tool_response_conditioned_planning)
        assert {score for score in judged if score is not None} == {SCORES["score"]}
    print(report.closing_line(), dict(rejected))
