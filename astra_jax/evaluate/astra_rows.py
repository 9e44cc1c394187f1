"""Rows of ASTRA's published RL data, read as environments that attacks can act in.

A row has a prompt, the tools' schemas and modules, and the sub-answers as text under the tools that return them. It
names no gold call, so there is no gold policy; tools without a sub-answer are taken for distractors.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from astra_jax.errors import UsageError
from synthesis.records import (
    Environment,
    EnvironmentTool,
    IrrelevantTool,
    Provenance,
    QualityScore,
    SubQuestion,
    ToolCall,
    ToolDocument,
)

_CHINESE: Final = re.compile("[\u4e00-\u9fff]")
_QUOTED: Final = re.compile(r'"([^"\\]{2,60})"')

_AS_TEXT: Final = """
_value_of = {name}
def {name}(**arguments):
    value = _value_of(**arguments)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
"""
"""Code behind a tool's module: sub-answers of a row are texts, so a tool returns text."""


def read_astra_rows(path: Path) -> list[Environment]:
    """Read a file of JSON lines with the columns `prompt`, `tool_schema`, `tool_dict` and `sub_qa_dict`.

    Raises:
        UsageError: a line is no such row; the message names it.
        OSError: the file cannot be read.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            found.append(_environment(json.loads(line), number))
        except (ValidationError, ValueError, KeyError, TypeError, SyntaxError) as error:
            raise UsageError(
                f"line {number} of {path} is no row of ASTRA's data: {error!r}; name another file"
            ) from error
    return found


def _environment(row: dict[str, Any], number: int) -> Environment:
    question, *_ = [message["content"] for message in row["prompt"] if message["role"] == "user"]
    sources, answers = json.loads(row["tool_dict"]), json.loads(row["sub_qa_dict"])
    functions = [each["function"] for each in json.loads(row["tool_schema"])]
    tools = {
        each["name"]: EnvironmentTool(
            document=ToolDocument(**each), source=sources[each["name"]] + _AS_TEXT.format(name=each["name"])
        )
        for each in functions
    }
    sub_questions = tuple(
        SubQuestion(id=f"{name}_{k}", question="", answer=answer, call=ToolCall(id="", name=name, arguments={}))
        for name, texts in answers.items()
        for k, answer in enumerate(texts)
    )
    names = {name for source in sources.values() for name in _texts_of(source)}
    return Environment(
        id=f"row-{number}",
        domain="unknown",
        language="zh" if _CHINESE.search(question) else "en",
        scenario="single_hop",
        hops=1,
        question=question,
        answer=sub_questions[-1].answer,
        sub_questions=sub_questions,
        tools=tuple(tool for name, tool in tools.items() if name in answers),
        irrelevant_tools=tuple(
            IrrelevantTool(tool=tool, band="low", similarity=0.0) for name, tool in tools.items() if name not in answers
        ),
        quality=QualityScore(dependency_consistency=0, atomicity=0, sequential_rationality=0, task_completeness=0),
        entities=tuple(sorted(name for name in names if name in question)),
        provenance=Provenance(teacher="foreign", prompt_version="none", seed=0),
    )


def _texts_of(source: str) -> set[str]:
    """Return the texts in a module, those inside JSON texts too: the names that its data know are among them."""
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    written = [text for text in texts if isinstance(text, str)]
    return {each for text in written for each in (text, *_QUOTED.findall(text)) if 2 <= len(each) <= 60}
