"""BFCL: the files of its harness, and, where it is set up, the package itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from astra_jax.benchmarks.bfcl import drop_lost_results, read_samples
from astra_jax.benchmarks.harnesses import BFCL_HARNESS
from astra_jax.benchmarks.managed_environment import HarnessMissing, managed_environment
from astra_jax.benchmarks.results import BenchmarkFailed, read_results
from astra_jax.cli.command import main
from tests.astra_jax.benchmarks.scripted_endpoint import reply, scripted_endpoint


def test_without_its_environment_it_says_how_to_make_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tmp_path / "bfcl.toml"
    config.write_text(f'out = "{tmp_path}/run"\n')
    assert main(["evaluate", "bfcl", str(config), "--url", "http://127.0.0.1:9"]) == 1
    assert "make it by `astra evaluate setup bfcl`" in capsys.readouterr().err


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


def test_what_the_harness_leaves_is_read_step_by_step(tmp_path):
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
        (None, 0, "one file of scores of base"),
        ({"correct_count": 1, "total_count": 2}, 0, "found 1 right of 2"),  # a case too many
        ({}, 0, "found None right of None"),
        ({"correct_count": 1, "total_count": 1}, 1, "multi_turn_base_1"),
    ):
        if header is not None:
            write(score / "BFCL_v4_multi_turn_base_score.json", header)
        with pytest.raises(BenchmarkFailed, match=message):
            read_samples(result, score, set(), [f"multi_turn_base_{asked}"])


def test_lost_and_half_written_results_are_taken_out_of_the_harness_s_way(tmp_path):
    path = tmp_path / "deep" / "x_result.json"
    write(path, line("a", ["x"]), {"id": "b", "result": "Error during inference: Connection error."})
    with path.open("a") as file:
        file.write('{"id": "c", "resu')
    drop_lost_results(tmp_path)
    assert [json.loads(each)["id"] for each in path.read_text().splitlines()] == ["a"]


@pytest.mark.slow
def test_the_official_package_runs_to_its_end(tmp_path, capsys):
    try:
        managed_environment(BFCL_HARNESS)
    except HarnessMissing as missing:
        pytest.skip(f"{missing}")
    config = tmp_path / "bfcl.toml"
    config.write_text(f'out = "{tmp_path}/run"\nrequests_at_once = 2\n')
    names: set[str] = set()

    def script(body):
        names.update(tool["function"]["name"] for tool in body["tools"])
        messages = body["messages"]
        if messages[-1]["role"] == "tool":
            return reply("Done.")
        # A call that no tool has must never be run as Python.
        return reply(None, ("open", json.dumps({"file": str(tmp_path / "pwned"), "mode": "w"})), ("ls", "{}"))

    with scripted_endpoint(script, most_tokens=32768) as endpoint:
        assert main(["evaluate", "bfcl", str(config), "--url", endpoint.url, "--limit", "4"]) == 0
    results = read_results(tmp_path / "run")
    assert len(results.samples) == 4
    assert results.summary.answers["failed_requests"] == 0
    assert results.summary.answers["renamed_calls"] > 0
    assert not (tmp_path / "pwned").exists()
    assert "ls" in names
    assert os.listdir(tmp_path / "run" / "raw" / "score")
