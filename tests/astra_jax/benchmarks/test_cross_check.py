"""Two harnesses beside one another: a join by ids, and evalscope, driven: by a stand-in and, where set up, itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from astra_jax.benchmarks import bfcl, evalscope, managed_environment
from astra_jax.benchmarks.cross_check import cross_check, table
from astra_jax.benchmarks.harnesses import BFCL, EVALSCOPE
from astra_jax.benchmarks.managed_environment import HarnessMissing, ManagedEnvironment
from astra_jax.benchmarks.results import BenchmarkResults, HarnessDocument, RunDocument, Sample, read_results
from astra_jax.benchmarks.scores import sum_up
from astra_jax.cli.command import main
from tests.astra_jax.benchmarks.scripted_endpoint import reply, scripted_endpoint

HERE = Path(__file__).parent


def a_program(folder: Path, name: str) -> None:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "bin" / name
    program.write_text(f"#!{os.path.realpath(sys.executable)}\n{(HERE / f'stand_in_{name}.py').read_text()}")
    program.chmod(0o755)
    documents = folder / "lib" / "python3.11" / "site-packages" / "bfcl_eval" / "data" / "multi_turn_func_doc"
    documents.mkdir(parents=True)
    (documents / "files.json").write_text('{"name": "cd"}\n{"name": "ls"}\n')


@pytest.fixture
def environments(tmp_path, monkeypatch):
    """Environments whose programs are stand-ins; return that of evalscope."""
    found = {}
    for harness, program in ((BFCL, "bfcl"), (EVALSCOPE, "evalscope")):
        a_program(tmp_path / program, program)
        document = HarnessDocument(package=harness.package, version="stand-in")
        found[harness.name] = ManagedEnvironment(tmp_path / program, document)
    for module in (bfcl, evalscope, managed_environment):
        monkeypatch.setattr(module, "managed_environment", lambda harness: found[harness.name])
    return found["evalscope"].folder


@pytest.fixture
def bfcl_config(tmp_path):
    path = tmp_path / "bfcl.toml"
    path.write_text(f'out = "{tmp_path}/run"\nrequests_at_once = 1\ncategories = ["base", "miss_func"]\n')
    return path


def evaluate(benchmark: str, config: Path, url: str, *rest: str) -> int:
    return main(["evaluate", benchmark, str(config), "--url", url, "--cross-check", *rest])


def calls_cd_but(*wrong: str):
    """Return what answers: it calls `cd`, but not where it is asked one of these."""

    def script(body):
        return reply(None, ("ls" if body["messages"][-1]["content"] in wrong else "cd", "{}"))

    return script


def test_cases_that_two_harnesses_score_otherwise_are_named(environments, bfcl_config, tmp_path, capsys):
    script = calls_cd_but("multi_turn_base_1", "multi_turn_base_0 turn 0", "multi_turn_miss_func_0")
    with scripted_endpoint(script) as endpoint:
        assert evaluate("bfcl", bfcl_config, endpoint.url, "--limit", "4", "max_tokens=70") == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed[1:5]] == [
        ["cases", "bfcl-eval", "stand-in", "evalscope", "stand-in", "differ"],
        ["base", "2", "50.0", "%", "50.0", "%", "2"],
        ["miss_func", "2", "100.0", "%", "50.0", "%", "1"],
        ["all", "4", "75.0", "%", "50.0", "%", "3"],
    ]
    assert printed[5:] == [
        "differs: multi_turn_base_0: 0 and 1",
        "differs: multi_turn_base_1: 1 and 0",
        "differs: multi_turn_miss_func_0: 1 and 0",
        f"cross-check -> {tmp_path}/run/cross_check/summary.json",
    ]
    # What evalscope writes into its requests is replaced by what the first harness asked for.
    seconds = [body for body in endpoint.bodies if not body["messages"][0]["content"].endswith(("turn 0", "turn 1"))]
    assert [(body["temperature"], body["max_tokens"], body["model"]) for body in seconds] == [(0.6, 70, "scripted")] * 4
    second = read_results(tmp_path / "run" / "cross_check")
    assert second.run.harness.package == "evalscope"
    assert second.samples[0].tool_calls == 1
    assert second.samples[0].prompt_tokens == 10


def test_a_finished_cross_check_is_only_read(environments, bfcl_config, capsys):
    with scripted_endpoint(calls_cd_but()) as endpoint:
        assert evaluate("bfcl", bfcl_config, endpoint.url, "--limit", "2") == 0
        asked = len(endpoint.bodies)
        assert evaluate("bfcl", bfcl_config, endpoint.url, "--limit", "2", "--json") == 0
        assert len(endpoint.bodies) == asked
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["both"], last["differing"], last["second"]["score"]["value"]) == (2, [], 1.0)


def test_a_lost_answer_of_the_second_is_no_score_of_it_and_ends_with_1(environments, bfcl_config, capsys):
    def script(body):
        if body["messages"][-1]["content"] == "multi_turn_base_0":
            return 400, {"error": {"message": "no"}}
        return calls_cd_but()(body)

    with scripted_endpoint(script) as endpoint:
        assert evaluate("bfcl", bfcl_config, endpoint.url, "--limit", "4") == 1
        told = capsys.readouterr()
        assert "only by bfcl-eval stand-in: multi_turn_base_0" in told.out
        assert "found 1 of 4 samples with a lost one (multi_turn_base_0" in told.err
        endpoint.script = calls_cd_but()
        assert evaluate("bfcl", bfcl_config, endpoint.url, "--limit", "4") == 0
    assert "only by" not in capsys.readouterr().out


def test_a_second_harness_that_runs_fewer_cases_has_no_figure(environments, bfcl_config, tmp_path, capsys):
    (environments / "left_out").write_text("multi_turn_miss_func_1")
    with scripted_endpoint(calls_cd_but()) as endpoint:
        assert evaluate("bfcl", bfcl_config, endpoint.url, "--limit", "4") == 1
    assert "expected 4 samples of evalscope" in (told := capsys.readouterr().err)
    assert "multi_turn_miss_func_1" in told
    assert not (tmp_path / "run" / "cross_check" / "summary.json").exists()


def test_without_the_second_harness_nothing_is_run_and_one_line_says_what_to_install(
    environments, bfcl_config, monkeypatch, tmp_path, capsys
):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with scripted_endpoint(calls_cd_but()) as endpoint:
        assert evaluate("bfcl", bfcl_config, endpoint.url, "--limit", "2") == 1
    told = capsys.readouterr().err
    assert "expected the harness evalscope 1.14.1" in told
    assert "make it by `astra evaluate setup evalscope`" in told
    assert told.count("\n") == 1
    assert endpoint.bodies == []
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.fixture
def aime_config(tmp_path):
    lines = [{"ID": f"p{number}", "Problem": f"problem {number}", "Answer": number} for number in (4, 73, 5)]
    (tmp_path / "24.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = tmp_path / "aime.toml"
    path.write_text(
        f'out = "{tmp_path}/run"\nsamples = 2\nmax_tokens = 100\n[problems]\n2024 = "{tmp_path}/24.jsonl"\n'
    )
    return path


def test_problems_that_the_user_brings_are_asked_by_both(environments, aime_config, tmp_path, capsys):
    def script(body):
        asked = body["messages"][0]["content"]
        number = asked.split()[1].removesuffix(".")
        return reply(r"\boxed{73}" if number == "73" else r"\boxed{4}" if asked.endswith("4") else "none")

    with scripted_endpoint(script) as endpoint:
        assert evaluate("aime", aime_config, endpoint.url, "--limit", "2") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "differs: 2024/p4: 0 and 1",
        f"cross-check -> {tmp_path}/run/cross_check/summary.json",
    ]
    second = read_results(tmp_path / "run" / "cross_check")
    assert [(sample.id, sample.trial, sample.score) for sample in second.samples] == [
        ("2024/p4", 0, 1.0),
        ("2024/p4", 1, 1.0),
        ("2024/p73", 0, 1.0),
        ("2024/p73", 1, 1.0),
    ]


def results(scores: dict[str, list[float]], lost: tuple[str, ...] = (), benchmark: str = "bfcl") -> BenchmarkResults:
    counted = ("turns", "steps", "tool_calls", "cut_answers", "empty_answers", "prompt_tokens", "completion_tokens")
    nothing = dict.fromkeys((*counted, "seconds"), 0)
    samples = [
        Sample(
            id=id_,
            category="base",
            trial=trial,
            score=score,
            passed=score == 1,
            failure="transport" if id_ in lost else None if score else "wrong",
            **nothing,
        )
        for id_, of_case in scores.items()
        for trial, score in enumerate(of_case)
    ]
    run = RunDocument(
        benchmark=benchmark,
        harness=HarnessDocument(package="p", version="1"),
        model={"name": "m", "digest": None, "max_model_len": None},
        sampling={},
        samples=len(scores),
        of_samples=None,
        trials=1,
        seed=0,
        made_with={},
    )
    return BenchmarkResults(run=run, samples=samples, summary=sum_up(samples, requests={}, seed=0))


def test_the_join_is_by_id_in_the_order_of_the_first_and_trials_are_meant():
    first = results({"a": [1, 0], "b": [1, 1], "c": [0, 0], "d": [1, 1]}, lost=("d",))
    second = results({"c": [0], "a": [1], "e": [1], "b": [1]})
    check = cross_check(first, second)
    assert [(case.id, case.first, case.second) for case in check.both] == [("a", 0.5, 1), ("b", 1, 1), ("c", 0, 0)]
    assert [case.id for case in check.differing] == ["a"]
    assert (check.only_first, check.only_second) == ((), ("e",))
    assert table(check).splitlines()[1:] == [
        "base      3  50.0 %  66.7 %       1",
        "differs: a: 0.5 and 1",
        "only by p 1: e",
    ]


def test_two_benchmarks_are_not_joined():
    with pytest.raises(ValueError, match="expected two runs of bfcl"):
        cross_check(results({"a": [1]}), results({"a": [1]}, benchmark="aime"))


@pytest.mark.slow
def test_evalscope_itself_runs_to_its_end(tmp_path, capsys):
    """Where both are set up: `astra evaluate setup bfcl`, `astra evaluate setup evalscope`."""
    try:
        for harness in (BFCL, EVALSCOPE):
            managed_environment.managed_environment(harness)
    except HarnessMissing as missing:
        pytest.skip(str(missing))
    path = tmp_path / "bfcl.toml"
    path.write_text(f'out = "{tmp_path}/run"\n')

    def script(body):
        is_asked = body["messages"][-1]["role"] == "user"
        return reply(None, ("ls", '{"a": true}')) if is_asked else reply("Done.")

    with scripted_endpoint(script, most_tokens=10**6) as endpoint:
        assert evaluate("bfcl", path, endpoint.url, "--limit", "4") == 0
    told = capsys.readouterr().out
    assert "differ" in told
    second = read_results(tmp_path / "run" / "cross_check")
    assert [sample.id for sample in second.samples] == [
        f"multi_turn_{category}_0" for category in ("base", "miss_func", "miss_param", "long_context")
    ]
    assert sum(second.summary.failures[cause] for cause in ("transport", "empty", "cut")) == 0
    assert {sample.tool_calls > 0 for sample in second.samples} == {True}
