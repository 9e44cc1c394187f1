"""Environments as rows of verl's RL data with tools.

verl's own five columns, `agent_name` for its tool-calling loop, and in `extra_info` what it hands to `create` of each
tool. verl knows tools by their names for a whole run: a name that has several documents in a set needs a choice.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from synthesis.export.openai_rows import Row
from synthesis.export.sandbox_tools import ground_truth, initial_state, sandbox_tools, tool_schemas
from synthesis.records import Environment, JsonObject


class PromptMessage(Row):
    """A message of the prompt."""

    role: Literal["user"] = "user"
    content: str


class RewardModel(Row):
    """What a rule of the user's compares with."""

    style: Literal["rule"] = "rule"
    ground_truth: str


class ExtraInfo(Row):
    """What tools and reward need beside the prompt."""

    split: str
    index: int
    id: str
    """Of the environment."""
    need_tools_kwargs: bool = True
    tools_kwargs: JsonObject
    """Tool name to `create_kwargs`: `source` and `function` as the sandbox client takes them, `state` where there is
    one, as the text of its JSON."""
    tool_selection: list[str]
    """The tools that are offered."""
    tools: str
    """The JSON text of their schemas, in OpenAI's form."""
    ground_truth: str


class VerlRow(Row):
    """A prompt, its tools and its reward."""

    data_source: str
    agent_name: Literal["tool_agent"] = "tool_agent"
    prompt: list[PromptMessage] = Field(min_length=1)
    ability: Literal["tool_use"] = "tool_use"
    reward_model: RewardModel
    extra_info: ExtraInfo


def verl_row(environment: Environment, *, index: int, split: str) -> VerlRow:
    """Return the row of an environment; the reward's ground truth stands in `reward_model` and in `extra_info`."""
    tools, state = sandbox_tools(environment), initial_state(environment)
    with_state = {} if state is None else {"state": state}
    truth = ground_truth(environment)
    return VerlRow(
        data_source=f"astra-jax/{environment.domain}",
        prompt=[PromptMessage(content=environment.question)],
        reward_model=RewardModel(ground_truth=truth),
        extra_info=ExtraInfo(
            split=split,
            index=index,
            id=environment.id,
            tools_kwargs={name: {"create_kwargs": {**tool.model_dump(), **with_state}} for name, tool in tools.items()},
            tool_selection=list(tools),
            tools=tool_schemas(environment),
            ground_truth=truth,
        ),
    )
