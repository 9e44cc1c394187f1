"""Stateful environments (beyond the paper): tools change a state that later calls read.

    state ── call of q1 ─► state' ── call of q2 ─► state'' = final_state, a further sub-task of the episode

The proof runs the gold calls in order on the state as it changes. Beside the promises of a stateless proof, the call of
a sub-question that depends on others must not give its gold on the initial state. Then conditions on the last state are
written by a teacher that has not seen it, and must agree with it. Then come tools that the task does not need, and
optional parameters, each proven in its turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from synthesis.answers.same_answer import same_answer
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.needed_packages import with_needed_packages
from synthesis.environments.proving.proof import check_replies, trials
from synthesis.environments.proving.sub_environments import proven_reply, sub_question_of
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
        BadReply: the teacher gave no usable reply.
        Rejected: after all tries a promise is still broken; the last one is named.
        TeacherUnavailable: the teacher cannot be asked.
        SandboxUnavailable: the sandbox gives no answer.
    """
    author = _Author(teacher, sandbox, knowledge, seed)
    task = await author.write(plan)
    if len(task.tools) < num_tools:
        task = await author.with_further_tools(task, num_tools - len(task.tools))
    if scaled_documents:
        for place, tool in enumerate(task.tools):
            document = await scale_document(teacher, knowledge, tool.document, share=scaled_documents)
            if document != tool.document:
                task = await author.with_scaled_tool(task, place, document)
    return task


@dataclass(frozen=True)
class _Author:
    """Has the parts of one task written by the teacher, each until the sandbox has proven it."""

    teacher: Teacher
    sandbox: Sandbox
    knowledge: Knowledge
    seed: int

    async def write(self, plan: EnvironmentPlan) -> ProvenTask:
        """Have the task written that the plan asks for."""
        request = WriteStatefulTask(knowledge=self.knowledge, scenario=plan.scenario, num_lookups=plan.num_lookups)

        async def proven(task: StatefulTask) -> ProvenTask:
            check_structure(task.instance)
            if (found := task.instance.scenario) != plan.scenario:
                raise Rejected("other scenario than planned", f"expected {plan.scenario}, found {found}")
            sub_questions = _with_calls(task)
            tools = tuple(with_needed_packages(tool, self.knowledge.packages) for tool in task.tools)
            final_state = await prove_stateful(self.sandbox, tools, sub_questions, task.state)
            asked = WriteStateConditions(
                knowledge=self.knowledge,
                question=task.instance.question,
                calls=task.calls,
                descriptions={tool.document.name: tool.document.description for tool in task.tools},
                state=task.state,
            )
            conditions = (await self.teacher.ask(asked, seed=self.seed)).conditions
            check_conditions(conditions, task.state, final_state)
            return ProvenTask(task.instance, sub_questions, tools, task.state, final_state, conditions)

        return await proven_reply(self.teacher, request, proven, seed=self.seed)

    async def with_further_tools(self, task: ProvenTask, count: int) -> ProvenTask:
        """Add `count` tools that the task does not need, on a state that may hold more; prove all of it again."""
        request = WriteFurtherTools(knowledge=self.knowledge, tools=task.tools, state=task.state, count=count)

        async def proven(further: FurtherTools) -> ProvenTask:
            if len(further.tools) != count:
                raise Rejected("other number of further tools", f"expected {count}, found {len(further.tools)}")
            if taken := sorted(further.state.keys() & task.state.keys()):
                raise Rejected("part of the state stands twice", f"{taken}")
            _check_names((*task.tools, *further.tools))
            tools = tuple(with_needed_packages(tool, self.knowledge.packages) for tool in further.tools)
            wider = replace(
                task,
                tools=(*task.tools, *tools),
                state={**task.state, **further.state},
                further_calls=further.calls,
            )
            await prove_further_tools(self.sandbox, tools, further.calls, wider.state)
            return await self._proven_again(wider)

        return await proven_reply(self.teacher, request, proven, seed=self.seed)

    async def with_scaled_tool(self, task: ProvenTask, place: int, document: ToolDocument) -> ProvenTask:
        """Give one tool a scaled document, and code and calls to match; prove again all that depends on it."""
        tool = task.tools[place]
        request = WriteScaledTool(knowledge=self.knowledge, tool=tool, document=document)

        async def proven(scaled: ScaledTool) -> ProvenTask:
            if strange := sorted(scaled.settings.keys() - documented_defaults(document).keys()):
                raise Rejected("setting of no optional parameter", f"{tool.document.name}: {strange}")

            def set_so(call: ToolCall) -> ToolCall:
                if call.name != document.name:
                    return call
                return call.model_copy(update={"arguments": {**call.arguments, **scaled.settings}})

            written = EnvironmentTool(document=document, source=scaled.source, tables=scaled.tables)
            new = with_needed_packages(written, self.knowledge.packages)
            changed = replace(
                task,
                tools=(*task.tools[:place], new, *task.tools[place + 1 :]),
                sub_questions=tuple(
                    each.model_copy(update={"call": each.call and set_so(each.call)}) for each in task.sub_questions
                ),
                further_calls=tuple(set_so(call) for call in task.further_calls),
            )
            if any(each.call is not None and each.call.name == document.name for each in task.sub_questions):
                return await self._proven_again(changed)
            golds = tuple(way for each in task.sub_questions for way in ways_to_answer(each))
            check_source(new.source, document, golds, new.packages)
            own = [call for call in changed.further_calls if call.name == document.name]
            await prove_further_tools(self.sandbox, [new], own, changed.state)
            return changed

        return await proven_reply(self.teacher, request, proven, seed=self.seed)

    async def _proven_again(self, task: ProvenTask) -> ProvenTask:
        """Prove the gold calls of a task whose tools or state have changed; return it with the state it ends in."""
        final_state = await prove_stateful(self.sandbox, task.tools, task.sub_questions, task.state)
        check_conditions(task.state_conditions, task.state, final_state)
        return replace(task, final_state=final_state)


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
        requests = [trial.request(state) for trial in listed]
        # The gold call on the initial state goes ahead of the batch. Each call runs on the state that it is sent with.
        stale, *replies = await sandbox.execute_batch([listed[0].request(initial), *requests])
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


def _with_calls(task: StatefulTask) -> tuple[SubQuestion, ...]:
    if len(task.calls) != len(task.instance.nodes):
        raise Rejected("calls do not match sub-questions", f"{len(task.calls)} for {len(task.instance.nodes)}")
    return tuple(sub_question_of(node, call) for node, call in zip(task.instance.nodes, task.calls, strict=True))
