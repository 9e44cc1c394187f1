"""Rows of RL data: the sandbox client runs the tools of verl's and TRL's, and ASTRA's have the published form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.answers.counting import is_solved
from synthesis.export import data_card
from synthesis.export.rl_rows import astra_row, ground_truth, trl_row, verl_row
from synthesis.records import Environment, StateCondition
from tests.synthesis.export.examples import environments

BY_ID = {record.id: record for record in environments()}
ENVIRONMENTS = pytest.mark.parametrize("environment", environments(), ids=lambda record: record.id)


async def solves_all(environment: Environment, tools: dict[str, Any], truth: str) -> None:
    """Make every gold call as the row says it, and compare with the row's ground truth."""
    sub_tasks = json.loads(truth)["sub_tasks"]
    assert len(sub_tasks) == len(environment.sub_tasks)
    for sub_task, wanted in zip(environment.sub_tasks, sub_tasks, strict=True):
        assert sub_task.call is not None
        reply = await InProcessSandbox().execute(**tools[wanted["tool"]], arguments=sub_task.call.arguments)
        assert is_solved(sub_task, wanted["tool"], reply.value)
        assert (reply.value, type(reply.value)) == (wanted["answer"], type(wanted["answer"]))


@ENVIRONMENTS
async def test_a_verl_row_has_verl_s_columns_and_the_sandbox_client_s_arguments(environment):
    row = json.loads(verl_row(environment, index=3, split="train").model_dump_json())
    assert set(row) == {"data_source", "agent_name", "prompt", "ability", "reward_model", "extra_info"}
    assert row["prompt"] == [{"role": "user", "content": environment.question}]
    assert row["reward_model"]["style"] == "rule"
    extra = row["extra_info"]
    assert (extra["index"], extra["split"], extra["need_tools_kwargs"]) == (3, "train", True)
    assert extra["ground_truth"] == row["reward_model"]["ground_truth"]
    names = [tool["function"]["name"] for tool in json.loads(extra["tools"])]
    assert names == extra["tool_selection"] == list(extra["tools_kwargs"]) == sorted(names)
    tools = {name: dict(kwargs["create_kwargs"]) for name, kwargs in extra["tools_kwargs"].items()}
    states = {tool.pop("state", None) for tool in tools.values()}
    assert states == {None if environment.state is None else json.dumps(environment.state)}
    await solves_all(environment, tools, extra["ground_truth"])


@ENVIRONMENTS
async def test_a_trl_row_is_a_conversational_prompt_with_columns_of_text(environment):
    row = json.loads(trl_row(environment).model_dump_json())
    assert row.pop("prompt") == [{"role": "user", "content": environment.question}]
    assert {type(value) for value in row.values()} <= {str, type(None)}
    assert (row["state"] is None) == (environment.state is None)
    tools = json.loads(row["sandbox_tools"])
    assert list(tools) == [tool["function"]["name"] for tool in json.loads(row["tools"])]
    await solves_all(environment, tools, row["ground_truth"])


def test_the_ground_truth_says_how_an_episode_is_to_end_and_which_other_texts_are_the_answer():
    by_id = {record.id: json.loads(trl_row(record).ground_truth) for record in environments()}
    assert by_id["state"]["final_state"] == {"n": 1}
    assert (by_id["asks"]["expectation"], by_id["asks"]["missing"]) == ("ask_back", "owner")
    assert by_id["digits"]["answer"] == "007"
    assert by_id["digits"]["aliases"] == ["seven"]
    assert [task.get("aliases") for task in by_id["digits"]["sub_tasks"]] == [["flat 42"], None]
    assert "aliases" not in json.dumps(by_id["mixed"])


def test_the_ground_truth_has_all_that_an_episode_needs_to_be_played_and_scored():
    plain = tiny_environment()
    asks = plain.model_copy(update={"expectation": "ask_back", "missing": "owner", "left_out": "Quartz Heron"})
    assert json.loads(ground_truth(asks))["user_reply"] == "I mean Quartz Heron."
    condition = StateCondition(path=("n",), relation="equals", value=1)
    with_state = plain.model_copy(update={"state": {"n": 0}, "final_state": {"n": 1}, "state_conditions": (condition,)})
    told = json.loads(ground_truth(with_state))["state_conditions"]
    assert told == [{"path": ["n"], "relation": "equals", "value": 1}]
    assert not {"user_reply", "state_conditions"} & json.loads(ground_truth(plain)).keys()
    card = Path(data_card.__file__).with_name("data_card.md.jinja").read_text()
    named = set(re.findall(r"`(\w+)`", card.partition('ground_truth = "')[2].partition('" %}')[0]))
    assert (
        {"user_reply"}
        < named
        <= {"ground_truth", "sql", "queries", *json.loads(ground_truth(asks)), *json.loads(ground_truth(with_state))}
    )


def test_the_four_published_columns_have_the_published_form():
    digits = BY_ID["digits"]
    row = astra_row(digits).model_dump()
    assert row["prompt"] == [{"role": "user", "content": digits.question}]
    assert json.loads(row["tool_schema"]) == [tool.document.to_openai() for tool in digits.tools]
    modules = json.loads(row["tool_dict"])
    assert list(modules) == ["find_flat", "get_rent"]
    namespace = {}
    exec(modules["find_flat"], namespace)
    assert namespace["find_flat"](owner="Zinc Owl") == "0042"
    # Sub-answers are texts in the published rows, a number as well.
    assert json.loads(row["sub_qa_dict"]) == {"find_flat": ["0042"], "get_rent": ["7"]}
    rest = json.loads(row["environment"])
    whole = digits.model_dump(mode="json")
    assert rest["sub_questions"] == whole["sub_questions"]
    assert whole.keys() - rest.keys() == {"question"}
    assert whole["tools"][0].keys() - rest["tools"][0].keys() == {"source"}


def test_the_order_of_the_tools_does_not_say_which_are_distractors():
    assert list(json.loads(astra_row(BY_ID["mixed"]).tool_dict)) == ["a_flat", "find_flat", "get_rent"]
