"""The paper's tables with runs beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_jax.benchmarks.results import (
    BenchmarkFailed,
    HarnessDocument,
    ModelDocument,
    RunDocument,
    Sample,
    begin,
    finish,
    read_results,
)
from astra_jax.benchmarks.scores import sum_up
from astra_jax.cli.command import main
from astra_jax.report.benchmark_tables import compare, not_comparable
from astra_jax.report.paper import ALL, PAPER_ROWS, claims

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


def run(out: Path, passed: dict[str, list[int]], *, trials: int = 1, failure="wrong", **changes) -> Path:
    document = RunDocument(
        benchmark="bfcl",
        harness=HarnessDocument(package="bfcl-eval", version="2026.3.23"),
        model=ModelDocument(name="m", digest=None, max_model_len=1000),
        sampling={"temperature": 0.6},
        samples=800,
        of_samples=800,
        trials=trials,
        seed=0,
        made_with={},
    ).model_copy(update=changes)
    samples = [
        Sample(
            id=f"{category}_{number}",
            category=category,
            score=score,
            passed=bool(score),
            failure=None if score else failure,
            turns=2,
            steps=3,
            tool_calls=1,
            cut_answers=0,
            empty_answers=0,
            prompt_tokens=10,
            completion_tokens=6,
            seconds=1,
        )
        for category, scores in passed.items()
        for number, score in enumerate(scores)
    ]
    begin(out, document)
    finish(out, document.ended(1.0, 1000), samples, sum_up(samples, requests={"failed_requests": 0}, seed=0))
    return out


def all_of(*scores: int) -> dict[str, list[int]]:
    return {key: list(scores) for key in CATEGORIES}


def test_the_page_has_the_paper_s_rows_ours_and_their_differences(tmp_path, capsys):
    base = run(tmp_path / "base", all_of(1, 0, 0, 0))
    trained = run(tmp_path / "trained|<b>x", all_of(1, 1, 0, 0))
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "notes.txt").write_text("mine")  # a folder of something else is not replaced
    assert main(["evaluate", "report", str(base), str(trained), "--out", str(tmp_path / "page")]) == 2
    (tmp_path / "page" / "notes.txt").unlink()
    assert main(["evaluate", "report", str(base), str(trained), "--out", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page" / "report.md").read_text()
    lines = text.splitlines()
    assert "# Benchmarks beside the paper's" in lines
    assert "| Qwen3-14B (T1) | 54.00 | 39.50 | 39.00 | 45.50 | 44.50 |" in lines
    assert "| Qwen3-32B (T2) | 56.00 | 52.50 | 40.00 | 43.00 | 47.88 |" in lines
    assert any(line.startswith("| trained\\|<b>x | 50.00 (15.0–85.0) |") for line in lines)
    assert "| 14B, RL (T1) − Qwen3-14B (T1) (paper) | +13.00 | +16.50 | +9.50 | +15.50 | +13.63 |" in lines
    (delta,) = [line for line in lines if line.startswith("| trained\\|<b>x − base |")]
    assert delta.endswith("| +25.00 (+6.2 to +50.0) |")
    assert "not comparable" not in text
    tables = [line for line in lines if line.startswith("|---")]
    assert len(tables) == 3
    html = (tmp_path / "page" / "report.html").read_text()
    assert "ASTRA-32B-Thinking-v1" in html
    assert "<b>x" not in html
    assert "<script" not in html
    # Made again: the same bytes, in the place of the one before.
    before = {path.name: path.read_bytes() for path in (tmp_path / "page").iterdir()}
    assert main(["evaluate", "report", str(base), str(trained), "--out", str(tmp_path / "page")]) == 0
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "page").iterdir()}


def test_a_delta_is_of_the_tasks_and_categories_that_both_have(tmp_path):
    first = read_results(run(tmp_path / "a", {"base": [0, 0, 1, 1], "miss_func": [0, 1]}))
    second = read_results(run(tmp_path / "b", {"base": [1, 1]}))
    (comparison,) = compare([("a", first), ("b", second)])
    ours = comparison.tables[1].rows[-1]
    assert ours.label.text == "b − a"
    assert ours.cells[0].text == "+100.00"  # not +50, of all samples
    assert ours.cells[-1].text == "–"  # a mean over other categories is compared with nothing
    assert compare([("a", first)])[0].tables[1].rows == comparison.tables[1].rows[:-1]


OF_PAPER = {
    "tau2": {"trials": 4, "sampling": {"temperature": 0.0}, "user_simulator": "gpt-5.1"},
    "acebench": {"trials": 4, "user_simulator": "gpt-4.1"},
    "aime": {"trials": 32, "sampling": {"temperature": 0.6, "top_p": 0.95, "top_k": 20}},
}
HARNESSES_OF = {"tau2": ("tau2", "0.2.0"), "acebench": ("ACEBench", "56dd66c"), "aime": ("astra-jax", "x")}


@pytest.mark.parametrize(
    ("benchmark", "changes", "reason"),
    [
        ("bfcl", {"samples": 8}, "8 of 800 cases"),
        ("bfcl", {"sampling": {"temperature": 0.001}}, "temperature 0.001, the paper's is 0.6"),
        ("bfcl", {"trials": 4}, "4 trials, the paper has 1"),
        (
            "bfcl",
            {"harness": HarnessDocument(package="bfcl-eval", version="2025.6")},
            "bfcl-eval 2025.6, not 2026.3.23",
        ),
        ("bfcl", {"failure": "transport"}, "4 samples lost an answer on its way"),
        ("tau2", {"user_simulator": "player"}, "the user is player, the paper's is gpt-5.1"),
        ("acebench", {"user_simulator": "player"}, "the user is player, the paper's is gpt-4.1"),
        ("acebench", {}, "calls are written as text"),
        ("aime", {"sampling": {"temperature": 0.6, "top_p": 0.95, "top_k": 5}}, "top_k 5, the paper's are 20 and -1"),
    ],
)
def test_a_setting_other_than_the_paper_s_is_said(tmp_path, benchmark, changes, reason):
    document = dict(OF_PAPER.get(benchmark, {}), benchmark=benchmark)
    if benchmark != "bfcl":
        package, version = HARNESSES_OF[benchmark]
        document["harness"] = HarnessDocument(package=package, version=version)
    results = read_results(run(tmp_path / "a", all_of(1, 0), **(document | changes)))
    assert [found for found in not_comparable(results) if reason in found]
    as_in_the_paper = not_comparable(read_results(run(tmp_path / "b", all_of(1, 0), **document)))
    assert [found for found in as_in_the_paper if "as text" not in found] == []
    (comparison,) = compare([("a", results)])
    assert "a" in comparison.not_comparable


@pytest.mark.parametrize(
    ("benchmark", "line"),
    [
        ("tau2", "| ASTRA-14B-Thinking-v1 (T1) | 68.00 | 47.37 |"),
        ("acebench", "| ASTRA-14B-Thinking-v1 (T1) | 54.17 | 83.75 |"),
        ("aime", "| ASTRA-14B-Thinking-v1 (T1) | 80.10 | 66.70 |"),
        ("aime without top-k", "| ASTRA-14B-Thinking-v1 (T1) | 78.80 | 66.40 |"),
    ],
)
def test_the_rows_of_the_paper_are_those_of_the_benchmark(tmp_path, benchmark, line):
    name, _, without = benchmark.partition(" ")
    out = run(tmp_path / "a", all_of(1, 0), benchmark=name, sampling={"top_k": -1 if without else 20})
    assert main(["evaluate", "report", str(out), "--out", str(tmp_path / "page")]) == 0
    assert line in (tmp_path / "page" / "report.md").read_text()


def test_the_paper_s_means_are_those_of_its_columns_and_its_claims_of_its_tables():
    for row in PAPER_ROWS:
        for benchmark in ("bfcl", "tau2", "acebench"):
            figures = row.figures(benchmark)
            parts = [value for name, value in figures.items() if name != ALL]
            if len(parts) > 1:
                assert figures[ALL] == pytest.approx(sum(parts) / len(parts), abs=0.011), (row.model, benchmark)
    assert {label: deltas[ALL] for label, deltas in claims("bfcl").items()} == {
        "14B, SFT (T2) − Qwen3-14B (T1)": 4.0,
        "14B, RL (T1) − Qwen3-14B (T1)": 13.63,
        "32B, SFT (T2) − Qwen3-32B (T2)": 4.25,  # not 2.5: the tables differ in Qwen3-32B
        "32B, RL (T1) − Qwen3-32B (T1)": 14.62,
    }


@pytest.mark.parametrize("damage", ["absent", "no summary", "broken"])
def test_an_unfinished_run_is_one_line_and_no_page(tmp_path, capsys, damage):
    out = tmp_path / "a"
    if damage != "absent":
        run(out, all_of(1))
    if damage == "no summary":
        (out / "summary.json").unlink()
    if damage == "broken":
        (out / "samples.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(BenchmarkFailed):
        read_results(out)
    assert main(["evaluate", "report", str(out), "--out", str(tmp_path / "page")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "page").exists()


def test_pass_hat_is_a_table_over_the_number_of_trials(tmp_path):
    document = {"benchmark": "tau2", "trials": 2, "user_simulator": "gpt-5.1", "sampling": {"temperature": 0.0}}
    results = read_results(run(tmp_path / "a", {"retail": [1, 0], "telecom": [1, 1]}, **document))
    summary = results.summary.model_copy(update={"pass_hat": {1: 0.75, 2: 0.5}})
    finish(tmp_path / "a", results.run, results.samples, summary)
    assert main(["evaluate", "report", str(tmp_path / "a"), "--out", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page" / "report.md").read_text()
    assert "### pass^k\n\n| | k = 1 | k = 2 |\n|---|---|---|\n| a | 75.0% | 50.0% |\n" in text
    assert "pass^k" in (tmp_path / "page" / "report.html").read_text()
