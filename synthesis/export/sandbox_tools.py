"""What other RL needs of an environment: how the sandbox client runs its tools, and what a reward counts.

Both are texts of JSON, or tables of texts, in the rows: their types cannot change on the way.
"""

from __future__ import annotations

import json

from synthesis.export.openai_rows import Row
from synthesis.records import Environment, EnvironmentTool, JsonObject, SubQuestion


class SandboxTool(Row):
    """A tool as `sandbox.client.SandboxClient.execute` takes it, without the arguments of a call."""

    source: str
    function: str


def sandbox_tools(environment: Environment) -> dict[str, SandboxTool]:
    """Return the tools of an environment by name, in order of their names: which are its own does not show."""
    return {tool.document.name: _sandbox_tool(tool) for tool in sorted_tools(environment)}


def sorted_tools(environment: Environment) -> list[EnvironmentTool]:
    """Return the environment's own tools and the distractors in order of their names."""
    return sorted(environment.all_tools, key=lambda tool: tool.document.name)


def _sandbox_tool(tool: EnvironmentTool) -> SandboxTool:
    return SandboxTool(source=tool.module_source(), function=tool.document.name)


def tool_schemas(environment: Environment) -> str:
    """Return the JSON text of the tools in OpenAI's form."""
    return json.dumps([tool.document.to_openai() for tool in sorted_tools(environment)], ensure_ascii=False)


def ground_truth(environment: Environment) -> str:
    """Return the JSON text of what the F1 reward counts.

    `sub_tasks` are solved each by one call of its `tool` that returns `answer`; the episode is to end as `expectation`
    says, with `final_state` where one is asked for; `answer` is the whole question's. Where there are any:
    `aliases` are further texts that mean the answer beside them; `user_reply` is what the user says to the first
    message that asks back, and the episode goes on; and `state_conditions` hold of the last state, too.
    """
    truth = {
        "sub_tasks": [
            {
                "tool": sub_task.call.name,
                "answer": sub_task.answer,
                **_aliases(sub_task),
            }
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
    return json.dumps(truth, ensure_ascii=False)


def _aliases(asked: SubQuestion | Environment) -> JsonObject:
    return {"aliases": list(asked.aliases)} if asked.aliases else {}


def initial_state(environment: Environment) -> str | None:
    """Return the JSON text of the state that an episode begins with, if the tools have one."""
    return None if environment.state is None else json.dumps(environment.state, ensure_ascii=False)
