"""Stateful environments with ten tools and more, scaled documents, and conditions that somebody else has written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.client import AsyncSandboxClient
from synthesis.answers.same_answer import same_answer
from synthesis.answers.state_conditions import meets_conditions
from synthesis.environments.questions.tool_documents import documented_defaults
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.environments.state import state_proof
from synthesis.environments.state.state_proof import check_conditions, prove_further_tools, tampered_states
from synthesis.environments.state.stateful import ProvenTask, prove_stateful, write_stateful_task
from synthesis.environments.verification import ExecutableTools, verify_environment
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.stateful import (
    StateConditions,
    WriteFurtherTools,
    WriteScaledTool,
    WriteStateConditions,
    WriteStatefulTask,
)
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, EnvironmentTool, StateCondition, SubQuestion, ToolCall, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Request
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import all_kept, document, read, tiny_config, verdict
from tests.synthesis.otherwise import Otherwise

KNOWLEDGE = Knowledge(domain="library", language="en", seed=11)
PLAN = EnvironmentPlan(0, "multi_hop", "en", "library", 3, False, "stateful")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, sandbox_url: str) -> Path:
    config = tiny_config(
        seed=5,
        count=12,
        out=tmp_path_factory.mktemp("stateful") / "out",
        scenarios={"multi_hop": 0.5, "parallel_multi_hop": 0.5},
        varieties={"stateful": 1.0},
        stateful_tools=12,
        scaled_documents=0.5,
    )
    return all_kept(config, sandbox_url)


@pytest.fixture(scope="module")
def environments(records: Path) -> list[Environment]:
    return read(records)


def test_they_have_as_many_tools_as_were_asked_for_and_verify(
    records: Path, environments: list[Environment], sandbox_url: str
) -> None:
    assert verdict(records, sandbox_url) == "verified 12/12"
    assert all(len(environment.tools) == 12 for environment in environments)
    assert all("further-tools" in environment.provenance.prompt_version for environment in environments)


def test_tools_that_are_needed_and_tools_that_are_not_are_scaled(environments: list[Environment]) -> None:
    scaled = {True: 0, False: 0}
    names = set()
    for environment in environments:
        needed = {task.call.name for task in environment.sub_tasks if task.call}
        for tool in environment.tools:
            options = documented_defaults(tool.document)
            scaled[tool.document.name in needed] += bool(options)
            names |= options.keys()
    assert min(scaled.values()) > 3
    assert {"unit", "page", "dry_run"} <= names


def test_conditions_and_equality_agree_on_the_gold_and_on_every_tampered_state(environments: list[Environment]) -> None:
    for environment in environments:
        state, final_state = environment.state or {}, environment.final_state or {}
        assert meets_conditions(environment.state_conditions, state, final_state)
        assert not meets_conditions(environment.state_conditions, state, state)
        for tampered in tampered_states(final_state):
            assert not same_answer(final_state, tampered)
            assert not meets_conditions(environment.state_conditions, state, tampered)


class Spoiling(Otherwise):
    """Spoils its first replies, or all of them, to one kind of question."""

    def __init__(self, question: type[Request[Any]], spoil: Callable[[Any], Any], *, times: int | None = None):
        super().__init__({question: lambda request, reply, seed: spoil(reply)}, times=times)
        self._question = question

    @property
    def put(self) -> list[Any]:
        return self.asked_for(self._question)


def written(teacher: ProceduralTeacher, **wanted: Any) -> ProvenTask:
    return asyncio.run(write_stateful_task(teacher, InThisProcess(), KNOWLEDGE, PLAN, seed=1, **wanted))


def source_changed(old: str, new: str, *, tool: int = 0) -> Callable[[Any], Any]:
    def spoil(reply: Any) -> Any:
        tools = list(reply.tools)
        assert old in tools[tool].source
        tools[tool] = altered(tools[tool], source=tools[tool].source.replace(old, new))
        return altered(reply, tools=tuple(tools))

    return spoil


def test_a_tool_that_changes_more_than_the_task_asks_is_caught_by_the_conditions_alone() -> None:
    # Its answers are right, and the state that it leaves is what the gold calls leave: equality has nothing to say.
    more = source_changed("    rows[target] += amount\n", "    rows[target] += amount\n    state['log'] = 'moved'\n")
    with pytest.raises(Rejected, match="state is not as the task asks"):
        written(Spoiling(WriteStatefulTask, more))
    teacher = Spoiling(WriteStatefulTask, more, times=1)
    assert written(teacher).final_state.keys() == written(ProceduralTeacher()).final_state.keys()
    assert "state is not as the task asks" in teacher.put[1].failure


def test_conditions_that_are_wrong_reject_the_task() -> None:
    for spoil, reason in (
        (lambda reply: StateConditions(conditions=()), "no condition"),
        (lambda reply: StateConditions(conditions=reply.conditions[1:]), "state is not as the task asks"),
    ):
        with pytest.raises(Rejected, match=reason):
            written(Spoiling(WriteStateConditions, spoil))


def test_conditions_that_miss_a_tampered_state_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every relation pins its value, so that only conditions of another kind could miss one.
    monkeypatch.setattr(state_proof, "meets_conditions", lambda conditions, before, after: before is not after)
    with pytest.raises(Rejected, match="conditions miss a change"):
        written(ProceduralTeacher())


def test_a_state_with_a_number_that_cannot_be_written_is_rejected_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = (StateCondition(path=("level",), relation="equals", value=2),)
    longest = 10**4300 - 1  # one digit more when it is tampered with
    with pytest.raises(Rejected, match=r"state is not as the task asks: .* a value with a number of more than 4300"):
        check_conditions(conditions, {"level": 1}, {"level": 10 * longest})
    monkeypatch.setattr(state_proof, "meets_conditions", lambda conditions, before, after: before is not after)
    with pytest.raises(Rejected, match="conditions miss a change: they hold of a value with a number"):
        check_conditions(conditions, {"level": 1}, {"level": longest})


def test_two_tools_of_one_name_are_no_task() -> None:
    def doubled(reply: Any) -> Any:
        return altered(reply, tools=(*reply.tools, reply.tools[0]))

    with pytest.raises(Rejected, match="tool name stands twice"):
        written(Spoiling(WriteStatefulTask, doubled))
    teacher = Spoiling(WriteStatefulTask, doubled, times=1)
    written(teacher)
    assert "tool name stands twice" in teacher.put[1].failure


def test_whoever_writes_the_conditions_sees_neither_code_nor_last_state() -> None:
    teacher = Spoiling(WriteStateConditions, lambda reply: reply)
    task = written(teacher)
    (request,) = teacher.put
    text = str(request.messages())
    assert request.state == task.state
    assert str(task.final_state) not in text
    assert "def " not in text


def dropped(reply: Any) -> Any:
    return altered(reply, tools=reply.tools[1:])


def same_calls(reply: Any) -> Any:
    first = {call.name: call for call in reversed(reply.calls)}
    return altered(reply, calls=tuple(first[call.name] for call in reply.calls))


def named_as_needed(reply: Any) -> Any:
    text = reply.model_dump_json().replace(reply.tools[0].document.name, "get_branch_book_budget")
    return type(reply).model_validate_json(text)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (dropped, "other number of further tools"),
        (same_calls, "further tool tells one thing alone"),
        (named_as_needed, "tool name stands twice"),
        (lambda reply: altered(reply, calls=reply.calls[1:]), "further tool without two calls"),
        (lambda reply: altered(reply, state={"book_budget": {}}), "part of the state stands twice"),
        (source_changed("    rows = ", "    import random\n    rows = "), "import not allowed"),
    ],
)
def test_further_tools_that_break_a_promise_are_rejected_and_the_failure_goes_back(
    spoil: Callable[[Any], Any], reason: str
) -> None:
    teacher = Spoiling(WriteFurtherTools, spoil, times=1)
    task = written(teacher, num_tools=11)
    assert len(task.tools) == 11
    with pytest.raises(Rejected, match=reason):
        written(Spoiling(WriteFurtherTools, spoil), num_tools=11)
    assert reason in teacher.put[1].failure


def test_a_scaled_tool_whose_option_does_nothing_is_rejected() -> None:
    def idle(reply: Any) -> Any:
        lines = [line for line in reply.source.split("\n") if "dry_run:" not in line or "def " in line]
        return altered(reply, source="\n".join(lines).replace("        return True\n", ""))

    teacher = Spoiling(WriteScaledTool, idle, times=1)
    task = written(teacher, scaled_documents=1.0)
    assert all(documented_defaults(tool.document) for tool in task.tools)
    assert teacher.put[1].failure
    with pytest.raises(Rejected):
        written(Spoiling(WriteScaledTool, idle), scaled_documents=1.0)


def test_tampering_with_what_was_proven_is_found(environments: list[Environment]) -> None:
    environment = environments[0]
    state = environment.final_state or {}
    for changes, reason in (
        ({"further_calls": environment.further_calls[1:]}, "further tool without two calls"),
        ({"state_conditions": environment.state_conditions[1:]}, "state is not as the task asks"),
        ({"final_state": {**state, "more": 1}}, "wrong final state"),
    ):
        tampered, sandbox = environment.model_copy(update=changes), InThisProcess()
        with pytest.raises(Rejected, match=reason):
            asyncio.run(verify_environment(tampered, sandbox, ExecutableTools(sandbox)))


async def test_a_call_of_no_further_tool_is_found(environments: list[Environment], sandbox_url: str) -> None:
    environment = environments[0]
    needed = {task.call.name for task in environment.sub_tasks if task.call}
    further = [tool for tool in environment.tools if tool.document.name not in needed]
    async with AsyncSandboxClient(sandbox_url) as sandbox:
        await prove_further_tools(sandbox, further, environment.further_calls, environment.state or {})
        with pytest.raises(Rejected, match="call of an unknown tool"):
            await prove_further_tools(sandbox, further[1:], environment.further_calls, environment.state or {})


@pytest.mark.parametrize("said", ["New York City", "NYC", "Oslo"])
def test_a_call_that_tells_an_alias_from_the_start_does_not_depend_on_the_state(said: str) -> None:
    def tool(name: str, returned: str) -> EnvironmentTool:
        body = f"    if kite not in state['kites']:\n        raise ValueError(kite)\n    {returned}\n"
        return EnvironmentTool(
            document=document(name, kite="string"), source=f"def {name}(kite: str, state: dict):\n{body}"
        )

    tools = (
        tool("paint", "state['kites'][kite] = state['after']; return state['receipt']"),
        tool("where", "return state['kites'][kite]"),
    )
    sub_questions = (
        SubQuestion(id="q1", question="?", answer="P-4", call=ToolCall(id="1", name="paint", arguments={"kite": "K"})),
        SubQuestion(
            id="q2",
            question="?",
            answer="New York City",
            aliases=("NYC",),
            depends_on=("q1",),
            call=ToolCall(id="2", name="where", arguments={"kite": "K"}),
        ),
    )
    state = {"kites": {"K": said}, "after": "New York City", "receipt": "P-4"}

    def proven() -> None:
        asyncio.run(prove_stateful(InThisProcess(), tools, sub_questions, state))

    if said == "Oslo":
        proven()
    else:
        with pytest.raises(Rejected, match="does not depend on the state"):
            proven()


def with_option(written: ToolDocument, **defaults: bool | int) -> ToolDocument:
    """Add optional parameters to a document."""
    kinds = {bool: "boolean", int: "integer"}
    added = {name: {"type": kinds[type(default)], "default": default} for name, default in defaults.items()}
    properties = {**written.parameters["properties"], **added}
    return altered(written, parameters={**written.parameters, "properties": properties})


CHECKED = """
    if tank not in state["levels"]:
        raise ValueError(tank)
"""
CHANGES = """
    if dry_run:
        return None
    state["levels"][tank] = level
    return level
"""


@pytest.mark.parametrize(
    ("default", "body", "reason"),
    [
        ("False", CHECKED + CHANGES, None),
        ("False", CHECKED + "    return 3\n", "further tool tells one thing alone"),
        ("False", "\n    return level\n", "ignores its arguments"),  # the tank
        ("False", CHECKED + CHANGES.replace("if dry_run", "if dry_run is None"), "ignores its arguments"),
        ("True", CHECKED + CHANGES, "further tool tells one thing alone"),  # both calls do nothing
        ("None", CHECKED + CHANGES.replace("if dry_run", "if dry_run is not False"), "tells one thing alone"),
        ("False", CHECKED + "    return [level][tank]\n", "further tool gives no answer"),
    ],
)
def test_each_promise_of_a_further_tool_is_kept_or_it_is_none(default: str, body: str, reason: str | None) -> None:
    written = with_option(document("set_level", "Set a level", tank="string", level="integer"), dry_run=False)
    source = f"def set_level(tank: str, level: int, state: dict, dry_run: bool = {default}):{body}"
    tool = EnvironmentTool(document=written, source=source)
    calls = [
        ToolCall(id="c1", name="set_level", arguments={"tank": "A", "level": 3}),
        ToolCall(id="c2", name="set_level", arguments={"tank": "B", "level": 4}),
    ]

    def proven() -> None:
        asyncio.run(prove_further_tools(InThisProcess(), [tool], calls, {"levels": {"A": 1, "B": 2}}))

    if reason is None:
        proven()
    else:
        with pytest.raises(Rejected, match=reason):
            proven()


def test_a_default_that_the_code_does_not_have_is_found() -> None:
    # Both calls state the option, so that only leaving it out shows what the code makes of that.
    written = with_option(document("raise_level", "Raise a level", tank="string"), by=1)
    source = 'def raise_level(tank: str, state: dict, by: int = 2):\n    return state["levels"][tank] + by\n'
    tool = EnvironmentTool(document=written, source=source)
    calls = [ToolCall(id=tank, name="raise_level", arguments={"tank": tank, "by": 1}) for tank in ("A", "B")]
    with pytest.raises(Rejected, match="default differs from document"):
        asyncio.run(prove_further_tools(InThisProcess(), [tool], calls, {"levels": {"A": 1, "B": 5}}))
