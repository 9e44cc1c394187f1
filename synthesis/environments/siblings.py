"""Siblings of an environment's tools: distractors of the same parameters that answer something else, as is proven here.

each own tool ─► siblings written ─► their code is allowed, and they run ─► none gives one of the answers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from sandbox.client import ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.environments.call_batches import Sandbox
from synthesis.environments.proof import PROOF_LIMITS
from synthesis.environments.tool_source import check_source
from synthesis.prompts.sibling_tools import WriteSiblingTools
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, EnvironmentTool, JsonValue, SubQuestion
from synthesis.stage import Rejected, all_in_order
from synthesis.teacher.protocol import Teacher

SIBLINGS_PER_TOOL: Final = 2


async def write_siblings(
    teacher: Teacher, sandbox: Sandbox, knowledge: Knowledge, environment: Environment, *, seed: int
) -> tuple[EnvironmentTool, ...]:
    """Have siblings written for every tool that is called, and keep those that tell something else.

    Left out are those that are not allowed or do not run, whose name is taken, or that give an answer to a gold call.

    Raises:
        BadReply: the teacher has no usable answer for one of the tools.
        Rejected: no sibling is left.
        TeacherUnavailable: the teacher cannot be asked.
        SandboxUnavailable: the sandbox gives no answer.
    """
    golds = tuple(task.answer for task in environment.sub_tasks)

    async def of_tool(tool: EnvironmentTool) -> list[EnvironmentTool]:
        tasks = _tasks_of(environment, tool)
        request = WriteSiblingTools(
            knowledge=knowledge,
            document=tool.document.model_copy(update={"parameters": _required_alone(tool)}),
            sub_question=tasks[0].question,
            calls=tuple(task.call for task in tasks if task.call is not None),
            count=SIBLINGS_PER_TOOL,
        )
        return [sibling for sibling in (await teacher.ask(request, seed=seed)).tools if _is_allowed(sibling, golds)]

    called = [tool for tool in environment.tools if _tasks_of(environment, tool)]
    written = [tool for tools in await all_in_order(of_tool(tool) for tool in called) for tool in tools]
    names = {tool.document.name for tool in environment.tools}
    kept = []
    for sibling, told in zip(written, await tried_on_gold_calls(sandbox, written, environment), strict=True):
        if told == "something else" and sibling.document.name not in names:
            names.add(sibling.document.name)
            kept.append(sibling)
    if not kept:
        raise Rejected("no sibling tool", f"{len(written)} were written for {sorted(names)[:3]}")
    return tuple(kept)


async def tried_on_gold_calls(
    sandbox: Sandbox, tools: Sequence[EnvironmentTool], environment: Environment
) -> list[Literal["an answer", "something else", "nothing"]]:
    """Say of each tool what it tells for those gold calls of the environment whose arguments it takes.

    All of them, since a sibling may stand beside one tool and tell what another one does.

    Raises:
        SandboxUnavailable: the sandbox gives no answer.
    """
    golds = [task.answer for task in environment.sub_tasks]
    trials = [_requests(tool, environment) for tool in tools]
    replies = iter(await sandbox.execute_batch([request for requests in trials for request in requests]))
    told: list[Literal["an answer", "something else", "nothing"]] = []
    for requests in trials:
        values = [reply.value for reply in [next(replies) for _ in requests] if reply.ok]
        is_answer = any(same_answer(gold, value) for gold in golds for value in values)
        told.append("an answer" if is_answer else "something else" if values else "nothing")
    return told


def _is_allowed(sibling: EnvironmentTool, golds: tuple[JsonValue, ...]) -> bool:
    try:
        check_source(sibling.source, sibling.document, golds)
    except Rejected:
        return False
    return True


def _tasks_of(environment: Environment, tool: EnvironmentTool) -> list[SubQuestion]:
    return [task for task in environment.sub_tasks if task.call and task.call.name == tool.document.name]


def _required_alone(tool: EnvironmentTool) -> dict[str, JsonValue]:
    """The tool's parameters without the optional ones, which a sibling need not have."""
    properties = tool.document.parameters.get("properties", {})
    required = list(tool.document.required)
    return {"type": "object", "properties": {name: properties[name] for name in required}, "required": required}


def _requests(sibling: EnvironmentTool, environment: Environment) -> list[ExecuteRequest]:
    source, name, required = sibling.module_source(), sibling.document.name, sibling.document.required
    # Optional ones as well: a distractor may answer with the unit or the page that the gold call asks for.
    taken = {*required, *sibling.document.parameters.get("properties", {})}
    return [
        ExecuteRequest(
            source=source,
            function=name,
            arguments={given: value for given, value in task.call.arguments.items() if given in taken},
            limits=PROOF_LIMITS,
        )
        for task in environment.sub_tasks
        if task.call is not None and set(required) <= set(task.call.arguments)
    ]
