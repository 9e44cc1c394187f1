"""Runs of benchmarks beside the paper: tables, and the reasons why a run is not comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astra_jax.benchmarks.bfcl import MULTI_TURN
from astra_jax.benchmarks.harnesses import HARNESSES
from astra_jax.benchmarks.results import FAILURES, BenchmarkResults, Figure
from astra_jax.benchmarks.scores import tasks_by_category
from astra_jax.evaluate.intervals import stratified_interval
from astra_jax.report.paper import ALL, PAPER_ROWS, Benchmark, claims
from astra_jax.report.tables import MISSING, Cell, Row, Table

TITLES: dict[Benchmark, str] = {
    "bfcl": "BFCL, multi-turn",
    "bfcl_single_turn": "BFCL, single-turn, which the paper does not report",
    "tau2": "τ²-bench",
    "acebench": "ACEBench, agent",
    "aime": "AIME, mean of 32, top-k 20",
    "aime_no_top_k": "AIME, mean of 32, without top-k",
}
_PAPER_SAMPLING: dict[str, dict[str, float]] = {
    "bfcl": {"temperature": 0.6},
    "aime": {"temperature": 0.6, "top_p": 0.95},
    "tau2": {"temperature": 0.0},
    "acebench": {"temperature": 0.6},
}
_PAPER_TRIALS = {"bfcl": 1, "aime": 32, "tau2": 4, "acebench": 4}
_PAPER_USERS = {"tau2": "gpt-5.1", "acebench": "gpt-4.1"}

Labelled = tuple[str, BenchmarkResults]
"""A run with its label."""


@dataclass(frozen=True)
class Comparison:
    """The content of the page on one benchmark."""

    title: str
    tables: list[Table]
    """Scores, differences, pass^k if there is one, and failures."""
    not_comparable: dict[str, list[str]]
    """Label of a run to the reasons why its figures are not those of the paper's settings."""


def compare(runs: Sequence[Labelled]) -> list[Comparison]:
    """Set runs beside the paper; the first run of a benchmark is compared with the others."""
    found = []
    for benchmark, title in TITLES.items():
        ours = [(label, results) for label, results in runs if _benchmark_of(results) == benchmark]
        if not ours:
            continue
        tables = [
            _scores(benchmark, ours),
            _differences(benchmark, ours),
            *([_pass_hat(ours)] if any(results.summary.pass_hat for _, results in ours) else []),
            _failures(ours),
        ]
        reasons = {label: why for label, results in ours if (why := not_comparable(results))}
        found.append(Comparison(title, tables, reasons))
    return found


def not_comparable(results: BenchmarkResults) -> list[str]:
    """Return the reasons why a run's figures cannot stand beside the paper's; none if they can."""
    run, found = results.run, []
    if run.of_samples is not None and run.samples < run.of_samples:
        found.append(f"{run.samples} of {run.of_samples} cases")
    for name, wanted in _PAPER_SAMPLING[run.benchmark].items():
        if run.sampling.get(name) != wanted:
            found.append(f"{name} {run.sampling.get(name)}, the paper's is {wanted:g}")
    if run.benchmark == "aime" and run.sampling.get("top_k") not in (20, -1):
        found.append(f"top_k {run.sampling.get('top_k')}, the paper's are 20 and -1")
    if run.trials != _PAPER_TRIALS[run.benchmark]:
        found.append(f"{run.trials} trials, the paper has {_PAPER_TRIALS[run.benchmark]}")
    if run.benchmark == "acebench":
        found.append("calls are written as text, as the official code asks for them; the paper calls functions")
    harness = HARNESSES.get(run.benchmark)
    if harness and not f"{run.harness.version}.".startswith(f"{harness.version}."):
        found.append(f"{run.harness.package} {run.harness.version}, not {harness.version}")
    if run.user_simulator != _PAPER_USERS.get(run.benchmark):
        found.append(f"the user is {run.user_simulator}, the paper's is {_PAPER_USERS.get(run.benchmark)}")
    if lost := results.summary.failures.get("transport"):
        found.append(f"{lost} samples lost an answer on its way and count as failed")
    return found


def _benchmark_of(results: BenchmarkResults) -> Benchmark:
    if results.run.benchmark == "aime" and results.run.sampling.get("top_k") == -1:
        return "aime_no_top_k"
    if results.run.benchmark == "bfcl" and not {*MULTI_TURN} & results.summary.by_category.keys():
        return "bfcl_single_turn"
    return results.run.benchmark


def _columns(benchmark: Benchmark, ours: Sequence[Labelled]) -> list[str]:
    """Return the paper's columns in its order, then the columns that only our runs have, then the mean."""
    known = [name for row in PAPER_ROWS for name in row.figures(benchmark)]
    known += [name for _, results in ours for name in results.summary.by_category]
    return [*dict.fromkeys(name for name in known if name != ALL), ALL]


def _in_words(columns: Sequence[str]) -> list[Cell]:
    return [Cell(name.replace("_", " ")) for name in columns]


def _scores(benchmark: Benchmark, ours: Sequence[Labelled]) -> Table:
    columns = _columns(benchmark, ours)
    rows = [
        Row(Cell(row.model, row.table), [_cell(figures.get(name), "{:.2f}") for name in columns])
        for row in PAPER_ROWS
        if (figures := row.figures(benchmark))
    ]
    for label, results in ours:
        found = {**results.summary.by_category, ALL: results.summary.score}
        rows.append(Row(Cell(label), [_with_interval(found.get(name)) for name in columns]))
    note = (
        "In percent, with 95 % intervals of our runs; the paper gives none. T1, T2 and README say where a row of the "
        "paper stands: they do not always agree."
    )
    return Table("", _in_words(columns), rows, note)


def _differences(benchmark: Benchmark, ours: Sequence[Labelled]) -> Table:
    columns = _columns(benchmark, ours)
    rows = [
        Row(Cell(label, "paper"), [_cell(deltas.get(name), "{:+.2f}") for name in columns])
        for label, deltas in claims(benchmark).items()
    ]
    first_label, first = ours[0]
    for label, results in ours[1:]:
        found = _paired(first, results)
        rows.append(Row(Cell(f"{label} − {first_label}"), [found.get(name, MISSING) for name in columns]))
    note = "The paper's claim over Qwen3, and the difference of our runs from the first run, task by task."
    return Table("What training adds, in points", _in_words(columns), rows, note)


def _pass_hat(ours: Sequence[Labelled]) -> Table:
    most = max(k for _, results in ours for k in results.summary.pass_hat)
    rows = [
        Row(Cell(label), [_cell(results.summary.pass_hat.get(k), "{:.1%}") for k in range(1, most + 1)])
        for label, results in ours
    ]
    note = "The chance that k trials of a task all pass."
    return Table("pass^k", [Cell(f"k = {k}") for k in range(1, most + 1)], rows, note)


def _failures(ours: Sequence[Labelled]) -> Table:
    counted = list(dict.fromkeys(name for _, results in ours for name in results.summary.answers))
    columns = [f"samples: {cause}" for cause in FAILURES]
    columns += [name if "_" in name else f"answers: {name}" for name in counted]
    rows = []
    for label, results in ours:
        failures, answers = results.summary.failures, results.summary.answers
        counts = [failures.get(cause, 0) for cause in FAILURES] + [answers.get(name, 0) for name in counted]
        rows.append(Row(Cell(label), [Cell(str(count)) for count in counts]))
    return Table("What failed", _in_words(columns), rows, "Samples by cause, and answers of the model.")


def _paired(before: BenchmarkResults, after: BenchmarkResults) -> dict[str, Cell]:
    """Return the differences on the tasks that both runs have, with 95 % intervals over these tasks."""
    first, second = tasks_by_category(before.samples), tasks_by_category(after.samples)
    differences = {
        category: [
            sum(second[category][task]) / len(second[category][task]) - sum(trials) / len(trials)
            for task, trials in tasks.items()
            if task in second[category]
        ]
        for category, tasks in first.items()
        if category in second
    }
    differences = {category: each for category, each in differences.items() if each}
    found = {category: _difference([each], after.run.seed) for category, each in differences.items()}
    if differences and differences.keys() == first.keys() == second.keys():
        found[ALL] = _difference(list(differences.values()), after.run.seed)
    return found


def _difference(strata: Sequence[Sequence[float]], seed: int) -> Cell:
    mean = sum(sum(each) / len(each) for each in strata) / len(strata)
    ends = stratified_interval(strata, seed=seed)
    return Cell(f"{100 * mean:+.2f}", " to ".join(f"{100 * end:+.1f}" for end in ends))


def _cell(value: float | None, form: str) -> Cell:
    return MISSING if value is None else Cell(form.format(value))


def _with_interval(figure: Figure | None) -> Cell:
    if figure is None:
        return MISSING
    ends = "–".join(f"{100 * end:.1f}" for end in figure.interval)
    return Cell(f"{100 * figure.value:.2f}", ends)
