"""Below the quality threshold no tool is written; another threshold selects again without asking the teacher."""

import pytest

from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.pipeline import synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import JudgeDecomposition, ScoredDecomposition
from synthesis.prompts.tool_writing import WriteToolCall
from synthesis.record_io import RecordSource
from synthesis.records import RejectedEnvironment
from synthesis.teacher.protocol import BadReply
from synthesis.track.run import rejected_beside
from tests.synthesis.environments.made import read
from tests.synthesis.otherwise import Otherwise, raising


def scoring():
    """A teacher that gives qualities from 0.7 to 1, and has no call for one in nine tools."""
    indicators = ("dependency_consistency", "atomicity", "sequential_rationality", "task_completeness")

    def score(request, reply, seed):
        return ScoredDecomposition(reason="so", **dict.fromkeys(indicators, 0.7 + seed % 4 / 10))

    def call(request, reply, seed):
        return reply if seed % 9 else raising(BadReply("not JSON"))(request, reply, seed)

    return Otherwise({JudgeDecomposition: score, WriteToolCall: call})


class Deaf(ProceduralTeacher):
    async def ask(self, request, *, seed):
        raise AssertionError(request)


def bytes_of(out):
    return {str(path.relative_to(out.parent)): path.read_bytes() for path in out.parent.rglob("*") if path.is_file()}


async def test_a_changed_quality_threshold_selects_again_without_a_teacher(tmp_path, here):
    out = tmp_path / "out"

    async def synthesized(teacher, quality_threshold, url="http://127.0.0.1:9"):
        config = EnvironmentsConfig(seed=0, count=24, out=out, quality_threshold=quality_threshold)
        return await synthesize_environments(config, teacher, url)

    teacher = scoring()
    first = await synthesized(teacher, 0.75, here)
    good = {draft.knowledge.seed for draft in teacher.asked_for(JudgeDecomposition) if draft.knowledge.seed % 4}
    assert {asked.knowledge.seed for asked in teacher.asked_for(WriteToolCall)} == good
    assert sorted({record.quality.mean for record in read(out)}) == pytest.approx([0.8, 0.9, 1.0])
    before = bytes_of(out)
    rejected = list(RecordSource(rejected_beside(out), RejectedEnvironment))
    assert len(rejected) == first.rejected.total() == first.read - first.kept
    reasons = {item.reason: item for item in rejected}
    assert reasons["quality below threshold"].quality.mean == pytest.approx(0.7)
    assert reasons["quality below threshold"].draft["instance"]["question"]
    assert reasons["unusable reply"].draft["instance"]["question"]
    strict = await synthesized(Deaf(), 0.95)
    assert 0 < strict.kept < first.kept
    assert all(record.quality.mean > 0.95 for record in read(out))
    lower = await synthesized(Deaf(), 0.5)
    assert lower.kept == first.kept
    assert lower.rejected["never worked on"] == first.rejected["quality below threshold"]
    again = await synthesized(Deaf(), 0.75)
    assert (again.kept, again.rejected) == (first.kept, first.rejected)
    assert bytes_of(out) == before
