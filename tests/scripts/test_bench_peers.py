"""The turns of the benchmark against peers, over systems that only sleep, and its lean peer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

BENCHMARK = """
import time
from peers.taking_turns import Work, main

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
main("a benchmark", {"sleep": Work("sleep", 10, systems, against=("chatty",), rounds=2)})
"""


@pytest.fixture
def benchmark(tmp_path):
    script = tmp_path / "bench.py"
    script.write_text(BENCHMARK)

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
        command = [sys.executable, str(script), "sleep", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    return run


def test_a_system_that_prints_is_measured_under_its_own_interpreter_and_one_json_line_comes_out(benchmark, tmp_path):
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\ntouch "{tmp_path}/used"\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    done = benchmark("--python", f"chatty={interpreter}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "used").exists()
    report = json.loads(done.stdout)
    assert report["work"] == "sleep"
    assert report["chatty"]["median_seconds"] >= 0.15
    assert report["ratio"]["chatty"]["wall"] == pytest.approx(
        report["chatty"]["median_seconds"] / report["ours"]["median_seconds"]
    )
    assert report["ratio"]["chatty"]["cpu"] > 0


def test_a_system_that_dies_ends_the_benchmark_with_its_name(benchmark):
    done = benchmark("--against", "dying")
    assert done.returncode == 1
    assert "dying ended before its turn was over (exit code 1)" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--python", "chatty=/no/such/python"], "expected SYSTEM=PATH"),
        (["--python", "nobody=/bin/sh"], "expected SYSTEM=PATH"),
        (["--rounds", "0"], "must be at least 1, found 0"),
        (["--against", "nobody"], "expected peers among ['chatty', 'dying'], found ['nobody']"),
    ],
)
def test_bad_arguments_end_in_one_clear_line(benchmark, arguments, message):
    done = benchmark(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_the_lean_peer_computes_the_same_with_its_cache_as_without(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(SCRIPTS)
    from peers.lean import Qwen3
    from peers.qwen3 import Shape, hf_model, our_config

    shape, threads = Shape(vocabulary=64, layers=2), torch.get_num_threads()
    try:
        model = Qwen3(shape, most_tokens=12)
    finally:
        torch.set_num_threads(threads)
    sizes = {sum(each.numel() for each in one.parameters()) for one in (model, hf_model(shape))}
    assert sizes == {our_config(shape).num_parameters}
    tokens_BT = torch.randint(0, 64, (3, 12))
    with torch.inference_mode():
        whole_BTV = model.logits(model(tokens_BT))
        cache = model.empty_cache(3, 12)
        parts = [(0, 5), (5, 6), (6, 7), (7, 12)]
        cached = [model.logits(model(tokens_BT[:, first:stop], cache, first)) for first, stop in parts]
    torch.testing.assert_close(torch.cat(cached, 1), whole_BTV, rtol=1e-5, atol=1e-5)
