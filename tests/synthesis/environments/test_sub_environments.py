"""A sub-environment is built in at most twelve requests, and merging never costs an instance that was proven."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandbox.client import AsyncSandboxClient
from synthesis.environments.proving.merging import merge_sub_environments
from synthesis.environments.proving.proof import prove
from synthesis.environments.proving.sub_environments import SubEnvironment, build_sub_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.tool_implementation_writing import ToolImplementation, WriteToolImplementation
from synthesis.prompts.tool_merging import MergeTools
from synthesis.prompts.tool_necessity import JudgeToolNecessity
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Reply, Request
from synthesis.teacher.scripted import ScriptedTeacher
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.test_proof import DOCUMENT, GOOD, PLANTED, rent_of

RENTS = {"Amber Fox": 4210, "Calm Owl": 3050}
KNOWLEDGE = Knowledge(domain="library", language="en", seed=3)
ALIKE = "en parallel_single_hop computed"
"""Two lookups of one property, and a computation that needs no tool."""


class LearningTeacher(ProceduralTeacher):
    """Writes implementations that fail until it has been shown `patience` failures; counts what it is asked."""

    def __init__(self, patience: int):
        self._patience = patience
        self.shown: list[str] = []
        self.num_requests = 0

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        self.num_requests += 1
        reply: Any = await super().ask(request, seed=seed)
        if isinstance(request, WriteToolImplementation):
            if request.failure:
                self.shown.append(request.failure)
            if len(self.shown) < self._patience:
                broken = reply.source.replace("return rows", "return 0 and rows")
                return ToolImplementation(source=broken, tables=reply.tables)  # type: ignore[return-value]
        return reply


async def build(url: str, teacher: ProceduralTeacher, instance: QAInstance) -> list[SubEnvironment]:
    async with AsyncSandboxClient(url) as sandbox:
        return await build_sub_environments(teacher, sandbox, KNOWLEDGE, instance, seed=1)


def test_a_teacher_that_learns_from_the_failure_it_is_shown_is_accepted(
    instances: dict[str, QAInstance], sandbox_url: str
) -> None:
    teacher = LearningTeacher(patience=4)
    (built,) = asyncio.run(build(sandbox_url, teacher, instances["en single_hop"]))
    assert built.tool is not None
    assert len(teacher.shown) == 4
    assert all(failure.startswith("wrong answer: ") and "found 0" in failure for failure in teacher.shown)
    assert teacher.num_requests == 2 + 5


def test_a_teacher_that_never_learns_is_asked_twelve_times_and_no_more(
    instances: dict[str, QAInstance], sandbox_url: str
) -> None:
    teacher = LearningTeacher(patience=99)
    with pytest.raises(Rejected, match="wrong answer"):
        asyncio.run(build(sandbox_url, teacher, instances["en single_hop"]))
    assert teacher.num_requests == 12


class CautiousTeacher(LearningTeacher):
    """Holds that every sub-question needs a tool."""

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        reply: Any = await super().ask(request, seed=seed)
        return altered(reply, needs_tool=True) if isinstance(request, JudgeToolNecessity) else reply


def test_the_necessity_judgement_is_one_of_the_twelve_requests(
    instances: dict[str, QAInstance], sandbox_url: str
) -> None:
    instance = instances["en single_hop"]
    (node,) = instance.nodes
    computed = altered(instance, nodes=(altered(node, kind="computation"),))
    teacher = CautiousTeacher(patience=99)
    with pytest.raises(Rejected, match="wrong answer"):
        asyncio.run(build(sandbox_url, teacher, computed))
    assert teacher.num_requests == 12


def test_a_computation_at_a_leaf_gets_no_tool(instances: dict[str, QAInstance], sandbox_url: str) -> None:
    instance = instances["en parallel_multi_hop computed"]
    built = asyncio.run(build(sandbox_url, ProceduralTeacher(), instance))
    assert [item.tool is None for item in built] == [node.kind == "computation" for node in instance.nodes]


class SpoilingTeacher(ProceduralTeacher):
    """Merges badly: answers with `spoilt` of the right reply, or not at all."""

    def __init__(self, spoilt: str):
        self._spoilt = spoilt

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        reply: Any = await super().ask(request, seed=seed)
        if isinstance(request, MergeTools):
            if self._spoilt == "no reply":
                raise BadReply("not JSON")
            source = reply.source
            if self._spoilt == "all answers at once":
                source = source.replace("return rows", "return list(rows.values()) or rows")
            tables = reply.tables
            if self._spoilt == "without the new row":
                last = request.sub_questions[-1].call
                assert last is not None
                strange = set(last.arguments.values())
                tables = {name: {k: v for k, v in rows.items() if k not in strange} for name, rows in tables.items()}
            return ToolImplementation(source=source, tables=tables)  # type: ignore[return-value]
        return reply


@pytest.mark.parametrize("spoilt", ["no reply", "all answers at once", "without the new row"])
def test_tools_that_cannot_be_merged_stay_apart_under_distinct_names(
    spoilt: str, instances: dict[str, QAInstance], sandbox_url: str
) -> None:
    instance = instances[ALIKE]

    async def merge() -> None:
        async with AsyncSandboxClient(sandbox_url) as sandbox:
            teacher = SpoilingTeacher(spoilt)
            built = await build_sub_environments(teacher, sandbox, KNOWLEDGE, instance, seed=1)
            first = built[0].sub_question.call
            assert first is not None
            sub_questions, tools = await merge_sub_environments(teacher, sandbox, built, seed=1)
            assert [tool.document.name for tool in tools] == [first.name, f"{first.name}_2"]
            for sub_question, tool in zip(sub_questions, tools, strict=False):
                await prove(sandbox, [(tool, [sub_question])])

    asyncio.run(merge())


def test_merged_tools_answer_every_earlier_call(instances: dict[str, QAInstance], sandbox_url: str) -> None:
    instance = instances[ALIKE]

    async def merge() -> None:
        async with AsyncSandboxClient(sandbox_url) as sandbox:
            built = await build_sub_environments(ProceduralTeacher(), sandbox, KNOWLEDGE, instance, seed=1)
            sub_questions, (tool,) = await merge_sub_environments(ProceduralTeacher(), sandbox, built, seed=1)
            await prove(sandbox, [(tool, sub_questions[:2])])

    asyncio.run(merge())


def test_a_joined_tool_that_replays_every_gold_call_is_proven_whole_all_the_same() -> None:
    """It gives a stranger an answer, which no gold call shows."""
    tools = [
        EnvironmentTool(document=DOCUMENT, source=GOOD, tables={"rent": {name: rent}}) for name, rent in RENTS.items()
    ]
    apart = [SubEnvironment(rent_of(name, rent), tool) for (name, rent), tool in zip(RENTS.items(), tools, strict=True)]

    async def merge(source: str) -> int:
        joined = ToolImplementation(source=source, tables={"rent": RENTS})
        teacher = ScriptedTeacher({MergeTools: [joined]})
        _, merged = await merge_sub_environments(teacher, InThisProcess(), apart, seed=1)
        return len(merged)

    assert asyncio.run(merge(GOOD)) == 1
    with pytest.raises(Rejected, match="ignores its arguments"):
        asyncio.run(merge(PLANTED["answers a stranger"][1]))
