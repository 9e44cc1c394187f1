"""Environments in the columns of ASTRA's published RL data, and a fifth column for the rest of the record.

`prompt` is a list of messages, the other three are texts of JSON: `tool_schema` a list in OpenAI's form, `tool_dict`
tool name to module text, `sub_qa_dict` tool name to the texts of its sub-answers. These four cannot say which call
finds a sub-answer, the dependencies, the distractors, or the type of an answer; that stands in `environment`.

Decided: docs/decisions/synthesis.md, “The published RL format is four columns, and a fifth holds the rest of the
record”.
"""

from __future__ import annotations

import json

from synthesis.export.openai_rows import Row
from synthesis.export.rl_rows import PromptMessage, sorted_tools, tool_schemas
from synthesis.records import Environment, JsonValue


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
