"""Planted faults have no other mark than themselves, and the shipped judge and thresholds stop them."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from random import Random

import pytest

from astra_jax.cli.command import main
from synthesis.audit.audit import audit
from synthesis.audit.planted import KINDS, Elsewhere, answered_calls, planted, scalars
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts import judges
from synthesis.record_io import RecordDirectoryError, RecordSource, write_records
from synthesis.records import RewardAxes, Trajectory
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.reward_axes import RewardThresholds
from synthesis.trajectories.verification import check_calls, check_shape

NOTHING_ASKED = {"mean": 0.0, "every_axis": 0.0, "tool_call_status": 0.0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Conversations of which none was rejected for its scores, on another seed and other shares than was tuned on."""
    out = tmp_path_factory.mktemp("trajectories") / "out"
    shares = {"follow_up_share": 0.3, "augmentation_share": 0.75, "reward_thresholds": NOTHING_ASKED}
    config = TrajectoriesConfig.model_validate(
        {"seed": 11, "count": 110, "out": out, "max_offered_tools": 10, **shares}
    )
    asyncio.run(synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO()))
    return out


@pytest.fixture(scope="module")
def trajectories(directory):
    return list(RecordSource(directory, Trajectory))


def in_other_words(trajectory: Trajectory, rng: Random) -> Trajectory | None:
    """The same answer in words that the embedded teacher does not have; None where it tells no values."""
    zh = trajectory.language == "zh"
    told = re.fullmatch(r"(?:Done\.|已完成。|[^:：]*[:：])\s*(.+)[.。]", trajectory.messages[-1].content)
    is_apology = re.search(r"could not|not able|未能|没有办成|此前", trajectory.messages[-1].content)
    if told is None or is_apology or trajectory.task.expectation != "answer":
        return None
    frames = {
        True: (
            "根据刚才的查询，{}。如果还有别的需要，随时告诉我。",
            "您要办的事都安排妥当了，具体如下：{}。",
            "没问题，最新的数据是{}。",
        ),
        False: (
            "According to what the lookup brought back, {}. Anything further you would like me to arrange?",
            "Great news! It all went smoothly, and here are the essentials:\n- {}",
            "I've gone ahead with it. You will see {}.",
        ),
    }
    content = rng.choice(frames[zh]).format(told[1])
    last = trajectory.messages[-1].model_copy(update={"content": content})
    return trajectory.model_copy(update={"messages": (*trajectory.messages[:-1], last), "digest": ""})


def shares(directory: Path, judge: ProceduralTeacher) -> dict[str, float]:
    audited = asyncio.run(audit(directory, judge, RewardThresholds(), at_most=110, seed=4))
    assert all(each.count >= 15 for each in audited), audited
    return {each.kind: each.share for each in audited}


@pytest.mark.parametrize("other_words", [False, True])
def test_the_unmodified_pass_and_each_kind_of_fault_does_not_in_any_words(
    directory, trajectories, tmp_path, other_words
):
    if other_words:
        said = [in_other_words(each, Random(each.id)) for each in trajectories]
        write_records(tmp_path / "out", [each for each in said if each is not None], kind="trajectory")
        directory = tmp_path / "out"
    passing = shares(directory, ProceduralTeacher())
    assert passing.pop("unmodified") >= 0.97
    assert list(passing) == list(KINDS)
    assert max(passing.values()) <= 0.05, passing


def test_a_judge_that_approves_of_everything_is_found_out(directory):
    class Approving(ProceduralTeacher):
        async def ask(self, request, *, seed):
            if isinstance(request, judges.JudgeConversation):
                return judges.Judgement(score=1.0, reason="so")
            return await super().ask(request, seed=seed)

    passing = shares(directory, Approving())
    assert min(passing[kind] for kind in ("wrong arguments", "skipped step", "wrong tool")) > 0.9
    assert (passing["no call"], passing["wrong language"]) == (0, 0)  # by rule, without the judge


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_fault_is_a_whole_conversation_of_possible_calls(kind, trajectories):
    elsewhere, num_planted = Elsewhere(trajectories), 0
    for sound in trajectories:
        bad = planted(kind, sound, elsewhere, Random(sound.id))
        if bad is None:
            continue
        num_planted += 1
        assert bad.model_copy(update={"messages": sound.messages}) == sound
        if kind.endswith("made up"):
            assert bad.messages[:-1] == sound.messages[:-1]
        check_shape(bad)
        ids = [call.id for call, _ in answered_calls(bad.messages)]
        assert ids == [f"call_{ordinal}" for ordinal in range(1, len(ids) + 1)]
        check_calls(bad.model_copy(update={"injected_failures": ()}))
    assert num_planted >= 15


@pytest.mark.parametrize("depth", [300, 900, 2000, 100_000])
def test_a_response_that_nests_deeper_than_python_reads_is_a_text(depth):
    inner = '[1, {"price": 90}, '
    found = list(scalars(inner * depth + "2" + "]" * depth))
    assert found in ([], [value for _ in range(depth) for value in (("", 1), ("price", 90))] + [("", 2)])
    assert depth < 1000 or found == []
    assert list(scalars("[" * depth)) == []


def test_the_command_prints_counts_and_auc_and_refuses_other_records(directory, tmp_path, capsys):
    assert not main(["records", "audit", str(directory), "--count", "30", "--json"])
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    assert list(kinds) == ["unmodified", *KINDS]
    assert kinds["unmodified"]["count"] == 30
    assert kinds["unmodified"]["auc"] == dict.fromkeys(RewardAxes.AXES, 0.5)
    assert kinds["no call"]["auc"] == dict.fromkeys(RewardAxes.AXES)
    assert kinds["needless calls"]["auc"]["tool_response_conditioned_planning"] > 0.95
    assert not main(["records", "audit", str(directory), "--count", "30"])
    assert "wrong language" in capsys.readouterr().out
    write_records(tmp_path / "none", [], kind="trajectory")
    with pytest.raises(RecordDirectoryError, match="has no record; name another directory"):
        shares(tmp_path / "none", ProceduralTeacher())
