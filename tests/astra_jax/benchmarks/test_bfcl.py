"""BFCL, driven: by a stand-in of its program, written by hand, and, where it is set up, by the package itself."""

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
from synthesis.run.lock import run_lock
from tests.astra_jax.benchmarks.scripted_endpoint import reply, scripted_endpoint
from tests.astra_jax.benchmarks.stand_ins import executable, stand_in_environment

STAND_IN = Path(__file__).with_name("stand_in_bfcl.py")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """An environment whose `bfcl` is the stand-in."""
    folder = stand_in_environment(tmp_path, monkeypatch, "bfcl-eval", "stand-in")
    executable(folder / "bin" / "bfcl", STAND_IN)
    documents = folder / "lib" / "python3.11" / "site-packages" / "bfcl_eval" / "data" / "multi_turn_func_doc"
    documents.mkdir(parents=True)
    (documents / "files.json").write_text('{"name": "cd"}\n{"name": "ls"}\n')
    config = tmp_path / "bfcl.toml"
    config.write_text(f'out = "{tmp_path}/run"\nrequests_at_once = 1\n')
    return config


def evaluate(config: Path, url: str, *rest: str) -> int:
    return main(["evaluate", "bfcl", str(config), "--url", url, *rest])


def good(body):
    return reply(None, ("cd", '{"folder": "a"}'))


def test_cases_of_all_categories_are_scored_and_every_request_is_as_the_harness_made_it(stand_in, tmp_path, capsys):
    with scripted_endpoint(good) as endpoint:
        assert evaluate(stand_in, endpoint.url, "--limit", "8", "top_k=20", "max_tokens=77") == 0
    results = read_results(tmp_path / "run")
    assert [sample.id for sample in results.samples[:3]] == [
        "multi_turn_base_0",
        "multi_turn_base_1",
        "multi_turn_miss_func_0",
    ]
    assert results.summary.score.value == 1
    assert results.summary.by_category["long_context"].count == 2
    assert results.summary.by_category["base"].interval[0] == pytest.approx(0.342, abs=1e-3)  # Wilson's of 2 of 2
    assert results.run.samples == 8
    assert results.run.of_samples == 800
    assert results.run.model.name == "scripted"
    assert len(endpoint.bodies) == 16
    assert endpoint.bodies[0] == {
        "messages": [{"role": "user", "content": "multi_turn_base_0 turn 0"}],
        "model": "scripted",
        "store": False,
        "temperature": 0.6,
        "tools": [{"type": "function", "function": {"name": "cd", "parameters": {}, "response": {}}}],
        "top_k": 20,
        "max_tokens": 77,
    }
    assert "bfcl: 100.0 %" in capsys.readouterr().out


def test_failures_are_told_apart_by_cause_and_stand_in_columns_of_their_own(stand_in, tmp_path, capsys):
    said = {
        "multi_turn_base_0": (500, {"error": {"message": "broken"}}),
        "multi_turn_base_1": reply("", finish="stop"),
        "multi_turn_base_2": reply("no end of wo", finish="length", tokens=(10, 64)),
        "multi_turn_base_3": reply("I shall not."),
        # One that passes in spite of what came later: the answer is counted, the sample did not fail.
        "multi_turn_base_4": reply(None, ("cd", "{}")),
    }

    def script(body):
        case, turn = body["messages"][0]["content"].split(" ")[0], len(body["messages"])
        return reply("", tokens=(20, 1)) if case.endswith("_4") and turn == 2 else said[case]

    with scripted_endpoint(script) as endpoint:
        code = evaluate(stand_in, endpoint.url, "--limit", "5", 'categories=["base"]')
    assert code == 1
    assert "1 of 5 samples lost an answer (multi_turn_base_0" in capsys.readouterr().err
    summary = read_results(tmp_path / "run").summary
    assert summary.failures == {"transport": 1, "cut": 1, "empty": 1, "user": 0, "step_limit": 0, "wrong": 1}
    assert summary.answers == {"all": 8, "cut": 2, "empty": 3, "failed_requests": 1, "renamed_calls": 0}
    assert summary.score.value == pytest.approx(1 / 5)


def test_what_was_lost_is_run_again_and_nothing_else(stand_in, tmp_path):
    broken = {"multi_turn_base_1"}

    def script(body):
        return (500, {}) if body["messages"][0]["content"].split(" ")[0] in broken else good(body)

    with scripted_endpoint(script) as endpoint:
        limited = ("--limit", "3", 'categories=["base"]')
        assert evaluate(stand_in, endpoint.url, *limited) == 1
        broken.clear()
        endpoint.bodies.clear()
        assert evaluate(stand_in, endpoint.url, *limited) == 0
        assert {body["messages"][0]["content"] for body in endpoint.bodies} == {"multi_turn_base_1 turn 0"}
        endpoint.bodies.clear()
        assert evaluate(stand_in, endpoint.url, *limited) == 0  # finished: only read
        assert endpoint.bodies == []
    assert read_results(tmp_path / "run").summary.failures["transport"] == 0


def test_a_run_that_was_killed_in_the_middle_of_a_line_goes_on_where_it_stood(stand_in, tmp_path, capsys):
    with scripted_endpoint(good) as endpoint:
        limited = ("--limit", "4", 'categories=["base"]')
        (tmp_path / "environment" / "die_after").write_text("2")
        assert evaluate(stand_in, endpoint.url, *limited) == 1
        assert "bfcl generate to end well, found exit code 9" in capsys.readouterr().err
        with pytest.raises(BenchmarkFailed, match=r"found no samples\.jsonl"):
            read_results(tmp_path / "run")
        endpoint.bodies.clear()
        (tmp_path / "environment" / "die_after").unlink()
        assert evaluate(stand_in, endpoint.url, *limited) == 0
    asked = {body["messages"][0]["content"].split(" ")[0] for body in endpoint.bodies}
    assert asked == {"multi_turn_base_2", "multi_turn_base_3"}
    assert len(read_results(tmp_path / "run").samples) == 4


def test_a_second_command_in_the_same_folder_is_refused(stand_in, tmp_path, capsys):
    with run_lock(tmp_path / "run" / ".lock"), scripted_endpoint(good) as endpoint:
        assert evaluate(stand_in, endpoint.url, "--limit", "4") == 2
        assert "AnotherRun" in capsys.readouterr().err
        assert endpoint.bodies == []


def test_another_config_is_refused_and_the_run_stays_as_it_was(stand_in, tmp_path, capsys):
    with scripted_endpoint(good) as endpoint:
        assert evaluate(stand_in, endpoint.url, "--limit", "4") == 0
        before = (tmp_path / "run" / "run.json").read_bytes()
        assert evaluate(stand_in, endpoint.url, "--limit", "4", "temperature=1.0") == 2
        assert evaluate(stand_in, endpoint.url, "--limit", "8") == 2
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert "temperature: 0.6 before, 1.0 now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "6"), "expected --limit to be a multiple of the 4 categories"),
        (("--limit", "201", 'categories=["base"]'), "up to 200 cases of each, found 201"),
        (("policy=nowhere",), "found both"),
        (("categories=[]",), "categories"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(stand_in, tmp_path, capsys, arguments, message):
    with scripted_endpoint(good) as endpoint:
        assert evaluate(stand_in, endpoint.url, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_without_its_environment_it_says_how_to_make_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tmp_path / "bfcl.toml"
    config.write_text(f'out = "{tmp_path}/run"\n')
    assert evaluate(config, "http://127.0.0.1:9") == 1
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


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"correct_count": 1, "total_count": 2}, "found 1 right of 2"),  # a case too many
        ({}, "found None right of None"),
    ],
)
def test_scores_that_do_not_count_what_was_run_are_refused(tmp_path, header, message):
    write(tmp_path / "result" / "x_result.json", line("multi_turn_base_0", ["a"]))
    write(tmp_path / "score" / "BFCL_v4_multi_turn_base_score.json", header)
    with pytest.raises(BenchmarkFailed, match=message):
        read_samples(tmp_path / "result", tmp_path / "score", set(), ["multi_turn_base_0"])


def test_a_case_without_a_result_or_without_scores_is_refused(tmp_path):
    write(tmp_path / "result" / "x_result.json", line("multi_turn_base_0", ["a"]))
    with pytest.raises(BenchmarkFailed, match="one file of scores of base"):
        read_samples(tmp_path / "result", tmp_path / "score", set(), ["multi_turn_base_0"])
    write(tmp_path / "score" / "BFCL_v4_multi_turn_base_score.json", {"correct_count": 1, "total_count": 1})
    with pytest.raises(BenchmarkFailed, match="multi_turn_base_1"):
        read_samples(tmp_path / "result", tmp_path / "score", set(), ["multi_turn_base_1"])


def test_lost_and_half_written_results_are_taken_out_of_the_harness_s_way(tmp_path):
    path = tmp_path / "deep" / "x_result.json"
    write(path, line("a", ["x"]), {"id": "b", "result": "Error during inference: Connection error."})
    with path.open("a") as file:
        file.write('{"id": "c", "resu')
    assert drop_lost_results(tmp_path) == 2
    assert [json.loads(each)["id"] for each in path.read_text().splitlines()] == ["a"]
    assert drop_lost_results(tmp_path) == 0


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
        assert evaluate(config, endpoint.url, "--limit", "4") == 0
    results = read_results(tmp_path / "run")
    assert len(results.samples) == 4
    assert results.summary.answers["failed_requests"] == 0
    assert results.summary.answers["renamed_calls"] > 0
    assert not (tmp_path / "pwned").exists()
    assert "ls" in names
    assert os.listdir(tmp_path / "run" / "raw" / "score")
