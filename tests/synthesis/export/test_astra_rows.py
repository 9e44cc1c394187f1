"""Environments in ASTRA's columns: those columns are of its form, and reading them gives the same environments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synthesis.export.astra_rows import AstraRow, RowUnreadable, astra_row, environment_of, read_astra_rows
from synthesis.records import Environment
from tests.synthesis.export.examples import environments

MIXED = next(record for record in environments() if record.id == "mixed")


@pytest.mark.parametrize("environment", environments(), ids=lambda record: record.id)
def test_an_environment_that_was_written_and_read_is_equal_and_has_its_digest(environment: Environment) -> None:
    text = astra_row(environment).model_dump_json()
    read = environment_of(AstraRow.model_validate_json(text))
    assert read == environment
    assert read.computed_digest() == environment.digest


def test_the_four_published_columns_have_the_published_form() -> None:
    digits = next(record for record in environments() if record.id == "digits")
    row = astra_row(digits).model_dump()
    assert row["prompt"] == [{"role": "user", "content": digits.question}]
    assert json.loads(row["tool_schema"]) == [tool.document.to_openai() for tool in digits.tools]
    modules = json.loads(row["tool_dict"])
    assert list(modules) == ["find_flat", "get_rent"]
    namespace: dict[str, Any] = {}
    exec(modules["find_flat"], namespace)
    assert namespace["find_flat"](owner="Zinc Owl") == "0042"
    # Sub-answers are texts in the published rows, a number as well.
    assert json.loads(row["sub_qa_dict"]) == {"find_flat": ["0042"], "get_rent": ["7"]}


def test_the_order_of_the_tools_does_not_say_which_are_distractors() -> None:
    assert list(json.loads(astra_row(MIXED).tool_dict)) == ["a_flat", "find_flat", "get_rent"]


def changed(column: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, column: json.dumps(change(json.loads(row[column])))}


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a published row": (
        lambda row: {key: value for key, value in row.items() if key != "environment"},
        "the row has no column environment; the four published columns lack parts of a record",
    ),
    "no object": (lambda row: [], "expected a row of ASTRA's columns"),
    "another column": (lambda row: {**row, "more": 1}, "found more wrong"),
    "a prompt of text": (lambda row: {**row, "prompt": "?"}, "found prompt wrong"),
    "no prompt": (lambda row: {**row, "prompt": []}, "list index out of range|prompt"),
    "no JSON inside": (lambda row: {**row, "tool_dict": "{"}, "expected JSON"),
    "a tool without code": (changed("tool_dict", lambda tools: {}), "expected the tool 'find_flat' in"),
    "another tool": (changed("tool_dict", lambda tools: {**tools, "more": ""}), r"found \['more'\]"),
    "another answer": (changed("sub_qa_dict", lambda answers: {**answers, "get_rent": ["1"]}), "in sub_qa_dict"),
    "other tables": (
        changed("tool_dict", lambda tools: {name: text.replace("Heron", "Crow") for name, text in tools.items()}),
        "expected the module of 'find_flat' to begin with its TABLES",
    ),
    "no schema": (changed("tool_schema", lambda schemas: [{}]), "expected the key 'function', found none"),
}


@pytest.mark.parametrize(("spoil", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_row_that_cannot_be_read_is_named_by_its_line(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], Any], message: str
) -> None:
    file = tmp_path / "rows.jsonl"
    row = astra_row(environments()[0]).model_dump()
    file.write_text(f"{json.dumps(row)}\n{json.dumps(spoil(row))}\n")
    with pytest.raises(RowUnreadable, match=message) as raised:
        list(read_astra_rows(file))
    assert str(raised.value).startswith(f"{file}, line 2: ")
    assert "\n" not in str(raised.value)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xff\xfe\n")
    with pytest.raises(RowUnreadable, match="line 1: "):
        list(read_astra_rows(file))
