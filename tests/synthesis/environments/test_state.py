"""A stateful task is proven on the state as it changes; the writer of its conditions has not seen the last state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from synthesis.environments import state as stateful
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.environments.state import ProvenTask, prove_stateful, write_stateful_task
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.stateful import StateConditions, WriteStateConditions, WriteStatefulTask
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, SubQuestion, ToolCall
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Request
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import document
from tests.synthesis.otherwise import Otherwise

KNOWLEDGE = Knowledge(domain="library", language="en", seed=11)
PLAN = EnvironmentPlan(0, "multi_hop", "en", "library", 3, False, "stateful")


def written(teacher: ProceduralTeacher) -> ProvenTask:
    return asyncio.run(write_stateful_task(teacher, InThisProcess(), KNOWLEDGE, PLAN, seed=1))


def spoiling(question: type[Request[Any]], spoil: Callable[[Any], Any], *, times: int | None = None) -> Otherwise:
    """A teacher that spoils its first replies, or all of them, to one kind of question."""
    return Otherwise({question: lambda request, reply, seed: spoil(reply)}, times=times)


def with_a_log(reply: Any) -> Any:
    """A task whose first tool writes a key into the state that no condition names."""
    first, *others = reply.tools
    source = first.source.replace("    rows[target] += amount\n", "    rows[target] += amount\n    state['log'] = 1\n")
    assert source != first.source
    return altered(reply, tools=(altered(first, source=source), *others))


def with_an_idle_tool(reply: Any) -> Any:
    tool = reply.tools[0]
    source = tool.source.replace(tool.document.name, "idle")
    idle = altered(tool, document=altered(tool.document, name="idle"), source=source)
    return altered(reply, tools=(*reply.tools, idle))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (with_a_log, "state is not as the task asks"),
        (with_an_idle_tool, "tool without a call"),
        (lambda reply: altered(reply, tools=reply.tools * 2), "tool name stands twice"),
        (lambda reply: altered(reply, tools=reply.tools[1:]), "call of an unknown tool"),
        (lambda reply: altered(reply, calls=reply.calls[1:]), "calls do not match sub-questions"),
    ],
)
def test_a_task_that_breaks_a_promise_is_rejected_and_the_failure_goes_back(spoil, reason):
    teacher = spoiling(WriteStatefulTask, spoil, times=1)
    assert written(teacher) == written(ProceduralTeacher())
    assert reason in teacher.asked_for(WriteStatefulTask)[1].failure
    with pytest.raises(Rejected, match=reason):
        written(spoiling(WriteStatefulTask, spoil))


def test_conditions_that_are_wrong_reject_the_task():
    for spoil, reason in (
        (lambda reply: StateConditions(conditions=()), "no condition"),
        (lambda reply: StateConditions(conditions=reply.conditions[1:]), "state is not as the task asks"),
    ):
        with pytest.raises(Rejected, match=reason):
            written(spoiling(WriteStateConditions, spoil))


def test_conditions_that_miss_a_tampered_state_are_found(monkeypatch):
    # Every relation pins its value, so that only conditions of another kind could miss one.
    monkeypatch.setattr(stateful, "meets_conditions", lambda conditions, before, after: before is not after)
    with pytest.raises(Rejected, match="conditions miss a change"):
        written(ProceduralTeacher())


def test_the_writer_of_the_conditions_sees_neither_code_nor_last_state():
    teacher = Otherwise()
    task = written(teacher)
    (request,) = teacher.asked_for(WriteStateConditions)
    text = str(request.messages())
    assert request.state == task.state
    assert str(task.final_state) not in text
    assert "def " not in text


@pytest.mark.parametrize("said", ["New York City", "NYC", "Oslo"])
def test_a_call_that_tells_an_alias_from_the_start_does_not_depend_on_the_state(said):
    def tool(name, returned):
        body = f"    if kite not in state['kites']:\n        raise ValueError(kite)\n    {returned}\n"
        return EnvironmentTool(
            document=document(name, kite="string"), source=f"def {name}(kite: str, state: dict):\n{body}"
        )

    def asked(name, answer, tool, *depends_on, aliases=()):
        call = ToolCall(id=name, name=tool, arguments={"kite": "K"})
        return SubQuestion(id=name, question="?", answer=answer, aliases=aliases, depends_on=depends_on, call=call)

    tools = (
        tool("paint", "state['kites'][kite] = state['after']; return state['receipt']"),
        tool("where", "return state['kites'][kite]"),
    )
    sub_questions = (asked("q1", "P-4", "paint"), asked("q2", "New York City", "where", "q1", aliases=("NYC",)))
    state = {"kites": {"K": said}, "after": "New York City", "receipt": "P-4"}

    def proven():
        asyncio.run(prove_stateful(InThisProcess(), tools, sub_questions, state))

    if said == "Oslo":
        proven()
    else:
        with pytest.raises(Rejected, match="does not depend on the state"):
            proven()
