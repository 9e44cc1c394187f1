"""Tools that do the same become one, also if their documents differ, and nothing that was proven is lost."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from synthesis.embeddings import EmbeddingModel, embed
from synthesis.environments.proving import merging
from synthesis.environments.proving.merging import merge_sub_environments
from synthesis.environments.proving.proof import prove
from synthesis.environments.proving.sub_environments import SubEnvironment
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.tool_merging import FindHomogeneousTool, HomogeneousTool, MergeTools
from synthesis.prompts.tool_writing import ToolImplementation
from synthesis.records import EnvironmentTool, JsonObject, SubQuestion, ToolCall, ToolDocument
from synthesis.teacher.protocol import BadReply, TeacherUnavailable
from synthesis.teacher.scripted import ScriptedTeacher
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import document

ROWS = {"Calm Owl": 3050, "Red Hare": 1200}
RENTS = {"rent": {**ROWS, "Amber Fox": 4210, "Blue Elk": 2875}}


def sub_environment(entity, value, *, name, parameter, description, table="rent"):
    """A tool that looks a number up, documented in words of its own, and its gold call."""
    written = document(name, description, **{parameter: "string"})
    source = (
        f"def {name}({parameter}: str) -> int:\n"
        f'    rows = TABLES["{table}"]\n'
        f"    if {parameter} not in rows:\n"
        f'        raise ValueError(f"unknown: {{{parameter}}}")\n'
        f"    return rows[{parameter}]\n"
    )
    tool = EnvironmentTool(document=written, source=source, tables={table: {**ROWS, entity: value}})
    call = ToolCall(id=f"call_{entity}", name=name, arguments={parameter: entity})
    question = f"What is the {table} of {entity}?"
    return SubEnvironment(SubQuestion(id=entity, question=question, answer=value, call=call), tool)


FOX = sub_environment(
    "Amber Fox", 4210, name="get_flat_rent", parameter="flat", description="Looks up the rent of a flat"
)
ELK = sub_environment(
    "Blue Elk",
    2875,
    name="look_up_rent_of_flat",
    parameter="flat_name",
    description="Given its name, tells a flat's rent",
)
SAME_NAME = sub_environment(
    "Blue Elk", 2875, name="get_flat_rent", parameter="which_flat", description="Returns what is paid for a flat"
)
DEPOSIT = sub_environment(
    "Blue Elk", 9001, name="get_flat_deposit", parameter="flat", description="Looks up the deposit of a flat",
    table="deposit",
)  # fmt: skip
FLIGHT = sub_environment("ZX 81", 77, name="gate", parameter="number", description="Exit number", table="gates")


def merged(teacher, items):
    return asyncio.run(merge_sub_environments(teacher, InThisProcess(), items, seed=1))


def says(tool: str | None, **arguments: str) -> HomogeneousTool:
    return HomogeneousTool(reason="", tool=tool, arguments=dict(arguments))


@pytest.mark.parametrize("other", [ELK, SAME_NAME])
def test_tools_of_one_intent_in_other_words_become_one_that_answers_all(other):
    script = {FindHomogeneousTool: [says("get_flat_rent", flat="Blue Elk")]}
    sub_questions, tools = merged(ScriptedTeacher(script, otherwise=ProceduralTeacher()), [FOX, other])
    assert [tool.document.name for tool in tools] == ["get_flat_rent"]
    calls: list[tuple[str, JsonObject]] = [(each.call.name, each.call.arguments) for each in sub_questions if each.call]
    assert calls == [("get_flat_rent", {"flat": "Amber Fox"}), ("get_flat_rent", {"flat": "Blue Elk"})]
    assert [each.answer for each in sub_questions] == [4210, 2875]
    asyncio.run(prove(InThisProcess(), [(tools[0], sub_questions)]))


def test_only_similar_tools_are_compared_and_equal_documents_without_a_question():
    teacher = ScriptedTeacher({FindHomogeneousTool: [says(None)]}, otherwise=ProceduralTeacher())
    again = sub_environment(
        "Dark Yak", 999, name="get_flat_rent", parameter="flat", description="Looks up the rent of a flat"
    )
    _, tools = merged(teacher, [FOX, FLIGHT, DEPOSIT, again])
    assert [tool.document.name for tool in tools] == ["get_flat_rent", "gate", "get_flat_deposit"]
    (asked,) = [request for request in teacher.asked if isinstance(request, FindHomogeneousTool)]
    assert asked.tool.name == "get_flat_deposit"
    assert [candidate.name for candidate in asked.candidates] == ["get_flat_rent"]


def test_a_tool_that_was_joined_in_error_stays_apart_and_its_gold_proven():
    wrong = [
        says("get_flat_rent", flat="Amber Fox"),  # asks for another thing than the sub-question
        says("get_flat_rent", flat="Blue Elk"),
    ]
    for reply in wrong:
        script = {FindHomogeneousTool: [reply], MergeTools: [ToolImplementation(source=FOX.tool.source, tables=RENTS)]}
        sub_questions, tools = merged(ScriptedTeacher(script), [FOX, DEPOSIT])
        assert [tool.document.name for tool in tools] == ["get_flat_rent", "get_flat_deposit"]
        for sub_question, tool in zip(sub_questions, tools, strict=True):
            asyncio.run(prove(InThisProcess(), [(tool, [sub_question])]))


def test_an_unusable_verdict_costs_no_instance_and_an_outage_stops_the_run():
    _, tools = merged(ScriptedTeacher({FindHomogeneousTool: [BadReply("no JSON")]}), [FOX, SAME_NAME])
    assert [tool.document.name for tool in tools] == ["get_flat_rent", "get_flat_rent_2"]
    with pytest.raises(TeacherUnavailable):
        merged(ScriptedTeacher({FindHomogeneousTool: [TeacherUnavailable("down")]}), [FOX, SAME_NAME])


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (says("get_rent", flat="Blue Elk"), "found 'get_rent'"),
        (says("get_flat_rent", flat_name="Blue Elk"), "'flat' is a required property"),
        (says("get_flat_rent", flat="Blue Elk", year="2024"), r"found \['flat', 'year'\]"),
    ],
)
def test_a_verdict_names_a_candidate_and_arguments_that_it_takes(reply, found):
    assert FOX.tool is not None
    assert ELK.tool is not None
    request = FindHomogeneousTool(
        candidates=(FOX.tool.document,), tool=ELK.tool.document, sub_question=ELK.sub_question
    )
    with pytest.raises(ValueError, match=found):
        request.check(reply)
    request.check(says("get_flat_rent", flat="Blue Elk"))
    request.check(says(None))


def test_the_embedding_of_the_config_says_which_tools_are_similar(monkeypatch):
    named = EmbeddingModel(folder=Path("nowhere"))
    asked = []

    def far_apart(documents, embedding):
        asked.append((embedding, threading.current_thread() is threading.main_thread()))
        return embed([ToolDocument(name=f"a{n}", description="", parameters={}) for n, _ in enumerate(documents)]) * 0.5

    monkeypatch.setattr(merging, "embed", far_apart)
    sub_questions = merge_sub_environments(ScriptedTeacher({}), InThisProcess(), [FOX, ELK], seed=1, embedding=named)
    _, tools = asyncio.run(sub_questions)
    assert (len(tools), asked) == (2, [(named, False)])  # a local model holds up no event loop
