"""Merging: homogeneous sub-questions share one tool whose data covers all their variants.

Sub-environments are inserted one at a time, and after each insertion every earlier answer is tested again. Where two
tools cannot be joined they stay apart under distinct names; the instance is not lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from synthesis.environments.call_batches import Sandbox
from synthesis.environments.proof import prove, replay_gold_calls
from synthesis.environments.sub_environments import SubEnvironment
from synthesis.prompts.tool_merging import MergeTools
from synthesis.records import EnvironmentTool, SubQuestion
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Teacher


async def merge_sub_environments(
    teacher: Teacher, sandbox: Sandbox, sub_environments: Sequence[SubEnvironment], *, seed: int
) -> tuple[tuple[SubQuestion, ...], tuple[EnvironmentTool, ...]]:
    """Join the tools of homogeneous sub-questions; return the sub-questions, in order, and the tools they call.

    Raises:
        Rejected: a joined tool answered every gold call, and yet its whole proof fails.
        TeacherUnavailable: the teacher cannot be asked.
        SandboxUnavailable: the sandbox gives no answer.
    """
    merged: list[EnvironmentTool] = []
    answered: list[list[SubQuestion]] = []
    sub_questions: list[SubQuestion] = []
    for sub_environment in sub_environments:
        sub_question, tool = sub_environment.sub_question, sub_environment.tool
        if tool is None:
            sub_questions.append(sub_question)
            continue
        for slot, there in enumerate(merged):
            if not homogeneous(there, tool):
                continue
            try:
                merged[slot] = await _insert(teacher, sandbox, there, tool, [*answered[slot], sub_question], seed)
            except (Rejected, BadReply):  # it stays apart
                continue
            answered[slot].append(sub_question)
            break
        else:
            tool, sub_question = _under_free_name(tool, sub_question, {there.document.name for there in merged})
            merged.append(tool)
            answered.append([sub_question])
        sub_questions.append(sub_question)
    # Insertions replayed gold calls alone; the whole proof, with its many more calls, is run once.
    joined = [(tool, answers) for tool, answers in zip(merged, answered, strict=True) if len(answers) > 1]
    if joined:
        await prove(sandbox, joined)
    return tuple(sub_questions), tuple(merged)


def homogeneous(one: EnvironmentTool, other: EnvironmentTool) -> bool:
    """Say whether two tools do the same for different arguments: they have the same document."""
    return one.document == other.document


async def _insert(
    teacher: Teacher,
    sandbox: Sandbox,
    merged: EnvironmentTool,
    inserted: EnvironmentTool,
    sub_questions: Sequence[SubQuestion],
    seed: int,
) -> EnvironmentTool:
    request = MergeTools(merged=merged, inserted=inserted, sub_questions=tuple(sub_questions))
    reply = await teacher.ask(request, seed=seed)
    joined = EnvironmentTool(document=merged.document, source=reply.source, tables=reply.tables)
    await replay_gold_calls(sandbox, [(joined, sub_questions)])
    return joined


def _under_free_name(
    tool: EnvironmentTool, sub_question: SubQuestion, taken: set[str]
) -> tuple[EnvironmentTool, SubQuestion]:
    name = tool.document.name
    if name not in taken:
        return tool, sub_question
    # One number more than names are taken, so one is free; 60 characters leave room for it under the limit of 64.
    free = next(f"{name[:60]}_{number}" for number in range(2, len(taken) + 3) if f"{name[:60]}_{number}" not in taken)
    document = tool.document.model_copy(update={"name": free, "original_name": tool.document.original_name or name})
    source = re.sub(rf"\b{re.escape(name)}\b", free, tool.source)
    call = sub_question.call and sub_question.call.model_copy(update={"name": free})
    return (
        tool.model_copy(update={"document": document, "source": source}),
        sub_question.model_copy(update={"call": call}),
    )
