"""Runs beside the paper: its table, what each run adds to the first one, and what makes them not comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astra_jax.benchmarks.harnesses import HARNESSES
from astra_jax.benchmarks.paper import ALL, Benchmark, bfcl_effort, claims, paper_rows
from astra_jax.benchmarks.results import FAILURES, BenchmarkResults
from astra_jax.benchmarks.scores import tasks_by_category
from astra_jax.evaluate.intervals import stratified_interval

TITLES: dict[Benchmark, str] = {
    "bfcl": "BFCL, multi-turn",
    "tau2": "τ²-bench",
    "acebench": "ACEBench, agent",
    "aime": "AIME, mean of 32, top-k 20",
    "aime_no_top_k": "AIME, mean of 32, without top-k",
}
EFFORTS: dict[str, str] = {
    "steps_per_turn": "steps per sub-job",
    "tokens_per_step": "tokens per step",
    "tokens_per_turn": "tokens per sub-job",
}
"""What T4 has, under our names and under the paper's."""
_PAPER_SAMPLING: dict[str, dict[str, float]] = {
    "bfcl": {"temperature": 0.6},
    "aime": {"temperature": 0.6, "top_p": 0.95},
    "tau2": {"temperature": 0.0},
    "acebench": {"temperature": 0.6},
}
_PAPER_TRIALS = {"bfcl": 1, "aime": 32, "tau2": 4, "acebench": 4}
_PAPER_USERS = {"tau2": "gpt-5.1", "acebench": "gpt-4.1"}


@dataclass(frozen=True)
class Cell:
    """One figure in percent, or one difference in points."""

    text: str
    interval: str = ""


@dataclass(frozen=True)
class Row:
    """One model, or one difference of two."""

    label: str
    source: str
    """Where it stands in the paper; empty of our own."""
    cells: list[Cell]


@dataclass(frozen=True)
class Comparison:
    """One benchmark."""

    benchmark: Benchmark
    runs: list[tuple[str, BenchmarkResults]]
    """Ours, with their labels, in the order in which they were named."""
    title: str
    columns: list[str]
    rows: list[Row]
    """The paper's, then our own."""
    deltas: list[Row]
    """What the paper claims over Qwen3, then what our runs add to the first of them."""
    effort: list[Row]
    """T4 with ours below it; empty of what T4 does not have."""
    failures: list[Row]
    """Of each run, samples by cause and answers."""
    failure_columns: list[str]
    not_comparable: dict[str, list[str]]
    """Run to why its figures are not those of the paper's settings."""


def compare(runs: Sequence[tuple[str, BenchmarkResults]]) -> list[Comparison]:
    """Set runs, given with their labels, beside the paper; the first of a benchmark is compared with the others."""
    found = []
    for benchmark, title in TITLES.items():
        ours = [(label, results) for label, results in runs if _table_of(results) == benchmark]
        if ours:
            found.append(_comparison(benchmark, title, ours))
    return found


def not_comparable(results: BenchmarkResults) -> list[str]:
    """Say why a run's figures cannot stand beside the paper's; nothing where they can."""
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


def _table_of(results: BenchmarkResults) -> Benchmark:
    if results.run.benchmark == "aime" and results.run.sampling.get("top_k") == -1:
        return "aime_no_top_k"
    return results.run.benchmark


def _comparison(benchmark: Benchmark, title: str, ours: Sequence[tuple[str, BenchmarkResults]]) -> Comparison:
    papers = [(row, figures) for row in paper_rows() if (figures := row.figures(benchmark))]
    # The paper's columns in its order, then what only we have.
    known = [name for _, figures in papers for name in figures] + [
        name for _, results in ours for name in results.summary.by_category
    ]
    columns = [*dict.fromkeys(name for name in known if name != ALL), ALL]
    rows = [Row(row.model, row.table, [_percent(figures.get(name)) for name in columns]) for row, figures in papers]
    for label, results in ours:
        summary = results.summary
        of_run = {**summary.by_category, ALL: summary.score}
        cells = []
        for name in columns:
            figure = of_run.get(name)
            cells.append(
                Cell("–")
                if figure is None
                else Cell(f"{100 * figure.value:.2f}", "–".join(f"{100 * end:.1f}" for end in figure.interval))
            )
        rows.append(Row(label, "", cells))
    deltas = [
        Row(claim.label, "paper", [_points(claim.deltas.get(name)) for name in columns]) for claim in claims(benchmark)
    ]
    first_label, first = ours[0]
    for label, results in ours[1:]:
        found = _paired(first, results)
        deltas.append(Row(f"{label} − {first_label}", "", [found.get(name, Cell("–")) for name in columns]))
    counted = list(dict.fromkeys(name for _, results in ours for name in results.summary.answers))
    return Comparison(
        benchmark=benchmark,
        runs=list(ours),
        title=title,
        columns=columns,
        rows=rows,
        deltas=deltas,
        effort=_effort(ours) if benchmark == "bfcl" else [],
        failures=[
            Row(
                label,
                "",
                [Cell(str(results.summary.failures.get(cause, 0))) for cause in FAILURES]
                + [Cell(str(results.summary.answers.get(name, 0))) for name in counted],
            )
            for label, results in ours
        ],
        failure_columns=[
            *(f"samples: {cause.replace('_', ' ')}" for cause in FAILURES),
            *(name.replace("_", " ") if "_" in name else f"answers: {name}" for name in counted),
        ],
        not_comparable={label: reasons for label, results in ours if (reasons := not_comparable(results))},
    )


def _effort(ours: Sequence[tuple[str, BenchmarkResults]]) -> list[Row]:
    models = [(row.model, "T4", row.model_dump()) for row in bfcl_effort()]
    models += [(label, "", results.summary.effort) for label, results in ours]
    return [Row(label, source, [Cell(f"{found[name]:.1f}") for name in EFFORTS]) for label, source, found in models]


def _paired(before: BenchmarkResults, after: BenchmarkResults) -> dict[str, Cell]:
    """Return the differences on the tasks that both runs have, with intervals over these tasks."""
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


def _percent(value: float | None) -> Cell:
    return Cell("–" if value is None else f"{value:.2f}")


def _points(value: float | None) -> Cell:
    return Cell("–" if value is None else f"{value:+.2f}")
