"""A sub-environment is built in at most twelve requests, and merging never costs an instance that was proven."""

from __future__ import annotations

import asyncio

import pytest

from synthesis.environments.proving.merging import merge_sub_environments
from synthesis.environments.proving.proof import prove
from synthesis.environments.proving.sub_environments import SubEnvironment, build_sub_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import JudgeToolNecessity
from synthesis.prompts.tool_merging import MergeTools
from synthesis.prompts.tool_writing import ToolImplementation, WriteToolImplementation
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.test_proof import DOCUMENT, GOOD, PLANTED, rent_of
from tests.synthesis.otherwise import Otherwise, raising

RENTS = {"Amber Fox": 4210, "Calm Owl": 3050}
KNOWLEDGE = Knowledge(domain="library", language="en", seed=3)
ALIKE = "en parallel_single_hop computed"
"""Two lookups of one property, and a computation that needs no tool."""


def learning(patience: int) -> Otherwise:
    """A teacher whose implementations fail until it has been shown `patience` failures."""
    shown: list[str] = []

    def change(request, reply, seed):
        shown.extend([request.failure] if request.failure else [])
        return (
            altered(reply, source=reply.source.replace("return rows", "return 0 and rows"))
            if len(shown) < patience
            else reply
        )

    return Otherwise({WriteToolImplementation: change})


def build(teacher: ProceduralTeacher, instance: QAInstance) -> list[SubEnvironment]:
    return asyncio.run(build_sub_environments(teacher, InThisProcess(), KNOWLEDGE, instance, seed=1))


def test_a_teacher_that_learns_from_the_failure_it_is_shown_is_accepted(instances):
    teacher = learning(patience=4)
    (built,) = build(teacher, instances["en single_hop"])
    assert built.tool is not None
    first, *again = (request.failure for request in teacher.asked_for(WriteToolImplementation))
    assert (first, len(again)) == ("", 4)
    assert all(failure.startswith("wrong answer: ") and "found 0" in failure for failure in again)
    assert len(teacher.asked) == 2 + 5


def test_a_record_without_the_path_to_its_answer_is_asked_for_again(instances):
    def in_a_record(request, reply, seed):
        source = reply.source.replace("return rows", "return {'found': 1, 'items': [rows").rstrip() + "]}\n"
        return altered(reply, source=source, path=("items", 0) if request.failure else ())

    teacher = Otherwise({WriteToolImplementation: in_a_record})
    (built,) = build(teacher, instances["en single_hop"])
    assert built.sub_question.reply == {"found": 1, "items": [built.sub_question.answer]}
    assert [request.failure[:12] for request in teacher.asked_for(WriteToolImplementation)] == ["", "wrong answer"]


@pytest.mark.parametrize("kind", ["lookup", "computation"])
def test_a_teacher_that_never_learns_is_asked_twelve_times_and_no_more(kind, instances):
    instance = instances["en single_hop"]
    (node,) = instance.nodes
    asked = altered(instance, nodes=(altered(node, kind=kind),))
    changes = {  # the judgement of a computation's need of a tool is one of the twelve
        JudgeToolNecessity: lambda request, reply, seed: altered(reply, needs_tool=True),
        WriteToolImplementation: lambda request, reply, seed: altered(reply, tables={}),
    }
    teacher = Otherwise(changes)
    with pytest.raises(Rejected, match="call ends in exception"):
        build(teacher, asked)
    assert len(teacher.asked) == 12


def test_a_computation_at_a_leaf_gets_no_tool(instances):
    instance = instances["en parallel_multi_hop computed"]
    built = build(ProceduralTeacher(), instance)
    assert [item.tool is None for item in built] == [node.kind == "computation" for node in instance.nodes]


def all_answers_at_once(request: MergeTools, reply: ToolImplementation, seed: int) -> ToolImplementation:
    return altered(reply, source=reply.source.replace("return rows", "return list(rows.values()) or rows"))


def without_the_new_row(request: MergeTools, reply: ToolImplementation, seed: int) -> ToolImplementation:
    strange = set(request.sub_questions[-1].call.arguments.values())
    rows_of = {name: {k: v for k, v in rows.items() if k not in strange} for name, rows in reply.tables.items()}
    return altered(reply, tables=rows_of)


@pytest.mark.parametrize("spoil", [raising(BadReply("not JSON")), all_answers_at_once, without_the_new_row])
async def test_tools_that_cannot_be_merged_stay_apart_under_distinct_names(spoil, instances):
    teacher, sandbox = Otherwise({MergeTools: spoil}), InThisProcess()
    built = await build_sub_environments(teacher, sandbox, KNOWLEDGE, instances[ALIKE], seed=1)
    name = built[0].tool.document.name
    sub_questions, tools = await merge_sub_environments(teacher, sandbox, built, seed=1)
    assert [tool.document.name for tool in tools] == [name, f"{name}_2"]
    for sub_question, tool in zip(sub_questions, tools, strict=False):
        await prove(sandbox, [(tool, [sub_question])])


def test_a_joined_tool_that_replays_every_gold_call_is_proven_whole_all_the_same():
    """It gives a stranger an answer, which no gold call shows."""
    tools = [
        EnvironmentTool(document=DOCUMENT, source=GOOD, tables={"rent": {name: rent}}) for name, rent in RENTS.items()
    ]
    apart = [SubEnvironment(rent_of(name, rent), tool) for (name, rent), tool in zip(RENTS.items(), tools, strict=True)]

    async def merge(source):
        joined = ToolImplementation(source=source, tables={"rent": RENTS})
        teacher = ScriptedTeacher({MergeTools: [joined]})
        _, merged = await merge_sub_environments(teacher, InThisProcess(), apart, seed=1)
        return len(merged)

    assert asyncio.run(merge(GOOD)) == 1
    with pytest.raises(Rejected, match="ignores its arguments"):
        asyncio.run(merge(PLANTED["answers a stranger"][1]))
