"""A scaled document has optional parameters with defaults; the tool is held to them, and its error path is ordinary."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.client import AsyncSandboxClient
from synthesis.environments.proving.proof import prove
from synthesis.environments.questions.tool_documents import check_scaled, write_document
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.tool_writing import ScaleToolDocument
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, SubQuestion, ToolCall, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from tests.synthesis.altered import altered

FLAT = {"type": "string"}
UNIT = {"type": "string", "enum": ["one", "thousand"], "default": "thousand"}


def document(**properties: object) -> ToolDocument:
    parameters = {"type": "object", "properties": {"flat": FLAT, **properties}, "required": ["flat"]}
    return ToolDocument(name="get_rent", description="Rent of a flat", parameters=parameters)


@pytest.mark.parametrize(
    ("scaled", "reason"),
    [
        (altered(document(unit=UNIT), name="get_rents"), "scaling changes the tool"),
        (document(flat={"type": "integer"}), "scaling changes the tool"),
        (document(unit={"type": "string"}), "added parameter without default"),
        (document(unit={**UNIT, "default": "dozen"}), "default breaks its schema"),
        (document(unit={"type": "strin", "default": "one"}), "schema cannot be used"),
        (
            altered(document(unit=UNIT), parameters={**document(unit=UNIT).parameters, "required": ["flat", "unit"]}),
            "scaling changes the tool",
        ),
    ],
)
def test_a_document_that_is_scaled_badly_is_rejected_under_its_rule(scaled, reason):
    check_scaled(document(), document(unit=UNIT))
    with pytest.raises(Rejected) as rejected:
        check_scaled(document(), scaled)
    assert rejected.value.reason == reason


async def test_a_badly_scaled_document_gets_a_second_try_and_is_then_rejected(instances):
    (node,) = instances["en single_hop"].nodes
    knowledge = Knowledge(domain="library", language="en", seed=3)
    good = await write_document(ProceduralTeacher(), knowledge, node, seed=1, scaled=0.0)
    teacher = ScriptedTeacher({ScaleToolDocument: [altered(good, name="other")] * 2}, otherwise=ProceduralTeacher())
    with pytest.raises(Rejected, match="scaling changes the tool"):
        await write_document(teacher, knowledge, node, seed=1, scaled=1.0)
    assert len(teacher.asked) == 3


GOOD = """\
def get_rent(flat: str, unit: str = "thousand") -> float:
    rents, sizes = TABLES["rent"], TABLES["sizes"]
    if flat not in rents:
        raise ValueError(f"unknown flat: {flat}")
    if unit not in sizes:
        raise ValueError(f"unknown unit: {unit}")
    return rents[flat] / sizes[unit]
"""
PAGED = """\
def get_rent(flat: str, page: int = 1) -> float:
    if page < 1:
        raise ValueError(f"no page {page}")
    return TABLES["rent"][flat]
"""
PLANTED = {
    "default differs from document": GOOD.replace('= "thousand"', '= "one"'),
    "ignores its arguments": GOOD.replace("/ sizes[unit]", "/ sizes['one']"),
    "default fails": GOOD.replace("return", "if unit == 'thousand':\n        raise ValueError(unit)\n    return"),
    "error path fails": GOOD.replace('raise ValueError(f"unknown unit: {unit}")', "while True:\n            pass"),
    "signature differs from document": GOOD.replace(', unit: str = "thousand"', ', unit: str = "thousand", page=1'),
}


async def proof(url: str, source: str, written: ToolDocument, **options: object) -> None:
    call = ToolCall(id="call_q1", name="get_rent", arguments={"flat": "Amber Fox", **options})
    tables = {"rent": {"Amber Fox": 4210, "Calm Owl": 3050}, "sizes": {"one": 1, "thousand": 1000}}
    tool = EnvironmentTool(document=written, source=source, tables=tables)
    async with AsyncSandboxClient(url) as sandbox:
        await prove(sandbox, [(tool, [SubQuestion(id="q1", question="?", answer=4210, call=call)])])


def test_a_tool_is_accepted_only_if_its_documented_defaults_behave(sandbox_url):
    asyncio.run(proof(sandbox_url, GOOD, document(unit=UNIT), unit="one"))
    for reason, source in PLANTED.items():
        with pytest.raises(Rejected) as rejected:
            asyncio.run(proof(sandbox_url, source, document(unit=UNIT), unit="one"))
        assert rejected.value.reason == reason, rejected.value


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            'def get_rent(flat: str, page: int = 5) -> int:\n    return TABLES["rent"][flat] + page - 5\n',
            "default differs from document",
        ),
        (PAGED, "ignores its arguments"),
    ],
)
def test_a_page_that_the_call_leaves_out_is_held_to_its_default_too(source, reason, sandbox_url):
    with pytest.raises(Rejected, match=reason):
        asyncio.run(proof(sandbox_url, source, document(page={"type": "integer", "default": 1})))


async def test_the_embedded_teacher_has_no_options_for_plain_tools(instances):
    (node,) = instances["en single_hop"].nodes
    knowledge = Knowledge(domain="library", language="en", seed=3)
    with pytest.raises(BadReply, match="give a \\[teacher\\]"):
        await write_document(ProceduralTeacher(), knowledge, node, seed=1, scaled=1.0)
