"""A tool document that a language model wrote with an unusable schema costs a second try or the item, never the run."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest

from astra_jax.testing import tiny_environment
from synthesis.environments.distractors.siblings import write_siblings
from synthesis.environments.proving.sub_environments import build_sub_environments
from synthesis.environments.proving.tool_source import check_source
from synthesis.environments.state import prove_stateful
from synthesis.environments.verification import ExecutableTools, verify_environment
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.tool_writing import SiblingTools, WriteSiblingTools, WriteToolDocument
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, IrrelevantTool, JsonObject, ToolCall, ToolDocument
from synthesis.stage import Rejected, StageReport
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.track.journal import Journal, run_stage
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess

KNOWLEDGE = Knowledge(domain="library", language="en", seed=3)
REASON = "schema cannot be used"
UNUSABLE: dict[str, JsonObject] = {
    "unknown type": {"properties": {"a": {"type": "str"}}, "required": ["a"]},
    "reference": {"properties": {"a": {"$ref": "#/definitions/Owner"}}, "required": ["a"]},
    "reference to itself": {"$ref": "#"},
    "pattern that Python lacks": {"properties": {"a": {"type": "string", "pattern": "^\\p{L}+$"}}, "required": ["a"]},
    "pattern without end": {"properties": {"a": {"default": "x" * 40 + "!", "pattern": "^(x+)+$"}}},
    "required as a flag": {"properties": {"a": {"type": "string"}}, "required": True},
    "required and not there": {"properties": {}, "required": ["a"]},
    "properties as a list": {"properties": [{"name": "a", "type": "string"}]},
    "property as a text": {"properties": {"a": "string"}, "required": ["a"]},
    "choices as a number": {"properties": {"a": {"enum": 5, "default": 1}}},
}


def unusable(name: str, parameters: JsonObject) -> ToolDocument:
    return ToolDocument(name=name, description="Something else", parameters={"type": "object", **parameters})


async def built(teacher: ScriptedTeacher, instance: QAInstance, folder: Path, *, scaled: float = 0.0) -> StageReport:
    """Build the sub-environments of one instance as a run does: as an item of a stage, with its journal."""
    report = StageReport("environments")

    async def work(item):
        sandbox = InThisProcess()
        parts = await build_sub_environments(teacher, sandbox, KNOWLEDGE, item, seed=1, scaled_documents=scaled)
        return len(parts)

    with closing(Journal(folder / "journal.sqlite", "environments", {})) as journal:
        await run_stage(report, [instance], work, journal=journal, concurrency=1, progress=io.StringIO())
    return report


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_a_written_document_gets_a_second_try_and_then_the_item_goes(kind, instances, tmp_path):
    instance = instances["en single_hop"]
    request = WriteToolDocument(knowledge=KNOWLEDGE, node=instance.nodes[0])
    good = await ProceduralTeacher().ask(request, seed=1)
    bad = unusable("get_rent", UNUSABLE[kind])
    for is_mended in (False, True):
        script = {WriteToolDocument: [bad, good if is_mended else bad]}
        teacher = ScriptedTeacher(script, otherwise=ProceduralTeacher())
        (folder := tmp_path / str(is_mended)).mkdir()
        report = await built(teacher, instance, folder)
        assert report.asked_again == {REASON: 1}
        assert (report.mended[REASON], report.kept) == (is_mended, is_mended)
        assert report.rejected == ({} if is_mended else {REASON: 1})
        again = [asked for asked in teacher.asked if isinstance(asked, WriteToolDocument)][1]
        assert "get_rent: parameters" in again.messages()[-1]["content"]


def look_up(name: str, parameters: JsonObject | None = None) -> EnvironmentTool:
    usable = {"properties": {"flat": {"type": "string"}}, "required": ["flat"]}
    return EnvironmentTool(
        document=unusable(name, parameters or usable),
        source=f"def {name}(flat):\n    return TABLES['rows'][flat]\n",
        tables={"rows": {"Amber Falcon": 3, "Jade Otter": 4}},
    )


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_one_sibling_with_an_unusable_schema_is_left_out_and_the_others_stay(kind):
    reply = SiblingTools(tools=(look_up("get_size", UNUSABLE[kind]), look_up("get_floor")))
    teacher = ScriptedTeacher({WriteSiblingTools: [reply, SiblingTools(tools=())]})
    kept = await write_siblings(teacher, InThisProcess(), KNOWLEDGE, tiny_environment(), seed=0)
    assert [each.tool.document.name for each in kept] == ["get_floor"]


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_every_proof_rejects_a_tool_with_an_unusable_schema(kind):
    tool, sandbox = look_up("get_floor", UNUSABLE[kind]), InThisProcess()
    call = ToolCall(id="call_1", name="get_floor", arguments={"flat": "Amber Falcon"})
    environment = tiny_environment()
    distractor = IrrelevantTool(tool=tool, band="low", similarity=0.0, arguments=call.arguments)
    shown = altered(environment, irrelevant_tools=(distractor,))
    with pytest.raises(Rejected, match=REASON):
        check_source(tool.source, tool.document, ())
    with pytest.raises(Rejected, match=REASON):
        await prove_stateful(sandbox, [tool], [altered(environment.sub_questions[0], call=call)], {})
    with pytest.raises(Rejected, match=REASON):
        await verify_environment(shown, sandbox, ExecutableTools(sandbox))


async def test_a_distractor_whose_argument_may_be_null_is_tried_with_a_stranger_too():
    tool = look_up("get_floor", {"properties": {"flat": {"type": ["string", "null"]}}, "required": ["flat"]})
    await ExecutableTools(InThisProcess()).check([tool], [])
