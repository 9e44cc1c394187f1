"""Evaluations side by side, as they are shown: tables of figures, differences, slices and endings, and charts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from astra_jax.evaluate.side_by_side import (
    FigureTable,
    FinishedEvaluation,
    differences,
    not_comparable,
    shared_environments,
)
from astra_jax.evaluate.slices import SLICED
from astra_jax.report.before_and_after import interval_in_words, number
from astra_jax.report.charts import IntervalBars, LineChart, interval_bars, line_chart

_BANDS: Final = {"high": "of high similarity", "medium": "of medium similarity", "low": "of low similarity"}
_SHARE: Final = "{:.1%}"
GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "What was solved": {
        "f1": ("F1", "{:.3f}"),
        "reward": ("Reward", "{:.3f}"),
        "recall": ("Recall", "{:.3f}"),
        "precision": ("Precision", "{:.3f}"),
        "solved_fraction": ("Episodes solved whole", _SHARE),
        "answer_accuracy": ("Final answer right", _SHARE),
    },
    "What it took": {
        "turns_per_episode": ("Turns per episode", "{:.2f}"),
        "tool_calls_per_episode": ("Tool calls per episode", "{:.2f}"),
        "tokens_per_turn": ("Tokens per turn", "{:.1f}"),
    },
    "Which tools were called": {
        "clean_episode_share": ("Episodes without an irrelevant call", _SHARE),
        "irrelevant_call_share": ("Irrelevant calls, of all calls", _SHARE),
        **{
            f"irrelevant_call_share_{band}": (f"Irrelevant calls, {words}, of all calls", _SHARE)
            for band, words in _BANDS.items()
        },
        **{
            f"irrelevant_calls_per_shown_{band}": (f"Calls per irrelevant tool shown, {words}", "{:.3f}")
            for band, words in _BANDS.items()
        },
        "repeated_call_share": ("Calls of what was answered before", _SHARE),
        "invented_name_share": ("Calls of a name that no tool has", _SHARE),
        "invalid_call_share": ("Calls that no tool could take", _SHARE),
        "failed_call_share": ("Calls that a tool could take, and failed", _SHARE),
    },
    "After a setback": {
        "setbacks_per_episode": ("Tools that let it down, per episode", "{:.3f}"),
        "recovered_tool_share": ("The tool answered a call of a later turn", _SHARE),
        "solved_despite_setback_share": ("Its sub-tasks were solved", _SHARE),
    },
    "Refusals and questions back": {
        "refusals_where_expected": ("Refused, where expected", _SHARE),
        "refusals_elsewhere": ("Refused, where not", _SHARE),
        "questions_back_where_expected": ("Asked back, where expected", _SHARE),
        "questions_back_elsewhere": ("Asked back, where not", _SHARE),
    },
}
"""What is shown of a run, by heading: name of a figure to its label and form."""
_FIGURES: Final = {name: shown for group in GROUPS.values() for name, shown in group.items()}
_KINDS: Final = {
    "scenario": "scenario",
    "hops": "hops",
    "language": "language",
    "domain": "domain",
    "difficulty": "difficulty",
    "variant": "variant",
    "ending": "the ending that is right",
}
_CHARTS: Final = ("f1", "answer_accuracy", "solved_fraction", "irrelevant_call_share")
_OVER_STEPS: Final = ("f1", "answer_accuracy")
_STEP: Final = re.compile(r"step[ _-]?(\d+)")
_MISSING: Final = "–"


@dataclass(frozen=True)
class Cell:
    """One figure, and its interval or share in small letters."""

    text: str
    detail: str = ""


@dataclass(frozen=True)
class Row:
    """One figure, one run, or one run on one slice."""

    label: Cell
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """Figures below a heading of their own."""

    title: str
    note: str
    columns: list[Cell]
    rows: list[Row]


@dataclass(frozen=True)
class SideBySide:
    """All that is shown of evaluations in environments."""

    tables: list[Table]
    slices: list[Table]
    not_comparable: dict[str, list[str]]
    """Run to why its figures cannot stand beside those of the first."""
    bars: list[IntervalBars]
    curves: list[LineChart]
    """Over the steps that the runs' names tell."""


def side_by_side(runs: Sequence[FinishedEvaluation]) -> SideBySide:
    """Set evaluations beside the first one; there must be one."""
    columns = [Cell(run.label, _whose(run)) for run in runs]
    tables = [_runs_table(runs)]
    for title, group in GROUPS.items():
        rows = [
            Row(Cell(label), [_cell(run.table, name, form) for run in runs])
            for name, (label, form) in group.items()
            if any(f"{name}_interval" in run.table for run in runs)
        ]
        if rows:
            tables.append(Table(title, "", columns, rows))
    tables += _differences(runs)
    tables.append(_stop_reasons(runs))
    return SideBySide(
        tables=tables,
        slices=[table for kind in _KINDS if (table := _slices(runs, kind)) is not None],
        not_comparable={run.label: reasons for run in runs[1:] if (reasons := not_comparable(runs[0], run))},
        bars=_bars(runs),
        curves=_curves(runs),
    )


def _whose(run: FinishedEvaluation) -> str:
    return ", ".join(part for part in (run.figures.policy, run.sampling) if part)


def _cell(figures: FigureTable, name: str, form: str) -> Cell:
    """Show a figure; one without an interval was taken from nothing, whatever number stands for that."""
    value, interval = number(figures, name), interval_in_words(figures, name, form)
    return Cell(form.format(value), interval) if value is not None and interval else Cell(_MISSING)


def _count(figures: FigureTable, name: str) -> Cell:
    value = number(figures, name)
    return Cell(_MISSING if value is None else f"{value:.0f}")


def _runs_table(runs: Sequence[FinishedEvaluation]) -> Table:
    counted = {"environments": "environments", "episodes": "episodes", "left_out": "left out", "unfinished": "cut off"}
    rows = [Row(Cell(run.label, _whose(run)), [_count(run.table, name) for name in counted]) for run in runs]
    note = "Environments that are left out, or in which an episode was cut off, are in no figure."
    return Table("Runs", note, [Cell(words) for words in counted.values()], rows)


def _differences(runs: Sequence[FinishedEvaluation]) -> list[Table]:
    first, others = runs[0], [(run, found) for run in runs[1:] if (found := differences(runs[0], run))]
    if not others:
        return []
    rows = [
        Row(Cell(label), [_difference(found[name], form) if name in found else Cell(_MISSING) for _, found in others])
        for name, (label, form) in _FIGURES.items()
        if any(name in found for _, found in others)
    ]
    columns = [
        Cell(f"{run.label} − {first.label}", f"{len(shared_environments(first, run))} environments")
        for run, _ in others
    ]
    note = "On the environments that both have figures of, drawn in pairs; shares in points."
    return [Table(f"What each adds to {first.label}", note, columns, rows)]


def _difference(difference: tuple[float, tuple[float, float]], form: str) -> Cell:
    value, interval = difference
    # A share's difference is in points: "5 %" of a share could be read as a part of it.
    scale, signed = (100, "{:+.1f}") if form == _SHARE else (1, form.replace("{:", "{:+"))
    return Cell(signed.format(scale * value), " to ".join(signed.format(scale * end) for end in interval))


def _stop_reasons(runs: Sequence[FinishedEvaluation]) -> Table:
    reasons = list(dict.fromkeys(reason for run in runs for reason in run.figures.stop_reasons))
    rows = []
    for run in runs:
        counts = run.figures.stop_reasons
        total = sum(counts.values())
        found = [(counts.get(reason, 0), reason) for reason in reasons]
        rows.append(Row(Cell(run.label, _whose(run)), [Cell(str(n), _SHARE.format(n / total)) for n, _ in found]))
    columns = [Cell(reason.replace("_", " ")) for reason in reasons]
    return Table("Why episodes ended", "Those that were cut off included.", columns, rows)


def _slices(runs: Sequence[FinishedEvaluation], kind: str) -> Table | None:
    values = list(dict.fromkeys(value for run in runs for value in run.figures.slices.get(kind, {})))
    if len(values) < 2:
        return None  # the whole over again
    rows = []
    for value in values:
        for run in runs:
            figures = run.figures.slices.get(kind, {}).get(value, {})
            counts = [_count(figures, "environments"), _count(figures, "episodes")]
            shown = [_cell(figures, name, _FIGURES[name][1]) for name in SLICED]
            rows.append(Row(Cell(value.replace("_", " "), run.label), [*counts, *shown]))
    columns = [Cell("environments"), Cell("episodes"), *(Cell(_FIGURES[name][0]) for name in SLICED)]
    return Table(f"By {_KINDS[kind]}", "", columns, rows)


def _bars(runs: Sequence[FinishedEvaluation]) -> list[IntervalBars]:
    charts = []
    for name in _CHARTS:
        label, form = _FIGURES[name]
        figures = [
            (run.label, run.sampling or "program", value, interval)
            for run in runs
            if (value := number(run.table, name)) is not None
            and isinstance(interval := run.table.get(f"{name}_interval"), tuple)
        ]
        if figures:
            charts.append(interval_bars(label, figures, in_percent=form == _SHARE))
    return charts


def _curves(runs: Sequence[FinishedEvaluation]) -> list[LineChart]:
    """Draw runs over steps, where the name of the policy, or else of the run, says one: `step_20`, `rl-step40`.

    What is left of the name, and how it was sampled, tells the curves apart; a single step is none. A run that is not
    comparable with the first is left out: a step of its curve would not be the policy's.
    """
    curves: dict[str, dict[int, FinishedEvaluation]] = {}
    for run in runs:
        if not_comparable(runs[0], run):
            continue
        for name in (run.figures.policy, run.label):
            if match := _STEP.search(name):
                rest = (name[: match.start()] + name[match.end() :]).strip(" _-")
                curve = ", ".join(dict.fromkeys(part for part in (rest, run.sampling) if part))
                curves.setdefault(curve, {})[int(match[1])] = run
                break
    curves = {curve: by_step for curve, by_step in curves.items() if len(by_step) > 1}
    charts = []
    for name in _OVER_STEPS:
        rows = [
            {
                "step": step,
                **{
                    curve: by_step[step].table[name]
                    for curve, by_step in curves.items()
                    if step in by_step and name in by_step[step].table
                },
            }
            for step in sorted({step for by_step in curves.values() for step in by_step})
        ]
        chart = line_chart(_FIGURES[name][0], rows, {curve: curve for curve in curves}, from_zero=True)
        if chart is not None:
            charts.append(chart)
    return charts
