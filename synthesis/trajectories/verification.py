"""Verification of trajectories: calls, failures and scores of the record, replayed where possible.

    shape       the task's request comes first; each call has its response; the last message has no call
    calls       each was possible by its tool's document, or its response says that it was not
    failures    each that was injected stands in the response, and reads as its kind does
    scores      tool-call status and conciseness are those of the messages
    emulator    where the embedded teacher has emulated the tools: each call gets the same response again
    judges      where the embedded teacher has judged: each axis has the same score again
    digest      nothing has changed since the record was written

Replies of real tool servers and of language models cannot be had again: only the digest protects them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from synthesis.record_io import RecordSource, check_shards
from synthesis.records import Message, RewardAxes, ToolCall, Trajectory
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.tools.backends import Emulator, is_injected_failure
from synthesis.trajectories.collection import call_error, rejected_with
from synthesis.trajectories.reward_axes import judge_axes, tool_call_status, tool_conciseness
from synthesis.verification import VerificationReport, check_digest, verify_records


async def verify_trajectories(directory: Path, embedded: Teacher) -> VerificationReport:
    """Verify every trajectory of a record directory; replies of the `embedded` teacher are asked for again.

    Raises:
        RecordDirectoryError: the directory is missing or damaged.
    """
    check_shards(directory)

    async def verify(trajectory: Trajectory) -> None:
        await verify_trajectory(trajectory, embedded)
        check_digest(trajectory)  # last: a fault that a replay finds says more

    return await verify_records(RecordSource(directory, Trajectory), verify)


async def verify_trajectory(trajectory: Trajectory, embedded: Teacher) -> None:
    """Check one trajectory, all but its digest.

    Raises:
        Rejected: the first promise that is broken.
    """
    check_shape(trajectory)
    check_calls(trajectory)
    task, tools, messages = trajectory.task, trajectory.tools, trajectory.messages
    by_rule = {"tool_call_status": tool_call_status(messages), "tool_conciseness": tool_conciseness(messages, tools)}
    _require_scores(trajectory.reward, by_rule)
    if trajectory.provenance.teacher == embedded.name:
        if trajectory.tool_backend == "emulator":
            await _replay_responses(trajectory, embedded)
        again = await judge_axes(task, tools, messages, embedded, seed=0)
        _require_scores(trajectory.reward, {axis: getattr(again, axis) for axis in RewardAxes.AXES})


def check_shape(trajectory: Trajectory) -> None:
    """Check that the messages are a whole conversation about the task.

    Raises:
        Rejected: it does not begin with the task or end with an answer, or a call and its response do not match.
    """
    messages = trajectory.messages
    if not messages or messages[0] != Message(role="user", content=trajectory.task.text):
        raise Rejected("conversation does not begin with its task", trajectory.task.text[:80])
    if messages[-1].role != "assistant" or messages[-1].tool_calls or trajectory.stop_reason != "no_tool_call":
        raise Rejected("conversation has no end", f"{messages[-1].role}, {trajectory.stop_reason}")
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not waiting or message.tool_call_id != waiting.pop(0):
                raise Rejected("response without its call", str(message.tool_call_id))
        elif waiting:
            raise Rejected("call without its response", waiting[0])
        else:
            waiting = [call.id for call in message.tool_calls]
    ids = [call.id for call, _ in calls_and_responses(trajectory)]
    if len(set(ids)) < len(ids):
        raise Rejected("call id stands twice", ", ".join(ids))


def check_calls(trajectory: Trajectory) -> None:
    """Check every call against its tool's document, and every failure against the injected ones.

    Raises:
        Rejected: a call that no tool could take has a normal response, or an injected failure does not read as one.
    """
    documents = {tool.name: tool for tool in trajectory.tools}
    if len(documents) < len(trajectory.tools):
        raise Rejected("tool name stands twice", ", ".join(tool.name for tool in trajectory.tools))
    injected = {failure.tool_call_id: failure.kind for failure in trajectory.injected_failures}
    for call, response in calls_and_responses(trajectory):
        error = call_error(call, documents)
        if error is not None and not response.is_error:
            raise Rejected("call that its tool does not take", f"{call.id}: {error}")
        kind = injected.pop(call.id, None)
        if kind is not None and not (response.is_error and is_injected_failure(kind, response.content)):
            raise Rejected("injected failure is none", f"{call.id}: {kind}, found {response.content[:80]!r}")
    if injected:
        raise Rejected("injected failure without its call", ", ".join(injected))


def calls_and_responses(trajectory: Trajectory) -> Iterator[tuple[ToolCall, Message]]:
    """Yield each call with its response, in order, of a conversation whose calls have responses."""
    calls = (call for message in trajectory.messages for call in message.tool_calls)
    return zip(calls, (message for message in trajectory.messages if message.role == "tool"), strict=True)


def _require_scores(reward: RewardAxes, expected: Mapping[str, float | None]) -> None:
    for axis, value in expected.items():
        found: float | None = getattr(reward, axis)
        if (found is None) != (value is None) or not math.isclose(found or 0.0, value or 0.0, abs_tol=1e-9):
            raise Rejected(f"another {axis.replace('_', ' ')}", f"expected {value}, found {found}")


async def _replay_responses(trajectory: Trajectory, embedded: Teacher) -> None:
    documents = {tool.name: tool for tool in trajectory.tools}
    injected = {failure.tool_call_id: failure.kind for failure in trajectory.injected_failures}
    # The failures are those of the record, so that none is drawn again.
    emulator = Emulator(embedded, language=trajectory.task.language, seed=0, failure_rate=0.0)
    for call, response in calls_and_responses(trajectory):
        if call_error(call, documents) is not None:
            continue
        state = emulator.state
        with rejected_with(dict):  # a document whose schema the reply does not satisfy is another one
            again = await emulator.call(call.id, documents[call.name], call.arguments)
        is_same = (response.content, response.is_error) == (again.content, again.is_error)
        if (kind := injected.get(call.id)) is not None:
            emulator.state = state  # a failed call changes none
            value = "null" if again.is_error else again.content  # the one that a malformed response is cut from
            is_same = kind != "malformed" or value.startswith(response.content[:-1])
        if not is_same:
            said = f"expected {again.content[:80]!r}, found {response.content[:80]!r}"
            raise Rejected("another response", f"{call.id}: {said}")
