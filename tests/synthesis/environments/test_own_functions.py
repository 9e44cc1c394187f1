"""A user's functions and questions become environments by the proofs that a teacher's tools must pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synthesis.environments.own_functions import environments_of_functions, read_functions
from synthesis.environments.verification import verify_environments
from synthesis.errors import InputUnusable
from synthesis.record_io import RecordSource
from synthesis.records import Environment
from synthesis.stage import NothingKept

FUNCTIONS = '''
TABLES = {"flats": {"Amber Fox": "Oak 4", "Calm Otter": "Elm 9"}, "rents": {"Oak 4": 310, "Elm 9": 265, "Ash 1": 90}}

def find_flat(owner: str) -> str:
    """Find the flat of an owner.

    Args:
        owner: Full name.
    """
    return TABLES["flats"][owner]

def get_rent(flat: str, months: int = 1) -> int:
    """Get the rent of a flat."""
    return TABLES["rents"][flat] * months

def _helper() -> None: ...

def get_height(flat: str) -> int:
    """Get the height of a flat."""
    return {"Oak 4": 12, "Elm 9": 30}[flat]
'''
FIND = {"question": "Which flat has Amber Fox?", "call": "find_flat", "arguments": {"owner": "Amber Fox"}}
RENT = {"question": "What is the rent of Oak 4?", "call": "get_rent", "arguments": {"flat": "Oak 4"}}
OTHER = {"question": "What is the rent of Elm 9?", "call": "get_rent", "arguments": {"flat": "Elm 9"}}


@pytest.fixture
def files(tmp_path: Path):
    def write(*questions: object, functions: str = FUNCTIONS) -> tuple[Path, Path, Path]:
        (tmp_path / "functions.py").write_text(functions)
        (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(each)}\n\n" for each in questions))
        return tmp_path / "functions.py", tmp_path / "questions.jsonl", tmp_path / "out"

    return write


async def test_the_replies_are_the_answers_and_the_records_verify(files, sandbox_url):
    rent = {"question": "What is the rent of Amber Fox's flat?", "steps": [FIND, RENT]}
    both = {"question": "What do Oak 4 and Elm 9 cost?", "operation": "sum", "steps": [RENT, OTHER]}
    paths = files(rent, both)
    report = await environments_of_functions(*paths, sandbox_url)
    assert (report.kept, report.rejected) == (2, {})
    first, second = RecordSource(paths[2], Environment)
    assert (first.answer, first.scenario, first.hops) == (310, "multi_hop", 2)
    assert [task.depends_on for task in first.sub_questions] == [(), ("q1",)]
    assert (second.answer, second.scenario) == (575, "parallel_single_hop")
    assert [each.tool.document.name for each in second.irrelevant_tools] == ["find_flat"]
    assert "Amber Fox" not in first.tools[0].source, "data stand in the tables alone"
    verified = await verify_environments(paths[2], sandbox_url)
    assert (verified.read, verified.failures) == (2, [])


async def test_a_question_without_a_proof_is_counted_with_its_reason(files, sandbox_url):
    unknown = {**RENT, "arguments": {"flat": "Oak 5"}}
    height = {"question": "How high is Oak 4?", "call": "get_height", "arguments": {"flat": "Oak 4"}}
    lines = [{"question": "What is the rent?", "steps": [step]} for step in (RENT, unknown, height)]
    report = await environments_of_functions(*files(*lines), sandbox_url)
    assert report.kept == 1
    assert set(report.rejected) == {"call ends in exception", "gold in code"}
    assert any(text.startswith("call ends in exception: question 2: get_rent: ") for text in report.first_rejections)
    with pytest.raises(NothingKept, match="question 1"):
        await environments_of_functions(*files(lines[1]), sandbox_url)


def test_a_function_is_described_by_its_docstring_and_types(files):
    tools = read_functions(files()[0])
    assert list(tools) == ["find_flat", "get_rent", "get_height"]
    document = tools["find_flat"].document
    assert document.description == "Find the flat of an owner."
    assert document.parameters["properties"] == {"owner": {"type": "string", "description": "Full name."}}
    assert tools["get_rent"].document.parameters["required"] == ["flat"]


@pytest.mark.parametrize(
    ("functions", "line", "words"),
    [
        ("def f(a: str): return a", {}, "f has no docstring"),
        ("import nothing_like_this", {}, "cannot be run: ModuleNotFoundError"),
        ("TABLES = {'a': {1}}", {}, "not JSON serializable"),
        (FUNCTIONS, {"question": "?", "steps": []}, "questions.jsonl:1: steps: "),
        (FUNCTIONS, {"question": "?", "steps": [{**RENT, "call": "rent"}]}, "calls rent; "),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_in_one_line(files, functions, line, words):
    with pytest.raises(InputUnusable, match=words) as raised:
        await environments_of_functions(*files(line, functions=functions), "http://127.0.0.1:9")
    assert "\n" not in str(raised.value)
