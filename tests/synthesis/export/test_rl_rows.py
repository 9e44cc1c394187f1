"""Rows for verl and TRL: the sandbox client runs their tools, and their ground truth holds the reward's values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.answers.counting import is_solved
from synthesis.export.rl_rows import ground_truth, trl_row, verl_row
from synthesis.records import Environment, StateCondition
from tests.synthesis.export.examples import environments

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
async def test_a_verl_row_has_verl_s_columns_and_the_sandbox_client_s_arguments(environment: Environment) -> None:
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
async def test_a_trl_row_is_a_conversational_prompt_with_columns_of_text(environment: Environment) -> None:
    row = json.loads(trl_row(environment).model_dump_json())
    assert row.pop("prompt") == [{"role": "user", "content": environment.question}]
    assert {type(value) for value in row.values()} <= {str, type(None)}
    assert (row["state"] is None) == (environment.state is None)
    tools = json.loads(row["sandbox_tools"])
    assert list(tools) == [tool["function"]["name"] for tool in json.loads(row["tools"])]
    await solves_all(environment, tools, row["ground_truth"])


def test_the_ground_truth_says_how_an_episode_is_to_end_and_which_other_texts_are_the_answer() -> None:
    by_id = {record.id: json.loads(trl_row(record).ground_truth) for record in environments()}
    assert by_id["state"]["final_state"] == {"n": 1}
    assert (by_id["asks"]["expectation"], by_id["asks"]["missing"]) == ("ask_back", "owner")
    assert by_id["digits"]["answer"] == "007"
    assert by_id["digits"]["aliases"] == ["seven"]
    assert [task.get("aliases") for task in by_id["digits"]["sub_tasks"]] == [["flat 42"], None]
    assert "aliases" not in json.dumps(by_id["mixed"])


def test_the_ground_truth_has_all_that_an_episode_needs_to_be_played_and_scored() -> None:
    plain = tiny_environment()
    asks = plain.model_copy(update={"expectation": "ask_back", "missing": "owner", "left_out": "Quartz Heron"})
    assert json.loads(ground_truth(asks))["user_reply"] == "I mean Quartz Heron."
    condition = StateCondition(path=("n",), relation="equals", value=1)
    with_state = plain.model_copy(update={"state": {"n": 0}, "final_state": {"n": 1}, "state_conditions": (condition,)})
    told = json.loads(ground_truth(with_state))["state_conditions"]
    assert told == [{"path": ["n"], "relation": "equals", "value": 1}]
    assert not {"user_reply", "state_conditions"} & json.loads(ground_truth(plain)).keys()
