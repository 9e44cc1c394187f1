"""Faults that the original is known for, and that no other test of this track rules out for a whole run."""

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.chains import Vote, VoteOnChain
from synthesis.prompts.judges import JudgePlanning
from synthesis.record_io import RecordSource
from synthesis.records import Trajectory
from synthesis.teacher.protocol import BadReply
from tests.synthesis.otherwise import Otherwise, raising
from tests.synthesis.trajectories.test_pipeline import synthesize


async def test_chains_that_are_voted_down_are_dropped_and_no_task_rests_on_one(tmp_path):
    doubtful = Otherwise({VoteOnChain: lambda *_: Vote(coherent=False, reason="no such person")})
    for teacher, modes in ((doubtful, {"server"}), (ProceduralTeacher(), {"chain", "server"})):
        out = tmp_path / type(teacher).__name__
        await synthesize(out, teacher, count=40)
        assert {trajectory.task.mode for trajectory in RecordSource(out, Trajectory)} == modes


async def test_one_reply_that_cannot_be_read_costs_one_trajectory_and_not_the_run(tmp_path):
    bad_once = Otherwise({JudgePlanning: raising(BadReply("not JSON"))}, times=1)
    report = await synthesize(tmp_path / "out", bad_once, count=20)
    assert report.kept == 20
    assert report.rejected["unusable reply"] == 1
