"""The whole track: same seed, same bytes; killed and resumed, same bytes; nothing in a record that must not be."""

import io
from pathlib import Path
from random import Random

import pytest
from pydantic import ValidationError

from synthesis.answers.expectation import meets_expectation
from synthesis.procedural.judgements import judge_answer_summary
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.agent_turn import TakeTurn
from synthesis.prompts.judges import JudgeAnswerSummary, Judgement, JudgePlanning
from synthesis.prompts.simulated_user import ContinueAsUser, UserTurn
from synthesis.prompts.tasks import ScoredTask, ScoreTask
from synthesis.record_io import RecordSource, check_shards
from synthesis.records import Trajectory
from synthesis.stage import NothingKept
from synthesis.teacher.protocol import TeacherUnavailable
from synthesis.tools.ingestion import require_work_directory
from synthesis.tools.sources import SourceMissing
from synthesis.trajectories.collection import call_error
from synthesis.trajectories.follow_ups import requests_of
from synthesis.trajectories.pipeline import NoToolDocuments, TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.tasks import is_stated, leaked_tool_names
from tests.synthesis.otherwise import Otherwise


def config(out: Path, **changes) -> TrajectoriesConfig:
    return TrajectoriesConfig(**({"count": 40, "out": out, "max_offered_tools": 6} | changes))


async def synthesize(out: Path, teacher=None, **changes):
    return await synthesize_trajectories(config(out, **changes), teacher or ProceduralTeacher(), progress=io.StringIO())


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory) -> list[Trajectory]:
    import asyncio

    out = tmp_path_factory.mktemp("trajectories") / "out"
    report = asyncio.run(synthesize(out, count=80, seed=5))
    assert report.kept == 80
    check_shards(out)
    return list(RecordSource(out, Trajectory))


async def test_order_of_work_and_a_second_run_change_no_byte(tmp_path):
    for out, changes in (("a", {"concurrency": 1}), ("b", {"concurrency": 50}), ("c", {"seed": 1})):
        await synthesize(tmp_path / out, count=20, **changes)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert bytes_of(tmp_path / "a") != bytes_of(tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.rejected", "b", "b.rejected", "c", "c.rejected"]


def test_every_answer_of_the_embedded_teacher_tells_of_every_response(trajectories):
    for trajectory in trajectories:
        question = JudgeAnswerSummary(task=trajectory.task, tools=trajectory.tools, conversation=trajectory.messages)
        assert judge_answer_summary(question, 0).score == 1, trajectory.messages[-1].content


def test_every_trajectory_is_whole_and_true_to_its_task(trajectories):
    for trajectory in trajectories:
        documents = {tool.name: tool for tool in trajectory.tools}
        calls = [call for message in trajectory.messages for call in message.tool_calls]
        responses = {message.tool_call_id: message for message in trajectory.messages if message.role == "tool"}
        assert [call.id for call in calls] == list(responses)
        assert all(call_error(call, documents) is None for call in calls)
        assert trajectory.messages[0].role == "user"
        assert trajectory.messages[-1].role == "assistant"
        assert not trajectory.messages[-1].tool_calls
        assert all(
            0 < len(message.reasoning_content.split()) < 20
            for message in trajectory.messages
            if message.role == "assistant"
        )
        assert not leaked_tool_names(trajectory.task.text, trajectory.tools)
        assert all(not is_stated(v, trajectory.task.text) for v in trajectory.task.hidden_parameters.values())
        assert trajectory.task.persona is None  # the embedded teacher reads none
        failed = {failure.tool_call_id for failure in trajectory.injected_failures}
        assert failed <= {call_id for call_id, response in responses.items() if response.is_error}
        expectation = trajectory.task.expectation
        # A refusal does the possible part first: all calls but the last, whose tool is withheld.
        assert (not calls) == (expectation == "refuse" and len(trajectory.task.chain.tools) == 1)
        assert sum(message.role == "user" for message in trajectory.messages) == 1 + (expectation == "ask_back")
        if expectation == "refuse":
            assert trajectory.task.chain.tools[-1] not in documents
            assert meets_expectation("refuse", trajectory.messages[-1].content)
            assert {call.name for call in calls} == set(trajectory.task.chain.tools[:-1])
        assert trajectory.made_by.startswith("made by templates, for trying the machinery")


def test_the_set_has_every_kind_of_task_in_both_languages(trajectories):
    for kind in ("answer", "refuse", "ask_back"):
        assert {t.language for t in trajectories if t.task.expectation == kind} == {"en", "zh"}
    assert {t.task.augmentation for t in trajectories} == {"original", "diversity", "complexity", "persona"}
    assert {t.task.mode for t in trajectories} == {"chain", "server"}
    assert len({t.task.text for t in trajectories}) == len(trajectories)
    assert any(len(m.tool_calls) > 1 for t in trajectories for m in t.messages)


async def test_every_kept_task_has_the_scores_of_its_own_requests_and_variants_stand_beside_their_originals(tmp_path):
    def score_of(text: str) -> float:
        return Random(text).uniform(0.8, 1)

    def score(request, *_):
        of_text = score_of(request.text)
        return ScoredTask(reason="so", clarity=of_text, realism=of_text, tool_necessity=of_text)

    teacher = Otherwise({ScoreTask: score, ContinueAsUser: lambda *_: UserTurn(continues=False)}, times=None)
    await synthesize(tmp_path / "out", teacher, count=80, follow_up_share=0.4)
    tasks = {record.task.id: record.task for record in RecordSource(tmp_path / "out", Trajectory)}
    assert all(task.scores.clarity == score_of("\n".join(requests_of(task))) for task in tasks.values())
    varied = [task for task in tasks.values() if task.variant_of]
    assert {task.augmentation for task in varied} == {"diversity", "complexity", "persona"}
    assert len(varied) > 30
    for task in varied:
        if task.variant_of in tasks:  # not where its conversation was rejected
            original = tasks[task.variant_of]
            assert (original.augmentation, original.slots) == ("original", task.slots)
            assert original.text != task.text
    assert sum(task.variant_of in tasks for task in varied) > 0.9 * len(varied)


HARSH = {
    JudgePlanning: lambda *_: Judgement(score=0.3, reason="no plan"),
    ScoreTask: lambda *_: ScoredTask(reason="so", clarity=0.7, realism=0.7, tool_necessity=0.7),
}
"""Every plan is poor, and no task is very clear."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reward_thresholds": {"every_axis": 0.4}}, "low planning"),
        ({"reward_thresholds": {"every_axis": 0.1, "mean": 1.0}}, "low mean reward"),
        ({"task_thresholds": {"clarity": 0.8}}, "low clarity"),
        ({"max_turns": 1, "refuse_share": 0.0}, "ended at max_turns"),
    ],
)
async def test_a_trajectory_below_a_threshold_or_without_an_end_is_not_kept(tmp_path, changes, reason):
    one_try = {"count": 6, "max_attempts_per_trajectory": 1}
    with pytest.raises(NothingKept, match=reason):
        await synthesize(tmp_path / "out", Otherwise(HARSH), **one_try, **changes)


async def test_an_outage_stops_the_run_cleanly_and_it_resumes_to_the_same_bytes(tmp_path):
    turns = iter(range(20))

    def answer(request, reply, seed):
        if next(turns, None) is None:
            raise TeacherUnavailable("the endpoint is down")
        return reply

    with pytest.raises(TeacherUnavailable):
        await synthesize(tmp_path / "out", Otherwise({TakeTurn: answer}), count=16)
    assert not (tmp_path / "out").exists()
    await synthesize(tmp_path / "out", count=16)
    await synthesize(tmp_path / "undisturbed", count=16)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "undisturbed")


async def test_no_key_no_header_and_no_path_of_the_machine_is_in_a_record(tmp_path, monkeypatch):
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key")
    git = {
        "name": "Git",
        "command": ["python", "-m", "mcp_server_git", "--repository", "."],
        "prepare": ["python", "-m", "astra_jax.recipes.tool_servers", "repositories"],
        "environment": {"GIT_TOKEN": "ghp-other-secret"},
        "argument_values": {
            "repo_path": ["notes"],
            "revision": ["HEAD"],
            "target": ["HEAD~1"],
            "branch_type": ["local"],
        },
    }
    await synthesize(tmp_path / "out", count=4, shipped_examples=False, mcp_servers=[git])
    records = list(RecordSource(tmp_path / "out", Trajectory))
    assert all(record.tool_backend == "mcp" for record in records)
    text = "".join(record.model_dump_json() for record in records) + (tmp_path / "out" / "dataset.json").read_text()
    for forbidden in ("very-secret", "other-secret", str(tmp_path), str(Path.home())):
        assert forbidden not in text


async def test_bad_configurations_end_in_one_clear_line(tmp_path):
    with pytest.raises(ValidationError, match="failure_rat"):
        config(tmp_path / "out", failure_rat=0.3)
    with pytest.raises(SourceMissing, match="does not exist; name a file or folder of tool documents"):
        await synthesize(tmp_path / "out", tool_documents=[tmp_path / "nowhere"])
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.json").write_text("{}")
    with pytest.raises(NoToolDocuments, match=r"unknown format 1.*; unknown format: a.json is none"):
        await synthesize(tmp_path / "out", shipped_examples=False, tool_documents=[tmp_path / "documents"])
    assert not (tmp_path / "out").exists()


def test_a_journal_that_a_kill_left_half_begun_is_this_runs_own(tmp_path):
    (tmp_path / "chains.sqlite-journal").touch()
    require_work_directory(tmp_path)
