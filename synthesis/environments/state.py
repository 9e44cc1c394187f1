"""Stateful environments (beyond the paper): tools change a state that later calls read.

    state ── call of q1 ─► state' ── call of q2 ─► state'' = final_state, a further sub-task of the episode

The proof runs the gold calls in order on the state as it changes. Beside the promises of a stateless proof, the call of
a sub-question that depends on others must not give its gold on the initial state. Then conditions on the last state are
written by a teacher that has not seen it. They must hold of the last state, but neither of the first one nor of the
last one with anything changed in it.

A state may be a SQLite database (see `records/database.py`). Then the conditions are queries with their rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sandbox.client import ExecuteRequest
from synthesis.answers.same_answer import is_answered, same_answer
from synthesis.answers.state_conditions import meets_conditions
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.needed_packages import with_needed_packages
from synthesis.environments.proving.proof import PROOF_LIMITS, changed_argument, check_replies, trials
from synthesis.environments.proving.sub_environments import proven_reply, sub_question_of
from synthesis.environments.proving.tool_source import check_source
from synthesis.environments.questions.qa_instances import check_structure
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.prompts.stateful import StatefulTask, WriteStateConditions, WriteStatefulTask
from synthesis.questions.decomposition import QAInstance, ways_to_answer
from synthesis.questions.knowledge import Knowledge
from synthesis.records import DATABASE_PROGRAM, EnvironmentTool, JsonObject, JsonValue, StateCondition, SubQuestion
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


async def write_stateful_task(
    teacher: Teacher, sandbox: Sandbox, knowledge: Knowledge, plan: EnvironmentPlan, *, seed: int
) -> ProvenTask:
    """Have a stateful task of the planned shape written, until the sandbox has proven it.

    Raises:
        Rejected: after all tries a promise is still broken; the last one is named.
    """

    async def proven(task: StatefulTask) -> ProvenTask:
        check_structure(task.instance)
        if (found := task.instance.scenario) != plan.scenario:
            raise Rejected("other scenario than planned", f"expected {plan.scenario}, found {found}")
        if len(task.calls) != len(task.instance.nodes):
            raise Rejected("calls do not match sub-questions", f"{len(task.calls)} for {len(task.instance.nodes)}")
        sub_questions = tuple(map(sub_question_of, task.instance.nodes, task.calls))
        tools = tuple(with_needed_packages(tool, knowledge.packages) for tool in task.tools)
        state = {**task.state, "queries": {}} if is_database else task.state
        if is_database:
            tools = tuple(tool.model_copy(update={"takes_database": True}) for tool in tools)
        final_state = await prove_stateful(sandbox, tools, sub_questions, state)
        asked = WriteStateConditions(
            knowledge=knowledge,
            question=task.instance.question,
            calls=task.calls,
            descriptions={tool.document.name: tool.document.description for tool in task.tools},
            state=state,
            database=is_database,
        )
        conditions = (await teacher.ask(asked, seed=seed)).conditions
        if is_database:
            state, final_state = await with_queries(sandbox, conditions, state, final_state)
        else:
            check_conditions(conditions, state, final_state)
        return ProvenTask(task.instance, sub_questions, tools, state, final_state, conditions)

    is_database = plan.variety == "stateful_database"
    request = WriteStatefulTask(
        knowledge=knowledge, scenario=plan.scenario, num_lookups=plan.num_lookups, database=is_database
    )
    return await proven_reply(teacher, request, proven, seed=seed)


async def prove_stateful(
    sandbox: Sandbox, tools: Sequence[EnvironmentTool], sub_questions: Sequence[SubQuestion], state: JsonObject
) -> JsonObject:
    """Prove the gold calls in order, each on the state that those before it left; return the last state."""
    by_name = {tool.document.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise Rejected("tool name stands twice", f"{sorted(tool.document.name for tool in tools)}")
    called = {sub_question.call.name for sub_question in sub_questions if sub_question.call}
    if strange := sorted(called - by_name.keys()):
        raise Rejected("call of an unknown tool", f"{strange}")
    if idle := sorted(by_name.keys() - called):
        raise Rejected("tool without a call", f"{idle}")
    golds = tuple(ways_to_answer(*sub_questions))
    for tool in tools:
        check_source(tool.source, tool.document, golds, tool.packages, takes_database=tool.takes_database)
    initial = state
    for sub_question in sub_questions:
        if sub_question.call is None:
            continue
        listed = list(trials(by_name[sub_question.call.name], sub_question))
        requests = [trial.request(state) for trial in listed]
        # The gold call on the initial state goes ahead of the batch. Each call runs on the state that it is sent with.
        stale, *replies = await sandbox.execute_batch([listed[0].request(initial), *requests])
        check_replies(listed, replies)
        if sub_question.depends_on and stale.ok and is_answered(sub_question, stale.value):
            raise Rejected("does not depend on the state", f"{sub_question.id} has its answer from the start")
        after = replies[0].state if replies[0].state is not None else state  # of the gold call, the first one listed
        for trial, reply in zip(listed, replies, strict=True):
            if trial.promise == "changed" and reply.ok and reply.state == after != state:
                raise Rejected("state ignores an argument", f"{trial.arguments} as well as those of {sub_question.id}")
        state = after
    if same_answer(initial, state):
        raise Rejected("state does not change")
    return state


async def with_queries(
    sandbox: Sandbox, conditions: Sequence[StateCondition], state: JsonObject, final_state: JsonObject
) -> tuple[JsonObject, JsonObject]:
    """Check conditions on databases by their queries; return first and last state with the rows of these queries.

    Raises:
        Rejected: as `check_conditions`, or a query does not run or has no order of its own.
    """
    queries = dict.fromkeys(str(condition.path[0]) for condition in conditions)
    states = ({**each, "queries": queries} for each in (state, final_state))
    program = partial(ExecuteRequest, source=DATABASE_PROGRAM, function="examined", arguments={}, limits=PROOF_LIMITS)
    replies = await sandbox.execute_batch([program(state=each) for each in states])
    if errors := [reply.error.message for reply in replies if reply.error is not None]:
        raise Rejected("database cannot be examined", errors[0])
    first, last = (reply.value for reply in replies)
    before = first["state"]["queries"]
    check_conditions(conditions, before, last["state"]["queries"])
    if any(meets_conditions(conditions, before, tampered) for tampered in last["tampered"]):
        raise Rejected("conditions miss a change", "the queries give the same rows after a change of one row or value")
    return first["state"], last["state"]


def check_conditions(conditions: Sequence[StateCondition], state: JsonObject, final_state: JsonObject) -> None:
    """Check that conditions tell the last state from the first one, and from every one that differs in one place.

    Raises:
        Rejected: there is none, or they and the state that the gold calls left contradict each other.
    """
    if not conditions:
        raise Rejected("no condition on the state")
    if not meets_conditions(conditions, state, final_state):
        asked = [condition.model_dump(mode="json") for condition in conditions]
        raise Rejected("state is not as the task asks", f"expected {asked}, found {final_state} after {state}")
    if meets_conditions(conditions, state, state):
        raise Rejected("conditions hold from the start", f"{state}")
    for tampered in tampered_states(final_state):
        if meets_conditions(conditions, state, tampered):
            raise Rejected("conditions miss a change", f"they hold of {tampered}")


def tampered_states(state: JsonObject) -> Iterator[JsonObject]:
    """Yield a state with one of its values changed, one of them gone, or one more beside them, in every place.

    >>> list(tampered_states({"a": 1}))
    [{'a': -1000004}, {}, {'a': 1, 'tampered': True}]
    """
    for path in _paths(state):
        for change in ("changed", "gone"):
            tampered = copy.deepcopy(state)
            holder: JsonValue = tampered
            for key in path[:-1]:
                holder = holder[key]
            value = holder[path[-1]]
            if change == "gone":
                del holder[path[-1]]
            else:  # an empty list or object has no value to change
                holder[path[-1]] = ["tampered"] if isinstance(value, dict | list) else changed_argument(value)
            yield tampered
    yield {**state, "tampered": True}


def _paths(node: JsonValue) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths to all scalars and to all empty lists and objects."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    for key, value in items:
        if isinstance(value, dict | list) and value:
            yield from ((key, *path) for path in _paths(value))
        else:
            yield (key,)
