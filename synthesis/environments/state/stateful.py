"""Stateful environments (beyond the paper): tools change a state that later calls read.

    state ── call of q1 ─► state' ── call of q2 ─► state'' = final_state, a further sub-task of the episode

The proof runs the gold calls in order on the state as it changes. Beside the promises of a stateless proof, the call of
a sub-question that depends on others must not give its gold on the initial state. Then conditions on the last state are
written by somebody who has not seen it, and must agree with it; then come tools that the task does not need, and
optional parameters, each proven in its turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from sandbox.client import ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.needed_packages import with_needed_packages
from synthesis.environments.proving.proof import Trial, check_replies, trials
from synthesis.environments.proving.sub_environments import MAX_REQUESTS
from synthesis.environments.proving.tool_source import check_source
from synthesis.environments.questions.qa_instances import check_structure, ways_to_answer
from synthesis.environments.questions.tool_documents import documented_defaults, scale_document
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.environments.state.state_proof import check_conditions, prove_further_tools
from synthesis.prompts.stateful import (
    FurtherTools,
    ScaledTool,
    StatefulTask,
    WriteFurtherTools,
    WriteScaledTool,
    WriteStateConditions,
    WriteStatefulTask,
)
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, JsonObject, StateCondition, SubQuestion, ToolCall, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher

Written = TypeVar("Written")


@dataclass(frozen=True)
class ProvenTask:
    """A stateful task with its proof: the fields of an environment that are its own."""

    instance: QAInstance
    sub_questions: tuple[SubQuestion, ...]
    tools: tuple[EnvironmentTool, ...]
    state: JsonObject
    final_state: JsonObject
    state_conditions: tuple[StateCondition, ...]
    further_calls: tuple[ToolCall, ...] = ()


async def write_stateful_task(
    teacher: Teacher,
    sandbox: Sandbox,
    knowledge: Knowledge,
    plan: EnvironmentPlan,
    *,
    seed: int,
    num_tools: int = 0,
    scaled_documents: float = 0.0,
) -> ProvenTask:
    """Have a stateful task written and proven, with at least so many tools, of which a share have scaled documents.

    Raises:
        BadReply: the teacher has none.
        Rejected: after all tries a promise is still broken; the last one is named.
        TeacherUnavailable: the teacher cannot be asked.
        SandboxUnavailable: the sandbox gives no answer.
    """

    async def written(last_try: StatefulTask | None, failure: str) -> StatefulTask:
        return await teacher.ask(
            WriteStatefulTask(
                knowledge=knowledge,
                scenario=plan.scenario,
                num_lookups=plan.num_lookups,
                last_try=last_try,
                failure=failure,
            ),
            seed=seed,
        )

    async def proven(task: StatefulTask) -> ProvenTask:
        check_structure(task.instance)
        if task.instance.scenario != plan.scenario:
            raise Rejected("other scenario than planned", f"expected {plan.scenario}, found {task.instance.scenario}")
        sub_questions = _with_calls(task)
        tools = tuple(with_needed_packages(tool, knowledge.packages) for tool in task.tools)
        final_state = await prove_stateful(sandbox, tools, sub_questions, task.state)
        request = WriteStateConditions(
            knowledge=knowledge,
            question=task.instance.question,
            calls=task.calls,
            descriptions={tool.document.name: tool.document.description for tool in task.tools},
            state=task.state,
        )
        conditions = (await teacher.ask(request, seed=seed)).conditions
        check_conditions(conditions, task.state, final_state)
        return ProvenTask(task.instance, sub_questions, tools, task.state, final_state, conditions)

    task = await _until_proven(written, proven, "no stateful task")
    if len(task.tools) < num_tools:
        task = await add_further_tools(teacher, sandbox, knowledge, task, num_tools - len(task.tools), seed=seed)
    if scaled_documents:
        task = await scale_stateful_tools(teacher, sandbox, knowledge, task, seed=seed, share=scaled_documents)
    return task


async def add_further_tools(
    teacher: Teacher, sandbox: Sandbox, knowledge: Knowledge, task: ProvenTask, count: int, *, seed: int
) -> ProvenTask:
    """Have `count` tools written that the task does not need, on a state that may hold more; prove all of it.

    Raises:
        BadReply, Rejected, TeacherUnavailable, SandboxUnavailable: as `write_stateful_task`.
    """

    async def written(last_try: FurtherTools | None, failure: str) -> FurtherTools:
        request = WriteFurtherTools(
            knowledge=knowledge, tools=task.tools, state=task.state, count=count, last_try=last_try, failure=failure
        )
        return await teacher.ask(request, seed=seed)

    async def proven(further: FurtherTools) -> ProvenTask:
        if len(further.tools) != count:
            raise Rejected("other number of further tools", f"expected {count}, found {len(further.tools)}")
        if taken := sorted(further.state.keys() & task.state.keys()):
            raise Rejected("part of the state stands twice", f"{taken}")
        _check_names((*task.tools, *further.tools))
        tools = tuple(with_needed_packages(tool, knowledge.packages) for tool in further.tools)
        wider = replace(
            task,
            tools=(*task.tools, *tools),
            state={**task.state, **further.state},
            further_calls=further.calls,
        )
        await prove_further_tools(sandbox, tools, further.calls, wider.state)
        return await _proven_again(sandbox, wider)

    return await _until_proven(written, proven, "no further tools")


async def scale_stateful_tools(
    teacher: Teacher, sandbox: Sandbox, knowledge: Knowledge, task: ProvenTask, *, seed: int, share: float
) -> ProvenTask:
    """Have a share of the tools' documents scaled, and their code and calls with them; prove all of it.

    Raises:
        BadReply, Rejected, TeacherUnavailable, SandboxUnavailable: as `write_stateful_task`.
    """
    for place, tool in enumerate(task.tools):
        document = await scale_document(teacher, knowledge, tool.document, share=share)
        if document != tool.document:
            task = await _scaled(teacher, sandbox, knowledge, task, place, document, seed=seed)
    return task


async def _scaled(
    teacher: Teacher,
    sandbox: Sandbox,
    knowledge: Knowledge,
    task: ProvenTask,
    place: int,
    document: ToolDocument,
    *,
    seed: int,
) -> ProvenTask:
    tool = task.tools[place]

    async def written(last_try: ScaledTool | None, failure: str) -> ScaledTool:
        request = WriteScaledTool(knowledge=knowledge, tool=tool, document=document, last_try=last_try, failure=failure)
        return await teacher.ask(request, seed=seed)

    async def proven(scaled: ScaledTool) -> ProvenTask:
        if strange := sorted(scaled.settings.keys() - documented_defaults(document).keys()):
            raise Rejected("setting of no optional parameter", f"{tool.document.name}: {strange}")

        def set_so(call: ToolCall) -> ToolCall:
            if call.name != document.name:
                return call
            return call.model_copy(update={"arguments": {**call.arguments, **scaled.settings}})

        new = with_needed_packages(
            EnvironmentTool(document=document, source=scaled.source, tables=scaled.tables), knowledge.packages
        )
        changed = replace(
            task,
            tools=(*task.tools[:place], new, *task.tools[place + 1 :]),
            sub_questions=tuple(
                each.model_copy(update={"call": each.call and set_so(each.call)}) for each in task.sub_questions
            ),
            further_calls=tuple(set_so(call) for call in task.further_calls),
        )
        if any(each.call is not None and each.call.name == document.name for each in task.sub_questions):
            return await _proven_again(sandbox, changed)
        golds = tuple(way for each in task.sub_questions for way in ways_to_answer(each))
        check_source(new.source, document, golds, new.packages)
        own = [call for call in changed.further_calls if call.name == document.name]
        await prove_further_tools(sandbox, [new], own, changed.state)
        return changed

    return await _until_proven(written, proven, "no scaled tool")


async def _proven_again(sandbox: Sandbox, task: ProvenTask) -> ProvenTask:
    """Prove the gold calls of a task whose tools or state have changed; return it with the state that it ends in."""
    final_state = await prove_stateful(sandbox, task.tools, task.sub_questions, task.state)
    check_conditions(task.state_conditions, task.state, final_state)
    return replace(task, final_state=final_state)


async def _until_proven(
    written: Callable[[Written | None, str], Awaitable[Written]],
    proven: Callable[[Written], Awaitable[ProvenTask]],
    nothing: str,
) -> ProvenTask:
    """Have a part written again until its proof passes; each failure goes back with the last try."""
    last_try: Written | None = None
    failure: Rejected | None = None
    for _ in range(MAX_REQUESTS):
        last_try = await written(last_try, str(failure or ""))
        try:
            return await proven(last_try)
        except Rejected as rejected:
            failure = rejected
    raise failure or Rejected(nothing)


async def prove_stateful(
    sandbox: Sandbox, tools: tuple[EnvironmentTool, ...], sub_questions: tuple[SubQuestion, ...], state: JsonObject
) -> JsonObject:
    """Prove the gold calls in order, each on the state that those before it left; return the last state.

    Raises:
        Rejected: the first promise that is broken.
        SandboxUnavailable: the sandbox gives no answer.
    """
    _check_names(tools)
    by_name = {tool.document.name: tool for tool in tools}
    golds = tuple(way for sub_question in sub_questions for way in ways_to_answer(sub_question))
    for tool in tools:
        check_source(tool.source, tool.document, golds, tool.packages)
    initial = state
    for sub_question in sub_questions:
        if sub_question.call is None:
            continue
        if sub_question.call.name not in by_name:
            raise Rejected("call of an unknown tool", sub_question.call.name)
        listed = list(trials(by_name[sub_question.call.name], sub_question))
        requests = [_on_state(trial, state) for trial in listed]
        # The gold call on the initial state goes ahead of the batch. Each call runs on the state that it is sent with.
        stale, *replies = await sandbox.execute_batch([_on_state(listed[0], initial), *requests])
        check_replies(listed, replies)
        has_answer = stale.ok and same_answer(sub_question.answer, stale.value, sub_question.aliases)
        if sub_question.depends_on and has_answer:
            raise Rejected("does not depend on the state", f"{sub_question.id} has its answer from the start")
        state = replies[0].state if replies[0].state is not None else state  # of the gold call, the first one listed
    if same_answer(initial, state):
        raise Rejected("state does not change")
    return state


def _check_names(tools: tuple[EnvironmentTool, ...]) -> None:
    names = [tool.document.name for tool in tools]
    if len(set(names)) < len(names):
        raise Rejected("tool name stands twice", f"{sorted(names)}")


def _on_state(trial: Trial, state: JsonObject) -> ExecuteRequest:
    return trial.request().model_copy(update={"state": state})


def _with_calls(task: StatefulTask) -> tuple[SubQuestion, ...]:
    if len(task.calls) != len(task.instance.nodes):
        raise Rejected("calls do not match sub-questions", f"{len(task.calls)} for {len(task.instance.nodes)}")
    return tuple(
        SubQuestion(
            id=node.id,
            question=node.question,
            answer=node.answer,
            aliases=node.aliases,
            depends_on=node.depends_on,
            call=call,
        )
        for node, call in zip(task.instance.nodes, task.calls, strict=True)
    )
