"""Environments as rows of RL data for verl, TRL and ASTRA.

A row of the first two has the tools as the sandbox client takes them, and the values that a reward counts. Both are
JSON text, or tables of text, so that no type changes on the way. verl has five columns of its own, `agent_name` for its
tool-calling loop, and `extra_info` with the arguments of `create` of each tool; it knows tools by name for a whole run,
so a name with several documents in a set needs a choice. TRL passes the columns of a row by name to the environment's
`reset` and to reward functions.

ASTRA's published data has four columns: `prompt` is a list of messages, the others are texts of JSON: `tool_schema` a
list in OpenAI's form, `tool_dict` tool name to module text, `sub_qa_dict` tool name to the texts of its sub-answers.
These cannot say which call finds a sub-answer, the dependencies, the distractors, or the type of an answer; that stands
in a fifth one, `environment`.

Decided: docs/decisions/synthesis.md, “The published RL format is four columns, and a fifth holds the rest of the
record”.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field

from synthesis.export.openai_rows import Row
from synthesis.records import Environment, EnvironmentTool, JsonObject, JsonValue, SubQuestion


def sorted_tools(environment: Environment) -> list[EnvironmentTool]:
    """Return the tools of an environment and the distractors by name, so that its own tools do not stand out."""
    return sorted(environment.all_tools, key=lambda tool: tool.document.name)


def sandbox_tools(environment: Environment) -> dict[str, dict[str, str]]:
    """Return by name the arguments of `sandbox.client.SandboxClient.execute` that name a tool: source and function."""
    return {
        tool.document.name: {"source": tool.module_source(), "function": tool.document.name}
        for tool in sorted_tools(environment)
    }


def tool_schemas(environment: Environment) -> str:
    """Return the JSON text of the tools in OpenAI's form."""
    return _text([tool.document.to_openai() for tool in sorted_tools(environment)])


def ground_truth(environment: Environment) -> str:
    """Return the JSON text of the values that the F1 reward counts.

    `sub_tasks` are solved each by one call of its `tool` that returns `answer`; the episode is to end as `expectation`
    says, with `final_state` unless that is null; `answer` is the whole question's. Four keys are there only if they
    are needed: `path` leads to the answer in a tool's reply, by keys and list indices; `aliases` are further texts that
    mean the answer beside them; `user_reply` is the user's answer to the first message that asks back, and the episode
    goes on; and `state_conditions` hold of the last state, too. Of a state with `sql`, only its `queries` are compared:
    there the paths of the conditions begin.
    """
    truth = {
        "sub_tasks": [
            {"tool": sub_task.call.name, "answer": sub_task.answer, **_path(sub_task), **_aliases(sub_task)}
            for sub_task in environment.sub_tasks
            if sub_task.call is not None
        ],
        "answer": environment.answer,
        **_aliases(environment),
        "expectation": environment.expectation,
        "missing": environment.missing,
        "final_state": environment.final_state,
    }
    if environment.user_reply is not None:
        truth["user_reply"] = environment.user_reply
    if environment.state_conditions:
        truth["state_conditions"] = [condition.model_dump(mode="json") for condition in environment.state_conditions]
    return _text(truth)


def _path(sub_task: SubQuestion) -> JsonObject:
    return {"path": list(sub_task.path)} if sub_task.path else {}


def _aliases(asked: SubQuestion | Environment) -> JsonObject:
    return {"aliases": list(asked.aliases)} if asked.aliases else {}


def initial_state(environment: Environment) -> str | None:
    """Return the JSON text of the state that an episode begins with, if the tools have one."""
    return None if environment.state is None else _text(environment.state)


class PromptMessage(Row):
    """A message of the prompt."""

    role: Literal["user"] = "user"
    content: str


class RewardModel(Row):
    """Values that a reward function compares with."""

    style: Literal["rule"] = "rule"
    ground_truth: str


class ExtraInfo(Row):
    """Values that tools and reward need beside the prompt."""

    split: str
    index: int
    id: str
    """Id of the environment."""
    need_tools_kwargs: bool = True
    tools_kwargs: JsonObject
    """Tool name to `create_kwargs`: `source` and `function` as the sandbox client takes them, and the JSON text of a
    `state`."""
    tool_selection: list[str]
    """Names of the offered tools."""
    tools: str
    """JSON text of the tools' schemas, in OpenAI's form."""
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
            tools_kwargs={name: {"create_kwargs": {**tool, **with_state}} for name, tool in tools.items()},
            tool_selection=list(tools),
            tools=tool_schemas(environment),
            ground_truth=truth,
        ),
    )


class TrlRow(Row):
    """A prompt, its tools and its reward."""

    prompt: list[PromptMessage] = Field(min_length=1)
    tools: str
    """JSON text of the tools' schemas, in OpenAI's form."""
    id: str
    """Id of the environment."""
    sandbox_tools: str
    """JSON text of tool name to `source` and `function`, as the sandbox client takes them."""
    state: str | None
    """JSON text of the initial state of an episode; null if the tools have none."""
    ground_truth: str


def trl_row(environment: Environment) -> TrlRow:
    """Return the row of an environment."""
    return TrlRow(
        prompt=[PromptMessage(content=environment.question)],
        tools=tool_schemas(environment),
        id=environment.id,
        sandbox_tools=_text(sandbox_tools(environment)),
        state=initial_state(environment),
        ground_truth=ground_truth(environment),
    )


class AstraRow(Row):
    """An environment in ASTRA's columns."""

    prompt: list[PromptMessage]
    tool_schema: str
    tool_dict: str
    sub_qa_dict: str
    environment: str
    """JSON text of the record, without the contents of the other columns."""


def astra_row(environment: Environment) -> AstraRow:
    """Write an environment in ASTRA's columns; its tools stand in order of their names."""
    rest = environment.model_dump(mode="json")
    del rest["question"]
    for tool in (*rest["tools"], *(irrelevant["tool"] for irrelevant in rest["irrelevant_tools"])):
        del tool["source"], tool["document"]["description"], tool["document"]["parameters"]
    answers: dict[str, list[str]] = {}
    for sub_task in environment.sub_tasks:
        assert sub_task.call is not None
        answer = sub_task.answer
        answers.setdefault(sub_task.call.name, []).append(answer if isinstance(answer, str) else _text(answer))
    return AstraRow(
        prompt=[PromptMessage(content=environment.question)],
        tool_schema=tool_schemas(environment),
        tool_dict=_text({tool.document.name: tool.module_source() for tool in sorted_tools(environment)}),
        sub_qa_dict=_text(answers),
        environment=_text(rest),
    )


def _text(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
