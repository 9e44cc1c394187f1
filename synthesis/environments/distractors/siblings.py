"""Siblings: distractors with the parameters of an own tool that give another answer, as proven here.

each own tool ─► siblings written ─► their code is allowed, and they run ─► none gives one of the answers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from sandbox.client import ExecuteReply, ExecuteRequest
from synthesis.answers.same_answer import stands_in
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.needed_packages import with_needed_packages
from synthesis.environments.proving.other_rows import calls_for_other_rows, is_constant
from synthesis.environments.proving.proof import request_of
from synthesis.environments.proving.tool_source import check_source
from synthesis.prompts.tool_writing import WriteSiblingTools
from synthesis.questions.decomposition import ways_to_answer
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, EnvironmentTool, IrrelevantTool, JsonValue, SubQuestion
from synthesis.stage import Rejected, all_in_order
from synthesis.teacher.protocol import Teacher

SIBLINGS_OF_FIRST_TOOLS: Final = 8
"""Number of siblings of a tool that takes names which the question may tell. An agent that is told these names and
calls every tool with them has at most about 1 right call in 9."""
SIBLINGS_PER_TOOL: Final = 3
"""Number of siblings of any other tool: its arguments are earlier answers, or answers of siblings."""

Told = Literal["an answer", "something else", "nothing"]
"""Kind of a tool's replies to gold calls."""


async def write_siblings(
    teacher: Teacher, sandbox: Sandbox, knowledge: Knowledge, environment: Environment, *, seed: int
) -> tuple[IrrelevantTool, ...]:
    """Have siblings written for every tool that is called; keep those with other answers, each with an answered call.

    Their band is provisional: similarities are known when distractors are drawn.

    A sibling is left out if its code is not allowed or does not run, its name is taken, it gives an answer of the
    environment to a gold call, or it gives the same to calls for other rows.

    Raises:
        BadReply: the teacher has no usable answer for one of the tools.
        Rejected: no sibling is left.
    """
    golds = tuple(ways_to_answer(*environment.sub_tasks))
    # Of tools that share a parameter all have as many, or a number of siblings would tell which of them comes first.
    first = {
        name
        for tool in environment.tools
        if any(not task.depends_on or environment.is_stateful for task in _tasks_of(environment, tool))
        for name in tool.document.required[:1]
    }

    async def of_tool(tool: EnvironmentTool) -> list[EnvironmentTool]:
        tasks = _tasks_of(environment, tool)
        request = WriteSiblingTools(
            knowledge=knowledge,
            document=tool.document,
            sub_question=tasks[0].question,
            calls=tuple(task.call for task in tasks if task.call is not None),
            reply=tasks[0].gold_reply,
            count=SIBLINGS_OF_FIRST_TOOLS if first.intersection(tool.document.required) else SIBLINGS_PER_TOOL,
        )
        reply = await teacher.ask(request, seed=seed)
        siblings = [with_needed_packages(sibling, knowledge.packages) for sibling in reply.tools]
        return [sibling for sibling in siblings if _is_allowed(sibling, golds)]

    called = [tool for tool in environment.tools if _tasks_of(environment, tool)]
    written = [tool for tools in await all_in_order(of_tool(tool) for tool in called) for tool in tools]
    names = {tool.document.name for tool in environment.tools}
    kept = []
    for sibling, (told, answered) in zip(
        written, await tried_on_gold_calls(sandbox, written, environment), strict=True
    ):
        if told == "something else" and answered is not None and sibling.document.name not in names:
            names.add(sibling.document.name)
            kept.append((sibling, *answered))
    constant = await all_in_order(_is_constant(sandbox, *each) for each in kept)
    siblings = tuple(
        IrrelevantTool(tool=sibling, band="high", similarity=1.0, arguments=dict(call.arguments))
        for (sibling, call, _), same in zip(kept, constant, strict=True)
        if not same
    )
    if not siblings:
        raise Rejected("no sibling tool", f"{len(written)} were written for {sorted(names)[:3]}")
    return siblings


async def tried_on_gold_calls(
    sandbox: Sandbox, tools: Sequence[EnvironmentTool], environment: Environment
) -> list[tuple[Told, tuple[ExecuteRequest, ExecuteReply] | None]]:
    """Try each tool on all gold calls whose arguments it takes; return the kind of its replies and its first answer.

    All gold calls are tried: a sibling of one tool may give the answer of another.
    """
    golds = ways_to_answer(*environment.sub_tasks)
    trials = [_requests(tool, environment) for tool in tools]
    replies = iter(await sandbox.execute_batch([request for requests in trials for request in requests]))
    told: list[tuple[Told, tuple[ExecuteRequest, ExecuteReply] | None]] = []
    for requests in trials:
        answered = [(request, reply) for request, reply in [(each, next(replies)) for each in requests] if reply.ok]
        is_answer = any(
            stands_in(reply.value, gold) and not stands_in(list(request.arguments.values()), gold)
            for gold in golds
            for request, reply in answered
        )
        kind: Told = "an answer" if is_answer else "something else" if answered else "nothing"
        told.append((kind, answered[0] if answered else None))
    return told


async def _is_constant(sandbox: Sandbox, sibling: EnvironmentTool, call: ExecuteRequest, reply: ExecuteReply) -> bool:
    others = [other for of in calls_for_other_rows(sibling, dict(call.arguments)).values() for other in of]
    for further in (others[:1], others[1:]):  # mostly one other row is enough, and there are many siblings
        calls = [request_of(sibling, other) for other in further]
        if not is_constant([call, *calls], [reply, *await sandbox.execute_batch(calls)]):
            return False
    return True


def _is_allowed(sibling: EnvironmentTool, golds: tuple[JsonValue, ...]) -> bool:
    try:
        check_source(sibling.source, sibling.document, golds, sibling.packages)
    except Rejected:
        return False
    return True


def _tasks_of(environment: Environment, tool: EnvironmentTool) -> list[SubQuestion]:
    return [task for task in environment.sub_tasks if task.call and task.call.name == tool.document.name]


def _requests(sibling: EnvironmentTool, environment: Environment) -> list[ExecuteRequest]:
    required = sibling.document.required
    # Optional ones as well: a distractor may answer with the unit or the page that the gold call asks for.
    taken = {*required, *sibling.document.parameters.get("properties", {})}
    return [
        request_of(sibling, {given: value for given, value in task.call.arguments.items() if given in taken})
        for task in environment.sub_tasks
        if task.call is not None and set(required) <= set(task.call.arguments)
    ]
