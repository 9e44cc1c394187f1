"""Faults that the original is known for, and that no other test of this track rules out."""

from __future__ import annotations

import asyncio

import pytest

from synthesis.answers.counting import count_solved
from synthesis.environments import worker
from synthesis.environments.pipeline import synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import JudgeDecomposition
from synthesis.records import Environment, SubQuestion, ToolCall
from synthesis.stage import NothingKept
from synthesis.teacher.protocol import BadReply
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import read, tiny_config
from tests.synthesis.otherwise import Otherwise, raising


@pytest.mark.parametrize("value", ["error code 1500", "5", "5 rooms", [5], {"rooms": 5}, True, None, ""])
def test_the_answer_5_is_not_found_in_error_code_1500_nor_in_anything_but_5(value):
    call = ToolCall(id="call_1", name="count_rooms", arguments={"house": "Amber"})
    asked = SubQuestion(id="q1", question="How many rooms has Amber?", answer=5, call=call)
    assert count_solved([asked], [("count_rooms", value)]) == 0
    assert count_solved([asked], [("count_rooms", 5)]) == 1


def test_an_environment_with_two_tools_of_one_name_cannot_be_written(environments):
    mixed = next(environment for environment in environments if environment.irrelevant_tools)
    twin = altered(mixed.irrelevant_tools[0], tool=mixed.tools[0])
    with pytest.raises(ValueError, match="tool names must be unique"):
        Environment.model_validate({**mixed.model_dump(), "irrelevant_tools": [twin.model_dump()]})


def test_an_environment_whose_finished_tools_no_longer_answer_is_not_written(tmp_path, here, monkeypatch):
    replay = worker.replay_environment
    damaged: list[str] = []

    async def replay_damaged(environment, *sandboxes):
        if not damaged:
            damaged.append(environment.id)
            broken = [altered(tool, tables={}) for tool in environment.tools]
            environment = altered(environment, tools=tuple(broken))
        await replay(environment, *sandboxes)

    monkeypatch.setattr(worker, "replay_environment", replay_damaged)
    config = tiny_config(seed=0, count=5, out=tmp_path / "out")
    report = asyncio.run(synthesize_environments(config, ProceduralTeacher(), here))
    assert (report.kept, report.rejected.total()) == (4, 1)
    assert damaged[0] not in {environment.id for environment in read(tmp_path / "out")}


def test_a_judgement_that_cannot_be_read_costs_its_environment_and_is_no_perfect_score(tmp_path, here):
    bad = {JudgeDecomposition: raising(BadReply("no JSON in the reply"))}
    once = tiny_config(seed=0, count=5, out=tmp_path / "once")
    report = asyncio.run(synthesize_environments(once, Otherwise(bad, times=1), here))
    assert (report.kept, dict(report.rejected)) == (4, {"unusable reply": 1})
    always = altered(once, out=tmp_path / "always")
    said = r"was kept of 5 read \(unusable reply 5\); unusable reply: no JSON in the reply$"
    with pytest.raises(NothingKept, match=said):
        asyncio.run(synthesize_environments(always, Otherwise(bad), here))
