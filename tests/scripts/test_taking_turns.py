"""The harness of the side-by-side benchmarks, over systems that only sleep or compute."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

BENCHMARK = """
import time
from taking_turns import compare

def ours():
    return lambda: time.sleep(0.05)

def chatty():
    def run():
        print("a line that is no answer")
        time.sleep(0.15)
    return run

def dying():
    return lambda: 1 / 0

systems = {"ours": ours, "chatty": chatty, "dying": dying}
compare("a benchmark", systems, work="sleep", tokens=10, against=["chatty"], rounds=2)
"""


@pytest.fixture
def benchmark(tmp_path):
    script = tmp_path / "bench.py"
    script.write_text(BENCHMARK)

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
        command = [sys.executable, str(script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    return run


def test_a_system_that_prints_is_still_measured_and_one_json_line_comes_out(benchmark):
    done = benchmark()
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["work"] == "sleep"
    assert report["chatty"]["median_seconds"] >= 0.15
    assert report["ratio"]["chatty"]["wall"] == pytest.approx(
        report["chatty"]["median_seconds"] / report["ours"]["median_seconds"]
    )
    assert report["ratio"]["chatty"]["cpu"] > 0


def test_a_system_runs_under_the_interpreter_it_is_given(benchmark, tmp_path):
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\ntouch "{tmp_path}/used"\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    assert benchmark("--rounds", "1", "--python", f"chatty={interpreter}").returncode == 0
    assert (tmp_path / "used").exists()


def test_a_system_that_dies_ends_the_benchmark_with_its_name(benchmark):
    done = benchmark("--against", "dying")
    assert done.returncode == 1
    assert "dying: expected the figures of a turn, found that it ended (exit 1)" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--python", "chatty=/no/such/python"], "expected SYSTEM=PATH"),
        (["--python", "nobody=/bin/sh"], "expected SYSTEM=PATH"),
        (["--rounds", "0"], "must be at least 1, found 0"),
    ],
)
def test_bad_arguments_end_in_one_clear_line(benchmark, arguments, message):
    done = benchmark(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
