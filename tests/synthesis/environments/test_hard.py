"""Hard environments: solved by their gold calls, not by matching words; siblings beside the tools are wrong answers."""

from __future__ import annotations

import re

import pytest

from astra_jax.testing import tiny_environment
from synthesis.environments.distractors.siblings import tried_on_gold_calls, write_siblings
from synthesis.environments.pipeline import synthesize_environments
from synthesis.environments.selection.statistics import statistics_of
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import JudgeNaturalness, Naturalness
from synthesis.prompts.tool_writing import SiblingTools, WriteSiblingTools
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.scripted import ScriptedTeacher
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import all_kept, faults, read, tiny_config

COUNT = 16


@pytest.fixture(scope="module")
def records(tmp_path_factory, here):
    out = tmp_path_factory.mktemp("hard") / "out"
    config = tiny_config(
        seed=1,
        count=COUNT,
        out=out,
        difficulty="hard",
        name_parts={},
        irrelevant_per_band={"high": 2, "low": 1},
        varieties={"plain": 0.5, "stateful": 0.25, "withheld_tool": 0.125, "missing_parameter": 0.125},
    )
    return all_kept(config, here)


@pytest.fixture(scope="module")
def environments(records):
    return read(records)


def test_they_verify_and_count_as_hard(environments, tmp_path, sandbox_url):
    assert faults(tmp_path / "some", sandbox_url, *environments[::2]) == []
    counted = statistics_of(environments)
    assert counted.difficulties == {"hard": 1.0}
    assert statistics_of(each for each in environments if not each.is_stateful).computed_answers_share > 0.2
    assert {"high", "low"} <= set(counted.cosine_mean_by_band)
    assert counted.high_with_own_parameter_share is not None
    assert counted.high_with_own_parameter_share >= 0.6


def test_most_gold_replies_are_records_and_a_changed_one_does_not_verify(environments, tmp_path, sandbox_url):
    tasks = [task for each in environments if not each.is_stateful for task in each.sub_tasks]
    assert sum(bool(task.path) for task in tasks) >= 0.6 * len(tasks)
    environment = next(each for each in environments if isinstance(each.sub_questions[0].reply, dict))
    first, *others = environment.sub_questions
    tampered = [{"reply": {**first.reply, "note": 1}}, {"path": (*first.path[:-1], "nowhere")}, {"reply": None}]
    changed = [
        altered(environment, id=f"{number}", sub_questions=(altered(first, **fields), *others))
        for number, fields in enumerate(tampered)
    ]
    found = faults(tmp_path / "tampered", sandbox_url, *changed)
    assert found == ["another reply than recorded", "wrong answer", "another reply than recorded"]


def test_a_stateful_task_is_hard_too_and_the_tool_that_reads_has_siblings(environments):
    stateful = [environment for environment in environments if environment.is_stateful]
    assert len(stateful) == COUNT / 4
    for environment in stateful:
        assert environment.difficulty == "hard"
        reads = environment.sub_questions[-1].call
        assert reads is not None
        own = set(reads.arguments)
        assert any(set(each.tool.document.required) == own for each in environment.irrelevant_tools)
        for move in environment.sub_questions[:-1]:
            (moved,) = re.findall("What (.+) does|还剩多少(.+)？", move.question)
            assert "".join(moved) in environment.question


def test_distractors_beside_the_siblings_are_mostly_of_other_domains(environments):
    domains: dict[str, set[str]] = {}
    for environment in environments:
        for tool in environment.tools:
            domains.setdefault(tool.document.name, set()).add(environment.domain)
    beside = [
        environment.domain not in domains[each.tool.document.name]
        for environment in environments
        for each in environment.irrelevant_tools
        if each.tool.document.name in domains
    ]
    assert sum(beside) >= 0.6 * len(beside) > COUNT / 3


async def test_a_distractor_is_tried_with_the_optional_arguments_of_the_gold_call():
    environment = tiny_environment(flat="Red Gate", rent=7)
    first, second = environment.sub_questions
    assert second.call is not None
    call = altered(second.call, arguments={"flat": "Red Gate", "yearly": False})
    asked = altered(environment, sub_questions=(first, altered(second, call=call)))
    properties = {"flat": {"type": "string"}, "yearly": {"type": "boolean", "default": True}}
    distractor = EnvironmentTool(
        document=ToolDocument(
            name="costs", description="", parameters={"properties": properties, "required": ["flat"]}
        ),
        source="def costs(flat, yearly=True):\n    return TABLES['rows'][flat] * (12 if yearly else 1)\n",
        tables={"rows": {"Red Gate": 7}},
    )
    for each, kind, arguments in (
        (asked, "an answer", {"flat": "Red Gate", "yearly": False}),
        (environment, "something else", {"flat": "Red Gate"}),
    ):
        ((told, answered),) = await tried_on_gold_calls(InThisProcess(), [distractor], each)
        assert (told, answered[0].arguments) == (kind, arguments)


async def test_a_distractor_that_tells_an_alias_answers():
    environment = tiny_environment(flat="Red Gate")
    first, second = environment.sub_questions
    asked = altered(environment, sub_questions=(altered(first, aliases=("RG",)), second))
    document = altered(environment.tools[0].document, name="nearest_flat")
    distractor = EnvironmentTool(
        document=document, source="def nearest_flat(owner):\n    return TABLES['near']\n", tables={"near": "RG"}
    )
    for each, told in ((asked, "an answer"), (environment, "something else")):
        assert (await tried_on_gold_calls(InThisProcess(), [distractor], each))[0][0] == told


def twin_of(tool: EnvironmentTool) -> EnvironmentTool:
    """The tool under another name."""
    name = f"{tool.document.name}_too"
    source = tool.source.replace(f"def {tool.document.name}(", f"def {name}(")
    return altered(tool, document=altered(tool.document, name=name), source=source)


@pytest.mark.parametrize("written", [twin_of, lambda tool: tool])
async def test_a_sibling_that_answers_or_has_a_tools_name_is_left_out(environments, written):
    environment = next(environment for environment in environments if len(environment.sub_tasks) == 1)
    teacher = ScriptedTeacher({WriteSiblingTools: [SiblingTools(tools=(written(environment.tools[0]),))]})
    with pytest.raises(Rejected, match="no sibling tool"):
        await write_siblings(teacher, InThisProcess(), Knowledge(domain="library", language="en"), environment, seed=0)


async def test_a_question_below_the_threshold_of_naturalness_is_counted_and_the_score_of_others_is_kept(tmp_path, here):
    script = {JudgeNaturalness: [Naturalness(reason="", naturalness=score) for score in (0.4, 0.9)]}
    teacher = ScriptedTeacher(script, otherwise=ProceduralTeacher())
    config = tiny_config(seed=6, count=2, out=tmp_path / "out", difficulty="hard", name_parts={}, concurrency=1)
    report = await synthesize_environments(altered(config, naturalness_threshold=0.5), teacher, here)
    assert report.rejected == {"naturalness below threshold": 1}
    assert [environment.naturalness for environment in read(tmp_path / "out")] == [0.9]
