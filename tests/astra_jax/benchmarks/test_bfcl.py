"""BFCL: the files of its harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astra_jax.benchmarks.bfcl import BFCL, BFCLConfig, read_samples
from astra_jax.benchmarks.results import BenchmarkFailed
from astra_jax.config import ConfigError, parse_config


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


def test_a_single_turn_case_is_one_turn_with_one_step(tmp_path):
    counted = {"input_token_count": 9, "output_token_count": 4, "latency": 0.5}
    write(
        tmp_path / "result" / "BFCL_v4_multiple_result.json",
        {"id": "multiple_3", "result": [{"a": "{}"}, {"b": "{}"}], **counted},
        {"id": "multiple_5", "result": "No tool fits.", **counted},
        {"id": "multiple_7", "result": "Error during inference: gone"},
    )
    wrong = {"valid": False, "error": ["..."], "error_type": "ast_decoder:decoder_failed"}
    write(
        tmp_path / "score" / "BFCL_v4_multiple_score.json",
        {"correct_count": 1, "total_count": 3},
        *({"id": f"multiple_{case}", **wrong} for case in (5, 7)),
    )
    write(tmp_path / "score" / "BFCL_v4_parallel_multiple_score.json", {})  # another category
    asked = ["multiple_3", "multiple_5", "multiple_7"]
    right, text, lost = read_samples(tmp_path / "result", tmp_path / "score", set(), asked)
    assert (right.passed, right.turns, right.steps, right.tool_calls, right.prompt_tokens) == (True, 1, 1, 2, 9)
    assert (text.failure, text.detail, text.category) == ("wrong", "ast_decoder:decoder_failed", "multiple")
    assert lost.failure == "transport"


def test_a_subset_is_drawn_by_the_seed_and_kinds_of_categories_are_not_mixed():
    def cases(limit=None, **keys):
        return BFCL(parse_config(BFCLConfig, {"out": "o", **keys}, where="c"), limit).cases

    some = {"categories": ["simple_python", "irrelevance"], "subset": {"simple_python": 3}}
    drawn = cases(**some)
    assert (len(drawn["simple_python"]), len(drawn["irrelevance"])) == (3, 240)
    assert drawn == cases(**some) != cases(**some, seed=1)
    assert cases(4, **some) == {name: ids[:2] for name, ids in drawn.items()}
    assert cases(4)["multi_turn_base"] == ["multi_turn_base_0"]
    for bad in ({"categories": ["base", "multiple"]}, {"subset": {"multiple": 1}}, {"subset": {"base": 201}}):
        with pytest.raises(ConfigError):
            cases(**bad)
