"""Rows of ASTRA's published RL data, read as environments that attacks can act in.

A row has a prompt, the tools' schemas and modules, and the sub-answers as text under the tools that return them. It
names no gold call, so there is no gold policy; tools without a sub-answer are taken for distractors.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, Json, ValidationError

from astra_jax.errors import UsageError, first_fault
from synthesis.records import Environment, JsonObject

_QUOTED: Final = re.compile(r'"([^"\\]{2,60})"')
_AS_TEXT: Final = """
_value_of = {name}
def {name}(**arguments):
    value = _value_of(**arguments)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
"""
"""Code behind a tool's module: sub-answers of a row are texts, so a tool returns text."""


class _Row(BaseModel):
    prompt: list[dict[str, Any]]
    tool_schema: Json[list[dict[str, Any]]]
    tool_dict: Json[dict[str, str]]
    sub_qa_dict: Json[Annotated[dict[str, Annotated[list[str], Field(min_length=1)]], Field(min_length=1)]]


def read_astra_rows(path: Path) -> list[Environment]:
    """Read JSON lines with the columns `prompt`, `tool_schema`, `tool_dict` and `sub_qa_dict`.

    Raises:
        UsageError: a line is no such row; the message names it.
        OSError: the file cannot be read.
    """
    found = []
    # `splitlines` also cuts at U+2028, inside of a text.
    for number, line in enumerate(path.read_bytes().removesuffix(b"\n").split(b"\n"), start=1):
        try:
            found.append(Environment.model_validate(_fields(_Row.model_validate_json(line), f"row-{number}")))
        except (ValueError, KeyError, TypeError, SyntaxError) as error:
            fault = first_fault(error) if isinstance(error, ValidationError) else repr(error)
            raise UsageError(f"line {number} of {path} is no row of ASTRA's data: {fault}; name another file") from None
    return found


def _fields(row: _Row, name: str) -> JsonObject:
    question, *_ = [message["content"] for message in row.prompt if message["role"] == "user"]
    sources, answers = row.tool_dict, row.sub_qa_dict
    documents = {each["function"]["name"]: each["function"] for each in row.tool_schema}
    tools = {
        tool: {"document": document, "source": sources[tool] + _AS_TEXT.format(name=tool)}
        for tool, document in documents.items()
    }
    asked = [
        {"id": f"{tool}_{k}", "question": "", "answer": text, "call": {"id": "", "name": tool, "arguments": {}}}
        for tool, texts in answers.items()
        for k, text in enumerate(texts)
    ]
    others = [{"tool": each, "band": "low", "similarity": 0} for tool, each in tools.items() if tool not in answers]
    # The names that the tools know are among the texts of their modules, or inside JSON texts there.
    constants = [
        node.value for text in sources.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
    ]
    texts = [text for text in constants if isinstance(text, str)]
    known = {each for text in texts for each in (text, *_QUOTED.findall(text)) if 2 <= len(each) <= 60}
    indicators = ("dependency_consistency", "atomicity", "sequential_rationality", "task_completeness")
    return {
        "id": name,
        "domain": "unknown",
        "language": "en" if question.isascii() else "zh",
        "question": question,
        "scenario": "single_hop",
        "hops": 1,
        "answer": asked[-1]["answer"],
        "sub_questions": asked,
        "tools": [tools[tool] for tool in answers],
        "irrelevant_tools": others,
        "entities": sorted(each for each in known if each in question),
        "quality": dict.fromkeys(indicators, 0),
        "provenance": {"teacher": "foreign", "prompt_version": "none", "seed": 0},
    }
