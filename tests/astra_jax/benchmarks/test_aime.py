"""AIME: answers in boxes, and files of problems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_jax.benchmarks.aime import answer_of, boxed, read_problems
from astra_jax.benchmarks.results import BenchmarkFailed
from tests.time_limit import at_most


@given(st.lists(st.sampled_from(["\\boxed{", "\\boxed", "{", "}", "1"]), max_size=20).map("".join))
def test_a_box_is_read_as_by_counting_braces_from_each_of_them(text):
    expected = None
    for start in range(len(text)):
        if text.startswith("\\boxed{", start):
            depths = [
                text.count("{", start, end) - text.count("}", start, end) for end in range(start + 8, len(text) + 1)
            ]
            expected = text[start + 7 : start + 7 + depths.index(0)] if 0 in depths else expected
    assert boxed(text) == expected


def test_boxes_without_end_are_read_in_time_that_grows_with_them():
    with at_most(20):
        assert boxed("\\boxed{" * 100_000) is None


@given(
    number=st.integers(0, 999),
    width=st.integers(1, 5),
    around=st.sampled_from(["{}", " {} ", "${}$", r"{}^\circ", r"{}^{{\circ}}", "x={}", r"\,{}", r"{} \text{{ cm}}"]),
    before=st.text(alphabet="ab{ }\\", max_size=20),
)
def test_the_last_box_is_read_however_it_is_written(number, width, around, before):
    inner = around.format(str(number).zfill(width))
    assert answer_of(rf"{before} \boxed{{1}} so \boxed{{{inner}}}. Done.") == number


@pytest.mark.parametrize(
    "text",
    [r"\boxed{1/2}", r"\boxed{1000}", r"\boxed{-3}", r"\boxed{}", "7", r"\boxed{7", r"\boxed{1e2}", r"\boxed{12.0}"],
)
def test_only_a_whole_number_in_a_box_is_an_answer(text):
    assert answer_of(text) is None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "is empty; write each problem as"),
        ('{"id": 1, "problem": "x", "answer": 1000}', r"line 1 of .*: answer: "),
        ('{"id": 1, "problem": "x", "answer": "12a"}', r"line 1 of .*: answer: "),
        ('{"id": 1, "problem": "x", "answer": true}', r"line 1 of .*: answer: "),
        ('{"id": 1, "answer": 1}', r"line 1 of .*: problem: "),
        ('{"id": 1, "problem": "x", "answer": 1}\nno', "line 2 of "),
        (
            '{"id": 1, "problem": "x", "answer": 1}\n{"id": "1", "problem": "y", "answer": 1}',
            "two problems in .* have the id '1'",
        ),
    ],
)
def test_a_file_that_holds_no_problems_is_refused(tmp_path, lines, message):
    path = tmp_path / "problems.jsonl"
    path.write_text(lines)
    with pytest.raises(BenchmarkFailed, match=message):
        read_problems(path)
    with pytest.raises(BenchmarkFailed, match="bring the problems"):
        read_problems(tmp_path / "missing.jsonl")
