"""Environments as rows of TRL's RL data: a conversational prompt, and columns for `reset` and the reward functions.

TRL hands the columns of a row to the environment's `reset` and to reward functions by name.
"""

from __future__ import annotations

import json

from pydantic import Field

from synthesis.export.openai_rows import Row
from synthesis.export.sandbox_tools import ground_truth, initial_state, sandbox_tools, tool_schemas
from synthesis.export.verl_rows import PromptMessage
from synthesis.records import Environment


class TrlRow(Row):
    """A prompt, its tools and its reward."""

    prompt: list[PromptMessage] = Field(min_length=1)
    tools: str
    """The JSON text of the tools' schemas, in OpenAI's form."""
    id: str
    """Of the environment."""
    sandbox_tools: str
    """The JSON text of tool name to `source` and `function`, as the sandbox client takes them."""
    state: str | None
    """The JSON text of the state that an episode begins with; null where the tools have none."""
    ground_truth: str


def trl_row(environment: Environment) -> TrlRow:
    """Return the row of an environment."""
    tools = {name: tool.model_dump() for name, tool in sandbox_tools(environment).items()}
    return TrlRow(
        prompt=[PromptMessage(content=environment.question)],
        tools=tool_schemas(environment),
        id=environment.id,
        sandbox_tools=json.dumps(tools, ensure_ascii=False),
        state=initial_state(environment),
        ground_truth=ground_truth(environment),
    )
