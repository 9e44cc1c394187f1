"""Finished items are kept and selected from under other thresholds; tasks in nearly the same words are kept once."""

import asyncio
import io
import shutil
from random import Random

import pytest

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.judges import JudgePlanning
from synthesis.prompts.tasks import ScoredTask, ScoreTask
from synthesis.record_io import RecordDirectoryError, RecordSource, read_card
from synthesis.records import RejectedTrajectory, Trajectory
from synthesis.stage import NothingKept
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.parroting import runs_of
from synthesis.teacher.protocol import BadReply
from synthesis.track.run import TrackRun, rejected_beside
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.reward_axes import RewardThresholds
from synthesis.trajectories.selection import duplicates
from synthesis.trajectories.tasks import TaskThresholds
from tests.synthesis.altered import altered
from tests.synthesis.otherwise import Otherwise, raising

STRICT, LAX = RewardThresholds(mean=0.97), RewardThresholds()


def scoring():
    """A teacher that scores every fourth task low on realism, and has no use for every fifth judge's reply."""

    def score(request, reply, seed):
        return reply if seed % 4 else ScoredTask(reason="so", clarity=1.0, realism=0.25, tool_necessity=1.0)

    def judge(request, reply, seed):
        return reply if seed % 5 else raising(BadReply("not JSON"))(request, reply, seed)

    return Otherwise({ScoreTask: score, JudgePlanning: judge})


class Asked(Exception):
    pass


class Deaf(ProceduralTeacher):
    async def ask(self, request, *, seed):
        raise Asked(request)


def synthesized(out, teacher=None, **changes):
    settings = {"count": 30, "max_attempts_per_trajectory": 2, "out": out} | changes
    config = TrajectoriesConfig(**settings)
    return asyncio.run(synthesize_trajectories(config, teacher or scoring(), progress=io.StringIO()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder of two finished runs, and their reports."""
    folder = tmp_path_factory.mktemp("finished")
    thresholds = {"lax": LAX, "strict": STRICT}
    return folder, {name: synthesized(folder / name / "out", reward_thresholds=thresholds[name]) for name in thresholds}


@pytest.fixture
def lax(finished, tmp_path):
    return shutil.copytree(finished[0] / "lax", tmp_path / "lax") / "out"


@pytest.fixture
def strict(finished, tmp_path):
    return shutil.copytree(finished[0] / "strict", tmp_path / "strict") / "out"


def bytes_of(out):
    return {
        str(path.relative_to(out.parent)): path.read_bytes() for path in sorted(out.parent.rglob("*")) if path.is_file()
    }


def rejected_in(out):
    return list(RecordSource(rejected_beside(out), RejectedTrajectory))


def test_rejected_items_lie_beside_the_records_with_every_score_and_the_reason(finished, strict):
    report = finished[1]["strict"]
    items = rejected_in(strict)
    assert len(items) == report.rejected.total() == report.read - report.kept
    by_reason = {item.reason: item for item in items}
    assert by_reason["low realism"].task_scores.realism == 0.25
    assert by_reason["low mean reward"].trajectory.reward.mean < 0.97
    unusable = by_reason["unusable reply"]
    assert unusable.task is not None
    assert unusable.messages[0].content == unusable.task.text
    assert unusable.detail == "not JSON"
    assert read_card(rejected_beside(strict)).rejected == dict(report.rejected)


def test_a_changed_threshold_selects_again_without_a_teacher_and_back_to_the_same_bytes(finished, lax):
    before, bytes_before = finished[1]["lax"], bytes_of(lax)
    strict = synthesized(lax, Deaf(), reward_thresholds=STRICT)
    assert 0 < strict.kept < before.kept
    assert strict.read == before.read == strict.kept + strict.rejected.total()
    assert all(record.reward.mean >= 0.97 for record in RecordSource(lax, Trajectory))
    assert synthesized(lax, Deaf(), reward_thresholds=STRICT).already_complete
    again = synthesized(lax, Deaf())
    assert (again.kept, again.rejected) == (before.kept, before.rejected)
    assert bytes_of(lax) == bytes_before


def test_a_selection_keeps_the_same_as_a_run_with_these_thresholds(tmp_path):
    one_try = {"max_attempts_per_trajectory": 1, "count": 15}
    synthesized(tmp_path / "a", reward_thresholds=STRICT, **one_try)
    synthesized(tmp_path / "b", reward_thresholds=LAX, **one_try)
    synthesized(tmp_path / "b", Deaf(), reward_thresholds=STRICT, **one_try)
    assert list(RecordSource(tmp_path / "a", Trajectory)) == list(RecordSource(tmp_path / "b", Trajectory))


def test_a_lower_threshold_keeps_at_most_count_and_counts_items_never_worked_on(tmp_path):
    out = tmp_path / "out"
    synthesized(out, reward_thresholds=STRICT, count=36)
    lower = TaskThresholds(realism=0.0)
    report = synthesized(out, Deaf(), reward_thresholds=LAX, task_thresholds=lower, count=36)
    assert report.kept == 36
    assert report.rejected["never worked on"] > 0
    assert report.rejected["more than count"] > 0
    assert report.rejected["low realism"] == 0


def test_rejected_items_of_another_run_are_never_selected_from(lax, tmp_path):
    synthesized(tmp_path / "b", max_turns=15)  # as many of each, so that no count tells them apart
    rejected_beside(lax).rename(tmp_path / "elsewhere")
    rejected_beside(tmp_path / "b").rename(rejected_beside(lax))
    before = bytes_of(lax)
    with pytest.raises(RecordDirectoryError, match="has the rejected items of another run"):
        synthesized(lax, Deaf(), reward_thresholds=STRICT)
    assert bytes_of(lax) == before


def modest():
    """A teacher that finds something to object to in every plan."""
    return Otherwise({JudgePlanning: lambda request, reply, seed: altered(reply, score=0.5)})


def test_a_selection_that_would_keep_nothing_leaves_everything_as_it_is(tmp_path):
    out = tmp_path / "out"
    synthesized(out, modest(), count=8)
    before = bytes_of(out)
    with pytest.raises(NothingKept):
        synthesized(out, modest(), count=8, reward_thresholds=RewardThresholds(mean=1.0))
    assert bytes_of(out) == before


@pytest.mark.parametrize("killed_after", [1, 2])
def test_a_selection_that_is_killed_half_way_loses_nothing(strict, monkeypatch, killed_after):
    out, before, steps = strict, bytes_of(strict), 0

    class Killed(BaseException):
        pass

    def counted(method):
        def step(self, *arguments):
            nonlocal steps
            if steps == killed_after:
                raise Killed
            steps += 1
            return method(self, *arguments)

        return step

    with monkeypatch.context() as killing:
        killing.setattr(TrackRun, "write", counted(TrackRun.write))
        killing.setattr(TrackRun, "write_rejected", counted(TrackRun.write_rejected))
        with pytest.raises(Killed):
            synthesized(out, Deaf(), reward_thresholds=LAX)
    synthesized(out, Deaf(), reward_thresholds=RewardThresholds(mean=0.5))
    synthesized(out, Deaf(), reward_thresholds=STRICT)
    assert bytes_of(out) == before


def test_nothing_of_a_run_that_kept_nothing_is_thrown_away(tmp_path):
    with pytest.raises(NothingKept):
        synthesized(tmp_path / "out", modest(), count=4, reward_thresholds=RewardThresholds(mean=1.0))
    assert not (tmp_path / "out").exists()
    assert len(rejected_in(tmp_path / "out")) == 8


def test_replies_are_kept_beside_the_output_X(tmp_path):
    config = OpenAITeacherConfig(model="m")
    assert config.with_replies_beside(tmp_path / "out").cache == tmp_path / "out.replies.sqlite"
    named = OpenAITeacherConfig(model="m", cache=tmp_path / "else.sqlite")
    assert named.with_replies_beside(tmp_path / "out").cache == tmp_path / "else.sqlite"


BOOKING = "Please find a hotel in Oslo for the second of May and book the cheapest room for Ana Lind"
CHINESE = "请帮我查询奥斯陆五月二日的酒店，并为林安娜预订最便宜的房间，谢谢你"


def repeated(*texts: str, least: float = 0.8) -> list[int]:
    return list(duplicates(((number, text, number) for number, text in enumerate(texts)), least))


@pytest.mark.parametrize("text", [BOOKING, CHINESE])
def test_a_task_with_a_word_put_before_it_is_a_near_duplicate_and_the_first_one_stays(text):
    assert repeated(text, f"Well, {text}!") == [1]
    assert repeated(f"Well, {text}!", text) == [1]
    assert repeated("Check weather!", "check, weather") == [1]  # shorter than a run of words


def test_a_variant_may_be_like_its_own_family_and_no_other():
    asked = [(0, BOOKING, 0), (1, f"Well, {BOOKING}!", 0), (2, f"Oh, {BOOKING}!", 2), (3, BOOKING, 0)]
    assert duplicates(asked, 0.8) == {2: "near-duplicate task", 3: "duplicate task"}


def test_a_task_with_another_fact_is_another_task():
    assert repeated(BOOKING, BOOKING.replace("Oslo", "Lima").replace("Ana", "Raj")) == []
    assert repeated(CHINESE, CHINESE.replace("奥斯陆", "利马").replace("林安娜", "王伟")) == []


@pytest.mark.parametrize("least", [0.5, 0.7, 0.8])
def test_the_duplicates_are_those_of_a_comparison_of_all_with_all_kept_ones(least):
    rng = Random(0)
    texts: list[str] = []
    for _ in range(60):
        base = [f"word{rng.randrange(300)}" for _ in range(rng.randint(3, 30))]
        for _ in range(4):
            texts.append(" ".join(base))
            base[rng.randrange(len(base))] = f"word{rng.randrange(300)}"
    kept: list[set[tuple[str, ...]]] = []
    expected = []
    for number, found in enumerate(set(runs_of(text)) for text in texts):
        if any(len(found & earlier) / len(found | earlier) >= least for earlier in kept):
            expected.append(number)
        else:
            kept.append(found)
    assert 10 < len(expected) < 230
    assert repeated(*texts, least=least) == expected


def test_near_duplicates_are_counted_with_their_reason_and_replaced(tmp_path):
    strict = synthesized(tmp_path / "strict", ProceduralTeacher(), count=40, near_duplicate_similarity=0.35)
    assert strict.rejected["near-duplicate task"] > 0
    assert strict.kept == 40
