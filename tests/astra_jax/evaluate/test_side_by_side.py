"""Evaluations side by side: paired differences, reasons why two are not comparable, and the page of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_jax.cli.command import main
from astra_jax.evaluate.environments import open_evaluation, sum_up, write_evaluation
from astra_jax.evaluate.side_by_side import (
    differences,
    is_evaluation,
    not_comparable,
    read_evaluation,
    shared_environments,
)
from astra_jax.evaluate.slices import evaluated
from astra_jax.report.environments import side_by_side
from synthesis.record_io import write_records
from tests.astra_jax.benchmarks.test_report import all_of
from tests.astra_jax.benchmarks.test_report import run as benchmark_run
from tests.astra_jax.evaluate.test_conduct import ASKED, ended, find, rent
from tests.astra_jax.evaluate.test_environments import CONFIG

SOLVED, HALF, IDLE = [find(turn=1), rent(turn=2)], [find(turn=1)], []


def run(out: Path, did: dict[str, list[list]], *, policy="rl", temperature=1.0, records="worlds", **changes) -> Path:
    """Write an evaluation in which each environment has episodes of these calls."""
    worlds = [ASKED.model_copy(update={"id": name, "hops": len(name)}) for name in did]
    if not (out.parent / records).exists():
        write_records(out.parent / records, worlds, kind="environment")
    rollout = CONFIG.rollout.model_copy(update={"temperature": temperature, **changes.pop("rollout", {})})
    changes |= {"rollout": rollout, "out": out, "environments": out.parent / records}
    config = CONFIG.model_copy(update=changes)
    groups = [[ended(world, *calls) for calls in did[world.id]] for world in worlds]
    evaluation, environments = sum_up(groups, seed=config.seed), list(map(evaluated, groups))
    figures = {"policy": policy, "temperature": temperature, **evaluation.in_full(environments, seed=config.seed)}
    write_evaluation(open_evaluation(config, baseline=policy), figures, environments, [])
    return out


def read(*args, **changes):
    out = run(*args, **changes)
    assert is_evaluation(out)
    return read_evaluation(out, out.name)


def test_a_difference_is_paired_on_the_environments_that_both_have(tmp_path):
    before = read(tmp_path / "a", {"w": [IDLE], "ww": [SOLVED], "www": [SOLVED]})
    after = read(tmp_path / "b", {"w": [SOLVED], "ww": [SOLVED]}, policy="other", temperature=0.0)
    assert shared_environments(before, after) == ["w", "ww"]
    found = differences(before, after)
    # F1 0 and 1 before, 1 and 1 after; each of the four draws of two environments adds 1, ½, ½ or 0.
    assert found["f1"][0] == pytest.approx(0.5, abs=1e-6)
    assert found["f1"][1] == pytest.approx((0, 1), abs=1e-6)
    assert found["tool_calls_per_episode"][0] == 1
    assert "recovered_tool_share" not in found
    more = read(tmp_path / "c", {"w": [IDLE, IDLE, IDLE], "ww": [SOLVED]}, records="c_worlds")
    assert more.table["f1"] == pytest.approx(1 / 4, abs=1e-6), "more episodes in an environment weigh more"
    # One side has no calls in the first environment; the shares are still ratios of sums.
    assert found["irrelevant_call_share"] == (0, (0, 0))


BOTH = {"w": [SOLVED], "ww": [HALF]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"records": "others"}, "other environments"),
        ({"seed": 3}, "seed 3, not 0: other distractors, in another order"),
        ({"irrelevant_per_band": {"high": 2}}, "distractors by band 2/0/0, not 0/0/0"),
        ({"rollout": {"max_turns": 9}}, "rollout.max_turns 9, not 6"),
    ],
)
def test_runs_that_are_not_comparable_have_a_reason_and_no_differences(tmp_path, changes, reason):
    write_records(tmp_path / "others", [ASKED], kind="environment")
    first, second = read(tmp_path / "a", BOTH), read(tmp_path / "b", BOTH, **changes)
    assert not_comparable(first, second) == [reason]
    assert differences(first, second) == {}
    shown = side_by_side([first, second])
    assert shown.not_comparable == {"b": [reason]}
    assert not [table for table in shown.tables if table.title.startswith("What each adds")]


def test_policy_and_sampling_may_differ_and_the_code_may_not(tmp_path):
    first = read(tmp_path / "a", BOTH)
    second = read(tmp_path / "b", BOTH, policy="sft", temperature=0.0, rollout={"top_k": 4}, episodes_per_environment=2)
    assert not_comparable(first, second) == []
    assert [second.sampling, first.sampling] == ["greedy", "temperature 1"]
    second.made_with["source of astra_jax/evaluate/conduct.py"] = "another"
    assert not_comparable(first, second) == ["another version of the code that counts: astra_jax/evaluate/conduct.py"]


def test_the_page_has_figures_differences_slices_and_endings(tmp_path, capsys):
    sft = run(tmp_path / "sft", {"w": [IDLE], "ww": [SOLVED]}, policy="sft")
    rl = run(tmp_path / "rl", {"w": [SOLVED], "ww": [SOLVED]}, temperature=0.0)
    page = tmp_path / "page"
    assert main(["evaluate", "report", str(sft), str(rl), "--out", str(page)]) == 0
    lines = (page / "report.md").read_text().splitlines()
    assert lines[0] == "# Policies in held-out environments"
    assert "| | sft (sft, temperature 1) | rl (rl, greedy) |" in lines
    assert "| F1 | 0.500 (0.000–1.000) | 1.000 (1.000–1.000) |" in lines
    assert "| Turns per episode | 2.00 (1.00–3.00) | 3.00 (3.00–3.00) |" in lines
    # No program writes tokens, and its figures.json says 0 of them.
    assert not [line for line in lines if line.startswith("| Tokens")]
    assert "| | rl − sft (2 environments) |" in lines
    assert "| F1 | +0.500 (+0.000 to +1.000) |" in lines
    assert "| Episodes solved whole | +50.0 (+0.0 to +100.0) |" in lines
    assert "### By hops" in lines
    # With no call there is nothing that a share of calls could be of.
    assert "| 1 (sft) | 1 | 1 | 0.000 (0.000–0.000) | 100.0% (100.0%–100.0%) | – |" in lines
    assert "| sft (sft, temperature 1) | 2 (100.0%) |" in lines
    assert not [line for line in lines if "paper" in line or line == "### By scenario"]
    html = (page / "report.html").read_text()
    assert "+0.500<small>+0.000 to +1.000</small>" in html
    assert "<script" not in html
    before = {path.name: path.read_bytes() for path in page.iterdir()}
    assert main(["evaluate", "report", str(sft), str(rl), "--out", str(page)]) == 0
    assert before == {path.name: path.read_bytes() for path in page.iterdir()}
    # A run's own page goes on to show its figures.
    assert main(["report", str(rl)]) == 0
    assert "Final answer right" in (rl / "report.html").read_text()


def test_one_page_has_environments_and_benchmarks_and_names_stay_names(tmp_path):
    ours, bfcl = run(tmp_path / "a|<b>x", BOTH, policy="p|<i>y"), benchmark_run(tmp_path / "bfcl", all_of(1, 0))
    assert main(["evaluate", "report", str(bfcl), str(ours), "--out", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page" / "report.md").read_text()
    assert text.startswith("# Policies in held-out environments · Benchmarks beside the paper's\n")
    assert "\n## BFCL, multi-turn\n" in text
    assert "| a\\|<b>x (p\\|<i>y, temperature 1) |" in text
    html = (tmp_path / "page" / "report.html").read_text()
    assert '<section id="environments">' in html
    assert '<section id="benchmark-1">' in html
    assert "<b>x" not in html
    assert "<i>y" not in html


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("figures.json", None, "figures.json is missing; finish it"),
        ("environments.jsonl", None, "environments.jsonl is missing; finish it, or evaluate again elsewhere"),
        ("environments.jsonl", '{"id": 1}\n', "cannot be read: id: "),
        ("figures.json", '{"policy": "x", "stop_reasons": {}, "slices": {}, "f1": "x"}', "cannot be read: f1"),
        ("run.json", '{"kind": "evaluation", "made_with": {}}', "cannot be read: made_with.seed: Field required"),
    ],
)
def test_a_folder_that_is_no_finished_evaluation_is_one_line_and_no_page(tmp_path, capsys, name, text, said):
    out = run(tmp_path / "a", BOTH)
    (out / name).unlink()
    if text is not None:
        (out / name).write_text(text)
    assert main(["evaluate", "report", str(out), "--out", str(tmp_path / "page")]) == 1
    error = capsys.readouterr().err
    assert (said in error, error.count("\n")) == (True, 1), error
    assert not (tmp_path / "page").exists()
