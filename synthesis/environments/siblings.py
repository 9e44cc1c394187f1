"""Siblings of an environment's tools: distractors of the same parameters that answer something else, as is proven here.

each own tool ─► siblings written ─► their code is allowed, and they run ─► none gives one of the answers
"""

from __future__ import annotations

from typing import Final

from sandbox.client import ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.environments.call_batches import Sandbox
from synthesis.environments.proof import PROOF_LIMITS
from synthesis.environments.tool_source import check_source
from synthesis.prompts.sibling_tools import WriteSiblingTools
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, EnvironmentTool, JsonValue, SubQuestion, ToolCall
from synthesis.stage import Rejected, all_in_order
from synthesis.teacher.protocol import Teacher

SIBLINGS_PER_TOOL: Final = 2


async def write_siblings(
    teacher: Teacher, sandbox: Sandbox, knowledge: Knowledge, environment: Environment, *, seed: int
) -> tuple[EnvironmentTool, ...]:
    """Have siblings written for every tool; those whose name is taken, or that give an answer, are left out.

    Raises:
        BadReply: the teacher has no usable answer for one of the tools.
        Rejected: no sibling is left, or one has code that is not allowed.
        TeacherUnavailable: the teacher cannot be asked.
        SandboxUnavailable: the sandbox gives no answer.
    """
    golds = tuple(task.answer for task in environment.sub_tasks)

    async def of_tool(tool: EnvironmentTool) -> list[tuple[EnvironmentTool, list[ToolCall]]]:
        tasks = _tasks_of(environment, tool)
        calls = [task.call for task in tasks if task.call is not None]
        request = WriteSiblingTools(
            knowledge=knowledge,
            document=tool.document.model_copy(update={"parameters": _required_alone(tool)}),
            sub_question=tasks[0].question,
            calls=tuple(calls),
            count=SIBLINGS_PER_TOOL,
        )
        return [(sibling, calls) for sibling in (await teacher.ask(request, seed=seed)).tools]

    called = [tool for tool in environment.tools if _tasks_of(environment, tool)]
    written = [pair for pairs in await all_in_order(of_tool(tool) for tool in called) for pair in pairs]
    for sibling, _ in written:
        check_source(sibling.source, sibling.document, golds)
    requests = [_request(sibling, call) for sibling, calls in written for call in calls]
    replies = iter(await sandbox.execute_batch(requests))
    names = {tool.document.name for tool in environment.tools}
    kept = []
    for sibling, calls in written:
        values = [next(replies) for _ in calls]
        # One that fails, or that gives what somebody is to find, is no sibling.
        tells_another = all(reply.ok and not any(same_answer(gold, reply.value) for gold in golds) for reply in values)
        if tells_another and sibling.document.name not in names:
            names.add(sibling.document.name)
            kept.append(sibling)
    if not kept:
        raise Rejected("no sibling tool", f"{len(written)} were written for {sorted(names)[:3]}")
    return tuple(kept)


def _tasks_of(environment: Environment, tool: EnvironmentTool) -> list[SubQuestion]:
    return [task for task in environment.sub_tasks if task.call and task.call.name == tool.document.name]


def _required_alone(tool: EnvironmentTool) -> dict[str, JsonValue]:
    """The tool's parameters without the optional ones, which a sibling need not have."""
    properties = tool.document.parameters.get("properties", {})
    required = list(tool.document.required)
    return {"type": "object", "properties": {name: properties[name] for name in required}, "required": required}


def _request(sibling: EnvironmentTool, call: ToolCall) -> ExecuteRequest:
    required = {name: call.arguments[name] for name in sibling.document.required if name in call.arguments}
    return ExecuteRequest(
        source=sibling.module_source(), function=sibling.document.name, arguments=required, limits=PROOF_LIMITS
    )
