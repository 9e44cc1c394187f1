"""`records verify` on trajectories: the procedural teacher's are replayed, others are checked by digest."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource, write_records
from synthesis.records import InjectedFailure, Message, Trajectory
from synthesis.stage import Rejected
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.verification import verify_trajectories, verify_trajectory
from tests.synthesis.altered import altered


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trajectories") / "out"
    config = TrajectoriesConfig(seed=4, count=40, out=out, max_offered_tools=6, follow_up_share=0.3)
    asyncio.run(synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO()))
    return out


@pytest.fixture(scope="module")
def trajectories(directory: Path) -> list[Trajectory]:
    return list(RecordSource(directory, Trajectory))


def verify(trajectory: Trajectory) -> None:
    asyncio.run(verify_trajectory(trajectory, ProceduralTeacher()))


def changed(trajectory: Trajectory, place: int, **changes: Any) -> Trajectory:
    messages = list(trajectory.messages)
    messages[place] = messages[place].model_copy(update=changes)
    return altered(trajectory, messages=tuple(messages))


def of_a_language_model(trajectory: Trajectory) -> Trajectory:
    """The same of a teacher that cannot be asked again."""
    provenance = altered(trajectory.provenance, teacher="openai:mock")
    return altered(trajectory, provenance=provenance)


def with_call(trajectories: list[Trajectory]) -> tuple[Trajectory, int]:
    """A conversation of one successful call at the start, and the place of its message."""
    trajectory = next(
        each for each in trajectories if len(each.messages[1].tool_calls) == 1 and not each.messages[2].is_error
    )
    return trajectory, 1


def test_trajectories_verify_and_the_digest_shows_a_changed_word(
    directory: Path, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    report = asyncio.run(verify_trajectories(directory, ProceduralTeacher()))
    assert (report.read, report.failures) == (40, [])
    other_words = [changed(of_a_language_model(each), -1, content="Nobody knows.") for each in trajectories[:5]]
    write_records(tmp_path / "out", other_words, kind="trajectory")
    report = asyncio.run(verify_trajectories(tmp_path / "out", ProceduralTeacher()))
    assert [name for name, _ in report.failures] == [each.id for each in other_words]
    assert all("changed after it was written" in reason for _, reason in report.failures)


def test_every_call_is_checked_against_its_tools_document_with_any_teacher(
    trajectories: list[Trajectory],
) -> None:
    for trajectory in trajectories:
        renamed = of_a_language_model(trajectory)
        for place, message in enumerate(trajectory.messages):
            calls = tuple(altered(call, name="look_up") for call in message.tool_calls)
            renamed = changed(renamed, place, tool_calls=calls)
        if any(message.tool_calls and not message.is_error for message in trajectory.messages):
            with pytest.raises(Rejected, match=r"call that its tool does not take: .* unknown tool: look_up"):
                verify(renamed)
    trajectory, place = with_call(trajectories)
    (call,) = trajectory.messages[place].tool_calls
    for arguments, error in (({**call.arguments, call.name: {}}, ""), ({}, "is a required property")):
        asked = altered(call, arguments=arguments)
        documents = {tool.name: tool for tool in trajectory.tools}
        if arguments or documents[call.name].required:
            with pytest.raises(Rejected, match=f"call that its tool does not take|another response.*{error}"):
                verify(changed(trajectory, place, tool_calls=(asked,)))


def test_an_emulated_response_is_emulated_again_and_a_failure_reads_as_its_kind_does(
    trajectories: list[Trajectory],
) -> None:
    trajectory, place = with_call(trajectories)
    with pytest.raises(Rejected, match="another response"):
        verify(changed(trajectory, place + 1, content=trajectory.messages[place + 1].content.replace("a", "e")))
    others = tuple(altered(tool, output_schema={"not": {}}) for tool in trajectory.tools)
    with pytest.raises(Rejected, match=r"another response|unusable reply: .* by its output schema"):
        verify(altered(trajectory, tools=others))
    failed = next(each for each in trajectories if each.injected_failures)
    failure = failed.injected_failures[0]
    at = next(n for n, message in enumerate(failed.messages) if message.tool_call_id == failure.tool_call_id)
    for broken in (changed(failed, at, is_error=False), changed(failed, at, content='{"error": "try again"}')):
        with pytest.raises(Rejected, match="injected failure is none"):
            verify(of_a_language_model(broken))
    stray = InjectedFailure(tool_call_id="call_99", kind="timeout")
    with pytest.raises(Rejected, match="injected failure without its call: call_99"):
        verify(altered(failed, injected_failures=(*failed.injected_failures, stray)))
    with pytest.raises(Rejected, match="another response"):
        verify(altered(failed, injected_failures=()))


def test_scores_are_counted_and_judged_again(trajectories: list[Trajectory]) -> None:
    failed = next(each for each in trajectories if each.injected_failures)
    raised = altered(failed, reward=altered(failed.reward, tool_call_status=1.0))
    with pytest.raises(Rejected, match="another tool call status: expected 0"):
        verify(of_a_language_model(raised))
    lowered = altered(failed, reward=altered(failed.reward, planning=0.25))
    verify(of_a_language_model(lowered))
    with pytest.raises(Rejected, match=r"another planning: expected .*, found 0.25"):
        verify(lowered)


def test_a_conversation_begins_with_its_task_answers_every_call_once_and_ends(trajectories: list[Trajectory]) -> None:
    trajectory, place = with_call(trajectories)
    messages, at = trajectory.messages, place + 1
    stray = Message(role="tool", content="1", tool_call_id="call_99")
    for reason, changes in (
        ("does not begin with its task", {"messages": (Message(role="user", content="Else."), *messages[1:])}),
        ("response without its call", {"messages": (*messages[: at + 1], *messages[at:])}),
        ("response without its call", {"messages": (*messages[:at], stray, *messages[at:])}),
        ("call without its response", {"messages": (*messages[:at], *messages[at + 1 :])}),
        ("no end", {"messages": messages[:-1]}),
        ("no end", {"stop_reason": "max_turns"}),
    ):
        with pytest.raises(Rejected, match=reason):
            verify(altered(trajectory, **changes))
