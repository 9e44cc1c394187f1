"""Stateful environments (beyond the paper): tools change the episode's state, and later reads depend on the change.

    state ── call of q1 ─► state' ── call of q2 ─► state'' = final_state, a further sub-task of the episode

The proof runs the gold calls in order on the state as it changes. Beside the promises of a stateless proof, the call of
a sub-question that depends on others must not give its gold on the initial state.
"""

from __future__ import annotations

from sandbox.client import ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.environments.call_batches import Sandbox
from synthesis.environments.proof import Trial, check_replies, trials
from synthesis.environments.qa_instances import check_structure
from synthesis.environments.quotas import EnvironmentPlan
from synthesis.environments.sub_environments import MAX_REQUESTS
from synthesis.environments.tool_source import check_source
from synthesis.prompts.stateful_task_writing import StatefulTask, WriteStatefulTask
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, JsonObject, SubQuestion
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher


async def write_stateful_task(
    teacher: Teacher, sandbox: Sandbox, knowledge: Knowledge, plan: EnvironmentPlan, *, seed: int
) -> tuple[StatefulTask, tuple[SubQuestion, ...], JsonObject]:
    """Have a stateful task written and proven; return it with its sub-questions and the state it ends in.

    Raises:
        BadReply: the teacher has none.
        Rejected: after all tries a promise is still broken; the last one is named.
        TeacherUnavailable: the teacher cannot be asked.
        SandboxUnavailable: the sandbox gives no answer.
    """
    task: StatefulTask | None = None
    failure: Rejected | None = None
    for _ in range(MAX_REQUESTS):
        task = await teacher.ask(
            WriteStatefulTask(
                knowledge=knowledge,
                scenario=plan.scenario,
                num_lookups=plan.num_lookups,
                last_try=task,
                failure=str(failure or ""),
            ),
            seed=seed,
        )
        try:
            check_structure(task.instance)
            if task.instance.scenario != plan.scenario:
                raise Rejected(
                    "other scenario than planned", f"expected {plan.scenario}, found {task.instance.scenario}"
                )
            sub_questions = _with_calls(task)
            final_state = await prove_stateful(sandbox, task.tools, sub_questions, task.state)
        except Rejected as rejected:
            failure = rejected
        else:
            return task, sub_questions, final_state
    raise failure or Rejected("no stateful task")


async def prove_stateful(
    sandbox: Sandbox, tools: tuple[EnvironmentTool, ...], sub_questions: tuple[SubQuestion, ...], state: JsonObject
) -> JsonObject:
    """Prove the gold calls in order, each on the state that those before it left; return the last state.

    Raises:
        Rejected: the first promise that is broken.
        SandboxUnavailable: the sandbox gives no answer.
    """
    by_name = {tool.document.name: tool for tool in tools}
    golds = tuple(sub_question.answer for sub_question in sub_questions)
    for tool in tools:
        check_source(tool.source, tool.document, golds)
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
        if sub_question.depends_on and stale.ok and same_answer(sub_question.answer, stale.value):
            raise Rejected("does not depend on the state", f"{sub_question.id} has its answer from the start")
        state = replies[0].state if replies[0].state is not None else state  # of the gold call, the first one listed
    if same_answer(initial, state):
        raise Rejected("state does not change")
    return state


def _on_state(trial: Trial, state: JsonObject) -> ExecuteRequest:
    return trial.request().model_copy(update={"state": state})


def _with_calls(task: StatefulTask) -> tuple[SubQuestion, ...]:
    if len(task.calls) != len(task.instance.nodes):
        raise Rejected("calls do not match sub-questions", f"{len(task.calls)} for {len(task.instance.nodes)}")
    return tuple(
        SubQuestion(id=node.id, question=node.question, answer=node.answer, depends_on=node.depends_on, call=call)
        for node, call in zip(task.instance.nodes, task.calls, strict=True)
    )
