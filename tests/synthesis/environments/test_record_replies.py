"""A tool that replies with a record answers at one path, is proven there, and tells no other sub-question's answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from astra_jax.testing import tiny_environment
from synthesis.answers.counting import count_solved
from synthesis.environments.proving.merging import merge_sub_environments
from synthesis.environments.proving.proof import check_apart, prove, with_replies
from synthesis.environments.proving.sub_environments import SubEnvironment
from synthesis.export.rl_rows import ground_truth
from synthesis.prompts.tool_merging import MergeTools
from synthesis.prompts.tool_writing import ToolImplementation
from synthesis.records import EnvironmentTool, JsonValue, SubQuestion, ToolCall
from synthesis.stage import Rejected
from synthesis.teacher.scripted import ScriptedTeacher
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import document

FOUND = "{'total': 1, 'items': [{'flat': flat, 'id': TABLES['ids'][flat], 'rent': TABLES['rent'][flat]}]}"
EMPTY = "{'total': 0, 'items': []}"
TABLES = {"rent": {"Amber Fox": 4210, "Calm Owl": 3050}, "ids": {"Amber Fox": "F-71", "Calm Owl": "F-18"}}
DOCUMENT = document("get_rent", "Rent of a flat", flat="string")
PATH = ("items", 0, "rent")


def tool(source: str) -> EnvironmentTool:
    return EnvironmentTool(document=DOCUMENT, source=f"def get_rent(flat):\n    return {source}\n", tables=TABLES)


def asked(flat: str, rent: JsonValue, path: tuple[str | int, ...] = PATH) -> SubQuestion:
    call = ToolCall(id=f"call_{flat}", name="get_rent", arguments={"flat": flat})
    reply = {"total": 1, "items": [{"flat": flat, "id": TABLES["ids"][flat], "rent": rent}]}
    return SubQuestion(id=flat, question=f"Rent of {flat}?", answer=rent, call=call, path=path, reply=reply)


FOX, OWL = asked("Amber Fox", 4210), asked("Calm Owl", 3050)
GOOD = f"{FOUND} if flat in TABLES['rent'] else {EMPTY}"


def test_a_record_is_proven_at_its_path():
    asyncio.run(prove(InThisProcess(), [(tool(GOOD), [FOX, OWL])]))
    bare = [altered(each, reply=None, path=()) for each in (FOX, OWL)]
    assert asyncio.run(with_replies(InThisProcess(), tool(GOOD), [altered(each, path=PATH) for each in bare])) == [
        FOX,
        OWL,
    ]


@pytest.mark.parametrize(
    ("reason", "source", "question"),
    [
        ("wrong answer", GOOD, altered(FOX, path=("items", 1, "rent"))),
        ("wrong answer", GOOD, altered(FOX, path=("items", 0, "id"))),
        ("another reply than recorded", GOOD.replace("'total': 1", "'total': 2"), FOX),
        ("another reply than recorded", GOOD, altered(FOX, reply=None)),
        (
            "ignores its arguments",
            f"{FOUND} if flat in TABLES['rent'] else {{'top': max(TABLES['rent'].values())}}",
            FOX,
        ),
        ("other rows give no other answer", f"{FOUND} if flat == 'Amber Fox' else {EMPTY}", FOX),
        (
            "answers another sub-question",
            GOOD.replace("'total': 1", "'total': sum(TABLES['rent'].values()) - TABLES['rent'][flat]"),
            altered(FOX, reply={**FOX.reply, "total": 3050}),
        ),
    ],
)
def test_a_fault_of_a_record_has_its_reason(reason, source, question):
    others = [OWL] if reason == "answers another sub-question" else []
    with pytest.raises(Rejected, match=reason):
        asyncio.run(prove(InThisProcess(), [(tool(source), [question, *others])]))


def test_only_the_value_at_the_path_solves_and_only_for_one_sub_task():
    elsewhere: JsonValue = {"items": [{"rent": 1}], "note": 4210}
    for reply, solved in ((FOX.reply, 1), (4210, 0), (elsewhere, 0), ([], 0), (None, 0)):
        assert count_solved([FOX, OWL], [("get_rent", reply)]) == solved


@pytest.mark.parametrize(
    ("change", "apart"),
    [
        (lambda reply: reply, True),
        (lambda reply: {**reply, "similar": [{"rent": 3050}]}, False),
        (lambda reply: {**reply, "note": "3050"}, False),
        (lambda reply: {**reply, "note": "2024-3050"}, True),
        (lambda reply: {**reply, "open": True}, True),
    ],
)
def test_no_reply_tells_another_answer(change, apart):
    told = altered(FOX, reply=change(FOX.reply))
    if apart:
        check_apart([told, OWL])
    else:
        with pytest.raises(Rejected, match="reply tells another answer"):
            check_apart([told, OWL])


def test_the_name_that_a_call_asks_about_may_stand_in_its_reply():
    check_apart([SubQuestion(id="q0", question="Which flat?", answer="Amber Fox", call=OWL.call), FOX])


def test_merging_records_the_replies_of_the_joined_tool():
    counted = GOOD.replace("'total': 1", "'total': len(TABLES['rent'])")
    halves = [
        SubEnvironment(
            altered(each, reply={**each.reply, "total": 1}),
            altered(tool(counted), tables={name: {each.id: rows[each.id]} for name, rows in TABLES.items()}),
        )
        for each in (FOX, OWL)
    ]
    teacher = ScriptedTeacher({MergeTools: [ToolImplementation(source=tool(counted).source, tables=TABLES)]})
    questions, tools = asyncio.run(merge_sub_environments(teacher, InThisProcess(), halves, seed=0))
    assert len(tools) == 1
    assert [each.reply["total"] for each in questions] == [2, 2]


def test_gold_messages_show_the_record_and_exports_its_path():
    first, second = tiny_environment().sub_questions
    reply = {"flats": [first.answer]}
    environment = altered(tiny_environment(), sub_questions=(altered(first, path=("flats", 0), reply=reply), second))
    told = [json.loads(message.content) for message in environment.gold_messages() if message.role == "tool"]
    assert told == [reply, second.answer]
    truth = json.loads(ground_truth(environment))["sub_tasks"]
    assert [each.get("path") for each in truth] == [["flats", 0], None]
    assert {"path", "reply"}.isdisjoint(second.model_dump())
