"""BFCL: the files of its harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astra_jax.benchmarks.bfcl import read_samples
from astra_jax.benchmarks.results import BenchmarkFailed


def write(path: Path, *lines) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def line(case: str, *turns: list, tokens=(10, 5)) -> dict:
    return {
        "id": case,
        "result": list(turns),
        "input_token_count": [[tokens[0]] * len(turn) for turn in turns],
        "output_token_count": [[tokens[1]] * len(turn) for turn in turns],
        "latency": [[0.25] * len(turn) for turn in turns],
    }


def test_the_harness_files_are_read_step_by_step(tmp_path):
    calls = [[{"cd": "{}"}, {"ls": "{}"}], "Done."]
    write(
        tmp_path / "result" / "x_result.json",
        line("multi_turn_miss_func_1", calls, [""], tokens=(7, 64)),
        line("multi_turn_miss_func_0", [[{"ls": "{}"}]] * 21),
    )
    write(
        tmp_path / "score" / "BFCL_v4_multi_turn_miss_func_score.json",
        {"accuracy": 0.5, "correct_count": 1, "total_count": 2},
        {"id": "multi_turn_miss_func_0", "valid": False, "error": {"error_type": "force_terminated"}},
    )
    asked = ["multi_turn_miss_func_0", "multi_turn_miss_func_1"]
    first, second = read_samples(tmp_path / "result", tmp_path / "score", {(7, 64)}, asked)
    assert (first.failure, first.steps, first.turns, first.detail) == ("step_limit", 21, 1, "force_terminated")
    assert (second.passed, second.turns, second.steps, second.tool_calls) == (True, 2, 3, 2)
    assert (second.cut_answers, second.empty_answers, second.prompt_tokens) == (3, 1, 21)
    assert second.seconds == 0.75


def test_a_case_without_a_result_or_without_its_verdict_is_refused(tmp_path):
    result, score = tmp_path / "result", tmp_path / "score"
    write(result / "x_result.json", line("multi_turn_base_0", ["a"]))
    for header, asked, message in (
        (None, 0, "0 files of scores of base lie below .* instead of one"),
        ({"correct_count": 1, "total_count": 2}, 0, "says 1 right of 2"),  # a case too many
        ({}, 0, "says None right of None"),
        ({"correct_count": 1, "total_count": 1}, 1, "multi_turn_base_1"),
    ):
        if header is not None:
            write(score / "BFCL_v4_multi_turn_base_score.json", header)
        with pytest.raises(BenchmarkFailed, match=message):
            read_samples(result, score, set(), [f"multi_turn_base_{asked}"])
