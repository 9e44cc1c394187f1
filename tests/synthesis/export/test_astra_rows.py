"""Environments in ASTRA's columns, which have the published form; a fifth column holds the rest of the record."""

from __future__ import annotations

import json
from typing import Any

from synthesis.export.astra_rows import astra_row
from tests.synthesis.export.examples import environments

MIXED = next(record for record in environments() if record.id == "mixed")


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
    rest = json.loads(row["environment"])
    whole = digits.model_dump(mode="json")
    assert rest["sub_questions"] == whole["sub_questions"]
    assert whole.keys() - rest.keys() == {"question"}
    assert whole["tools"][0].keys() - rest["tools"][0].keys() == {"source"}


def test_the_order_of_the_tools_does_not_say_which_are_distractors() -> None:
    assert list(json.loads(astra_row(MIXED).tool_dict)) == ["a_flat", "find_flat", "get_rent"]
