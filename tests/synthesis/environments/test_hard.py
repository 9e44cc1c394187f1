"""Hard environments: solved by their gold calls, not by matching words; siblings beside the tools are wrong answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from astra_jax.testing import tiny_environment
from sandbox.client import ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.environments.distractors.siblings import tried_on_gold_calls, write_siblings
from synthesis.environments.selection.statistics import statistics_of
from synthesis.environments.verification import ExecutableTools, verify_environment
from synthesis.prompts.tool_writing import SiblingTools, WriteSiblingTools
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, EnvironmentTool, JsonObject, ToolDocument
from synthesis.stage import Rejected
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import all_kept, read, tiny_config, verdict

COUNT = 24


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, sandbox_url: str) -> Path:
    out = tmp_path_factory.mktemp("hard") / "out"
    config = tiny_config(
        seed=6, count=COUNT, out=out, difficulty="hard", name_parts={}, irrelevant_per_band={"high": 2, "low": 1}
    )
    return all_kept(config, sandbox_url)


@pytest.fixture(scope="module")
def environments(records: Path) -> list[Environment]:
    return read(records)


def test_they_verify_and_say_what_they_are(records: Path, environments: list[Environment], sandbox_url: str) -> None:
    assert verdict(records, sandbox_url) == f"verified {COUNT}/{COUNT}"
    counted = statistics_of(environments)
    assert counted.difficulties == {"hard": 1.0}
    assert counted.computed_answers_share > 0.3
    assert set(counted.cosine_mean_by_band) == {"high", "low"}
    assert counted.high_with_own_parameter_share is not None
    assert counted.high_with_own_parameter_share >= 0.6


async def test_no_distractor_gives_an_answer_to_a_gold_call(environments: list[Environment]) -> None:
    sandbox, tried = InThisProcess(), 0
    for environment in environments:
        for distractor in (irrelevant.tool for irrelevant in environment.irrelevant_tools):
            for task in environment.sub_tasks:
                assert task.call is not None
                if set(distractor.document.required) <= set(task.call.arguments):
                    reply = (await sandbox.execute_batch([request_of(distractor, task.call.arguments)]))[0]
                    assert not reply.ok or not any(same_answer(t.answer, reply.value) for t in environment.sub_tasks)
                    tried += 1
    assert tried >= COUNT / 2


async def test_a_distractor_that_answers_does_not_verify(environments: list[Environment]) -> None:
    environment = next(environment for environment in environments if len(environment.sub_tasks) == 1)
    sandbox = InThisProcess()
    await verify_environment(environment, sandbox, ExecutableTools(sandbox))
    (own,) = environment.tools
    name = f"{own.document.name}_too"
    twin = EnvironmentTool(
        document=altered(own.document, name=name),
        source=own.source.replace(f"def {own.document.name}(", f"def {name}("),
        tables=own.tables,
    )
    planted = altered(environment.irrelevant_tools[0], tool=twin)
    broken = altered(environment, irrelevant_tools=(planted, *environment.irrelevant_tools[1:]))
    with pytest.raises(Rejected, match="distractor answers"):
        await verify_environment(broken, sandbox, ExecutableTools(sandbox))


async def test_a_distractor_is_tried_with_the_optional_arguments_of_the_gold_call() -> None:
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
    told = await tried_on_gold_calls(InThisProcess(), [distractor], asked)
    assert told == [("an answer", {"flat": "Red Gate", "yearly": False})]
    assert await tried_on_gold_calls(InThisProcess(), [distractor], environment) == [
        ("something else", {"flat": "Red Gate"})
    ]


async def test_a_distractor_that_tells_an_alias_answers() -> None:
    environment = tiny_environment(flat="Red Gate")
    first, second = environment.sub_questions
    asked = altered(environment, sub_questions=(altered(first, aliases=("RG",)), second))
    document = altered(environment.tools[0].document, name="nearest_flat")
    distractor = EnvironmentTool(
        document=document, source="def nearest_flat(owner):\n    return TABLES['near']\n", tables={"near": "RG"}
    )
    for each, told in ((asked, "an answer"), (environment, "something else")):
        assert (await tried_on_gold_calls(InThisProcess(), [distractor], each))[0][0] == told


def request_of(tool: EnvironmentTool, arguments: JsonObject) -> ExecuteRequest:
    needed = {name: arguments[name] for name in tool.document.required}
    return ExecuteRequest(source=tool.module_source(), function=tool.document.name, arguments=needed)


class Echo:
    """A teacher whose siblings are the tools themselves, under the names that it is given."""

    name = "echo"

    def __init__(self, environment: Environment, *, renamed: bool):
        self._tools, self._renamed = {tool.document.name: tool for tool in environment.tools}, renamed

    async def ask(self, request: WriteSiblingTools, *, seed: int) -> SiblingTools:
        tool = self._tools[request.document.name]
        if not self._renamed:
            return SiblingTools(tools=(tool,))
        name = f"{tool.document.name}_too"
        document = altered(tool.document, name=name)
        source = tool.source.replace(f"def {tool.document.name}(", f"def {name}(")
        return SiblingTools(tools=(EnvironmentTool(document=document, source=source, tables=tool.tables),))


@pytest.mark.parametrize("renamed", [False, True])
async def test_a_sibling_that_answers_or_has_a_tools_name_is_left_out(
    environments: list[Environment], renamed: bool
) -> None:
    environment = next(environment for environment in environments if len(environment.sub_tasks) == 1)
    with pytest.raises(Rejected, match="no sibling tool"):
        await write_siblings(
            Echo(environment, renamed=renamed),  # type: ignore[arg-type]
            InThisProcess(),
            Knowledge(domain="library", language="en"),
            environment,
            seed=0,
        )


def test_a_config_that_has_no_hard_wording_is_refused() -> None:
    with pytest.raises(ValidationError, match='expected difficulty = "plain"'):
        tiny_config(seed=0, count=1, out="out", difficulty="hard", varieties={"stateful": 1.0})
