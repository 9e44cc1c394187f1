"""Environments in the columns of ASTRA's published RL data, and back.

`prompt` is a list of messages, the other three are texts of JSON: `tool_schema` a list in OpenAI's form, `tool_dict`
tool name to module text, `sub_qa_dict` tool name to the texts of its sub-answers. These four cannot say which call
finds a sub-answer, the dependencies, the distractors, or the type of an answer; that stands in a fifth column,
`environment`, without which a row cannot be read back.

Decided: docs/decisions/synthesis.md, “The published RL format is four columns, and a fifth holds the rest of the
record”.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from synthesis.errors import SynthesisError
from synthesis.export.openai_rows import Row
from synthesis.export.rl_rows import PromptMessage, sorted_tools, tool_schemas
from synthesis.records import Environment, JsonObject, JsonValue


class RowUnreadable(SynthesisError):
    """A line of a file is not the row that was expected; the message says file, line, expected and found."""


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
    for tool in _tools_of(rest):
        del tool["source"], tool["document"]["description"], tool["document"]["parameters"]
    return AstraRow(
        prompt=[PromptMessage(content=environment.question)],
        tool_schema=tool_schemas(environment),
        tool_dict=_text({tool.document.name: tool.module_source() for tool in sorted_tools(environment)}),
        sub_qa_dict=_text(_sub_answers(environment)),
        environment=_text(rest),
    )


def environment_of(row: AstraRow) -> Environment:
    """Read an environment back: equal to the one that was written, its digest included.

    Question, documents and code come from the four columns, even if they were changed; the rest from the fifth.

    Raises:
        ValueError: the columns are no JSON of their form, or contradict one another.
    """
    rest = json.loads(row.environment)
    schemas = {entry["function"]["name"]: entry["function"] for entry in json.loads(row.tool_schema)}
    modules = json.loads(row.tool_dict)
    for tool in _tools_of(rest):
        document = tool["document"]
        name = document["name"]
        if name not in schemas or name not in modules:
            raise ValueError(f"expected the tool {name!r} in tool_schema and in tool_dict, found it missing")
        document |= {key: schemas[name][key] for key in ("description", "parameters")}
        tool["source"] = modules[name]  # its head, which the tables make, is taken off below
    if extra := sorted((set(schemas) | set(modules)) - {tool["document"]["name"] for tool in _tools_of(rest)}):
        raise ValueError(f"expected no tools but those of the column environment, found {extra}")
    environment = _without_heads(Environment.model_validate({**rest, "question": row.prompt[0].content}))
    if _sub_answers(environment) != json.loads(row.sub_qa_dict):
        raise ValueError("expected the sub-answers of the column environment in sub_qa_dict, found others")
    return environment


def read_astra_rows(path: Path) -> Iterator[Environment]:
    """Read the environments of a file of rows, one on each line.

    Raises:
        RowUnreadable: a line is no row of these columns.
        OSError: the file cannot be read.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                columns = json.loads(line)
                if isinstance(columns, dict) and "environment" not in columns and "sub_qa_dict" in columns:
                    raise ValueError(
                        "the row has no column environment; the four published columns lack parts of a record: "
                        "each sub-question in words with its gold call and dependencies, the answer, domain, language, "
                        "scenario and quality; export with --format astra writes rows that have them"
                    )
                yield environment_of(AstraRow.model_validate(columns))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise RowUnreadable(f"{path}, line {number}: {_one_line(error)}") from error


def _tools_of(rest: JsonObject) -> list[JsonObject]:
    return [*rest["tools"], *(irrelevant["tool"] for irrelevant in rest["irrelevant_tools"])]


def _without_heads(environment: Environment) -> Environment:
    def without_head(tool: Any) -> Any:
        head = tool.model_copy(update={"source": ""}).module_source()
        if not tool.source.startswith(head):
            raise ValueError(f"expected the module of {tool.document.name!r} to begin with its TABLES, found another")
        return tool.model_copy(update={"source": tool.source.removeprefix(head)})

    return environment.model_copy(
        update={
            "tools": tuple(without_head(tool) for tool in environment.tools),
            "irrelevant_tools": tuple(
                irrelevant.model_copy(update={"tool": without_head(irrelevant.tool)})
                for irrelevant in environment.irrelevant_tools
            ),
        }
    )


def _sub_answers(environment: Environment) -> dict[str, list[str]]:
    answers: dict[str, list[str]] = {}
    for sub_task in environment.sub_tasks:
        assert sub_task.call is not None
        is_text = isinstance(sub_task.answer, str)
        answers.setdefault(sub_task.call.name, []).append(sub_task.answer if is_text else _text(sub_task.answer))
    return answers


def _text(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"expected a row of ASTRA's columns, found {place or 'it'} wrong: {first['msg']}"
    if isinstance(error, json.JSONDecodeError):
        return f"expected JSON, found text that is none ({error.msg})"
    if isinstance(error, KeyError):
        return f"expected the key {error}, found none"
    return " ".join(str(error).split())
