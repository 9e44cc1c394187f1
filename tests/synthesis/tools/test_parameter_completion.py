"""Tools of unknown parameters are told from tools without parameters, and completed or left out."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts import parameter_completion as prompts
from synthesis.prompts.parameter_completion import CompletedParameter, CompletedParameters, CompleteParameters
from synthesis.record_io import RecordSource
from synthesis.records import ServerDocument, ToolDocument, Trajectory
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.tools.documents import SourceServer, ToolDocumentFilters, normalise_server
from synthesis.tools.parameter_completion import UNKNOWN, complete_tool, with_completed_tools
from synthesis.tools.sources import read_servers
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.statistics import trajectory_statistics

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TITLE: dict[str, Any] = {
    "name": "title", "type": "string", "description": "Title of the issue", "required": True, "example": "Slow",
}  # fmt: skip
STATED = [
    {"name": f"get_{what}", "description": f"Get the {what} of a city.", "input_schema": CITY}
    for what in ("weather", "forecast", "humidity")
]
UNSAID = {"name": "create_issue", "description": "Create a new issue in a project.", "parameters": []}


def written(path: Path, *tools: dict[str, Any], name: str = "Weather and issues") -> Path:
    server = {"server_name": name, "server_info_crawled": {"name": name, "tools": list(tools)}}
    path.write_text(json.dumps({"metadata": server}), encoding="utf-8")
    return path


def server_of(path: Path, *tools: dict[str, Any]) -> ServerDocument:
    (found,) = read_servers(written(path / "s.json", *tools))
    assert isinstance(found, SourceServer)
    return normalise_server(found, ToolDocumentFilters(min_tools=1))


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"parameters": []}, "unknown"),
        ({"parameters": [{"name": word} for word in ("Create", "a", "new", "issue")]}, "unknown"),
        ({"parameters": [{"name": "title"}]}, "stated"),
        ({}, "unknown"),
        ({"input_schema": None}, "unknown"),
        ({"input_schema": {"type": "object"}}, "unknown"),
        ({"input_schema": {"type": "object", "properties": {}}}, "stated"),
        ({"input_schema": {"type": "object", "additionalProperties": False}}, "stated"),
        ({"input_schema": CITY, "parameters": []}, "stated"),
        ({"input_schema": {"anyOf": [CITY]}}, "stated"),
    ],
)
def test_a_tool_of_unknown_parameters_is_no_tool_without_parameters(tmp_path, said, status):
    tool = {"name": "create_issue", "description": "Create a new issue in a project."} | said
    assert server_of(tmp_path, tool).tools[0].parameters_status == status


@pytest.mark.parametrize(
    "changes",
    [
        {"example": 3}, {"example": ""}, {"type": "integer", "example": True}, {"type": "integer", "example": 2.5},
        {"type": "array", "example": ["a"]}, {"type": "array", "items": "integer", "example": ["a"]},
        {"type": "array", "items": "integer", "example": []}, {"items": "string"}, {"description": "Title"},
        {"description": "标题"}, {"name": "issue title"}, {"name": "api_key"}, {"type": "file"},
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_called_with_is_no_answer(changes):
    CompletedParameter(**TITLE)
    with pytest.raises(ValidationError):
        CompletedParameter(**(TITLE | changes))
    with pytest.raises(ValidationError, match="title"):
        CompletedParameters(parameters=[TITLE, TITLE])


async def test_a_completed_tool_has_the_teacher_s_parameters_and_is_marked(tmp_path):
    server = server_of(tmp_path, UNSAID, STATED[0])
    labels = TITLE | {"name": "labels", "type": "array", "items": "string", "example": ["bug"], "required": False}
    reply = CompletedParameters(parameters=[TITLE, labels])
    teacher = ScriptedTeacher({CompleteParameters: [reply]})
    completed = await complete_tool(teacher, server, server.tools[0], seed=0)
    assert completed.parameters_status == "completed"
    assert completed.required == ("title",)
    Draft202012Validator.check_schema(completed.parameters)
    for name, schema in completed.parameters["properties"].items():
        assert schema["description"]
        Draft202012Validator(schema).validate(schema["examples"][0]), name
    (asked,) = teacher.asked
    assert '"get_weather": ["city"]' in asked.messages()[1]["content"]
    assert ToolDocument.model_validate_json(completed.model_dump_json()) == completed


async def test_a_tool_that_the_teacher_cannot_complete_is_left_out_with_its_reason(tmp_path):
    server = server_of(tmp_path, UNSAID, *STATED)
    endless = CompletedParameters(parameters=[TITLE | {"type": "number", "example": float("inf")}])  # 1e999 in JSON
    for teacher, reason in (
        (ProceduralTeacher(), UNKNOWN),
        (ScriptedTeacher({CompleteParameters: [BadReply("no JSON")]}), UNKNOWN),
        (ScriptedTeacher({CompleteParameters: [endless]}), "schema cannot be used"),
    ):
        with pytest.raises(Rejected) as rejected:
            await complete_tool(teacher, server, server.tools[0], seed=0)
        assert rejected.value.reason == reason
    left = with_completed_tools(server, {}, ToolDocumentFilters())
    assert [tool.name for tool in left.tools] == [tool["name"] for tool in STATED]
    assert f"tool left out: {UNKNOWN}" in left.repairs
    with pytest.raises(Rejected, match="3 of 4 tools say what they take"):
        with_completed_tools(server, {}, ToolDocumentFilters(min_tools=4))


def run(source: Path, out: Path, teacher: Any, **changes: Any) -> list[Trajectory]:
    config = TrajectoriesConfig(
        **({"count": 12, "out": out, "shipped_examples": False, "tool_documents": (source,)} | changes)
    )
    asyncio.run(synthesize_trajectories(config, teacher, progress=io.StringIO()))
    return list(RecordSource(out, Trajectory))


def test_no_conversation_offers_a_tool_of_unknown_parameters_and_the_statistics_count_it(tmp_path):
    (tmp_path / "sources").mkdir()
    written(tmp_path / "sources" / "a.json", UNSAID, *STATED)
    written(tmp_path / "sources" / "b.json", *(UNSAID | {"name": f"create_{n}"} for n in "xyz"), name="Unsaid")
    teacher = ScriptedTeacher({prompts.CompleteOutput: [BadReply("no")] * 3}, otherwise=ProceduralTeacher())
    trajectories = run(tmp_path / "sources", tmp_path / "out", teacher)
    assert {tool.name for each in trajectories for tool in each.tools} <= {tool["name"] for tool in STATED}
    assert {each.server for each in trajectories} == {"Weather and issues"}
    statistics = trajectory_statistics(tmp_path / "out")
    assert statistics.tools_of_unknown_parameters == {UNKNOWN: 4}
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["servers_left_out"] == {UNKNOWN: 1}
    assert report["unknown_results"] == {"read": 3, "completed": 0, "rejected": {"result stays unknown": 3}}


def test_a_completed_tool_is_offered_called_and_counted_and_stays_so_under_another_threshold(tmp_path):
    source = written(tmp_path / "a.json", UNSAID, *STATED)
    script = {CompleteParameters: [CompletedParameters(parameters=[TITLE])]}
    trajectories = run(source, tmp_path / "out", ScriptedTeacher(script, otherwise=ProceduralTeacher()))
    calls = [call for each in trajectories for message in each.messages for call in message.tool_calls]
    assert any(call.name == "create_issue" and call.arguments.get("title") for call in calls)
    statistics = trajectory_statistics(tmp_path / "out")
    assert statistics.tools_of_unknown_parameters == {"completed": 1}
    again = run(source, tmp_path / "out", ScriptedTeacher({}), reward_thresholds={"every_axis": 0.45})
    assert again
    assert trajectory_statistics(tmp_path / "out").tools_of_unknown_parameters == {"completed": 1}
