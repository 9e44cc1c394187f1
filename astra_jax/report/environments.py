"""Evaluations in environments side by side: tables of figures, differences, slices and endings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from astra_jax.evaluate.side_by_side import FinishedEvaluation, differences, not_comparable, shared_environments
from astra_jax.evaluate.slices import SLICED
from astra_jax.report.tables import MISSING, SHARE, Cell, Figures, Row, Table, figure_cell

_BANDS: Final = {"high": "of high similarity", "medium": "of medium similarity", "low": "of low similarity"}
_GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "What was solved": {
        "f1": ("F1", "{:.3f}"),
        "reward": ("Reward", "{:.3f}"),
        "recall": ("Recall", "{:.3f}"),
        "precision": ("Precision", "{:.3f}"),
        "solved_fraction": ("Episodes solved whole", SHARE),
        "answer_accuracy": ("Final answer right", SHARE),
    },
    "What it took": {
        "turns_per_episode": ("Turns per episode", "{:.2f}"),
        "tool_calls_per_episode": ("Tool calls per episode", "{:.2f}"),
        "tokens_per_turn": ("Tokens per turn", "{:.1f}"),
    },
    "Which tools were called": {
        "clean_episode_share": ("Episodes without an irrelevant call", SHARE),
        "irrelevant_call_share": ("Irrelevant calls, of all calls", SHARE),
        **{
            f"irrelevant_call_share_{band}": (f"Irrelevant calls, {words}, of all calls", SHARE)
            for band, words in _BANDS.items()
        },
        **{
            f"irrelevant_calls_per_shown_{band}": (f"Calls per irrelevant tool shown, {words}", "{:.3f}")
            for band, words in _BANDS.items()
        },
        "repeated_call_share": ("Calls that were answered before", SHARE),
        "invented_name_share": ("Calls of a name that no tool has", SHARE),
        "invalid_call_share": ("Calls that no tool could take", SHARE),
        "failed_call_share": ("Calls that a tool could take, and failed", SHARE),
    },
    "After a setback": {
        "setbacks_per_episode": ("Tools that let it down, per episode", "{:.3f}"),
        "recovered_tool_share": ("The tool answered a call of a later turn", SHARE),
        "solved_despite_setback_share": ("Its sub-tasks were solved", SHARE),
    },
    "Refusals and questions back": {
        "refusals_where_expected": ("Refused, where expected", SHARE),
        "refusals_elsewhere": ("Refused, where not", SHARE),
        "questions_back_where_expected": ("Asked back, where expected", SHARE),
        "questions_back_elsewhere": ("Asked back, where not", SHARE),
    },
}
"""Heading of a table to its rows: name of a figure to its label and form."""
_FIGURES: Final = {name: shown for group in _GROUPS.values() for name, shown in group.items()}
_KINDS: Final = ("scenario", "hops", "language", "domain", "difficulty", "variant", "ending")


@dataclass(frozen=True)
class SideBySide:
    """The content of the page on evaluations in environments."""

    tables: list[Table]
    slices: list[Table]
    not_comparable: dict[str, list[str]]
    """Label of a run to the reasons why its figures cannot stand beside those of the first."""


def side_by_side(runs: Sequence[FinishedEvaluation]) -> SideBySide:
    """Set evaluations beside the first one; there must be one."""
    columns = [Cell(run.label, _whose(run)) for run in runs]
    tables = [_runs_table(runs)]
    for title, group in _GROUPS.items():
        rows = [
            Row(Cell(label), [_cell(run.table, name, form) for run in runs])
            for name, (label, form) in group.items()
            if any(f"{name}_interval" in run.table for run in runs)
        ]
        if rows:
            tables.append(Table(title, columns, rows))
    tables += _differences(runs)
    tables.append(_stop_reasons(runs))
    return SideBySide(
        tables=tables,
        slices=[table for kind in _KINDS if (table := _slices(runs, kind)) is not None],
        not_comparable={run.label: reasons for run in runs[1:] if (reasons := not_comparable(runs[0], run))},
    )


def _whose(run: FinishedEvaluation) -> str:
    return ", ".join(part for part in (run.figures.policy, run.sampling) if part)


def _cell(figures: Figures, name: str, form: str) -> Cell:
    """Return the cell of a figure; a figure without an interval has no data, and its number means nothing."""
    return figure_cell(figures, name, form) if f"{name}_interval" in figures else MISSING


def _count(figures: Figures, name: str) -> Cell:
    return figure_cell(figures, name, "{:.0f}")


def _runs_table(runs: Sequence[FinishedEvaluation]) -> Table:
    counted = {"environments": "environments", "episodes": "episodes", "left_out": "left out"}
    rows = [Row(Cell(run.label, _whose(run)), [_count(run.table, name) for name in counted]) for run in runs]
    note = "Environments that are left out are in no figure."
    return Table("Runs", [Cell(words) for words in counted.values()], rows, note)


def _differences(runs: Sequence[FinishedEvaluation]) -> list[Table]:
    first, others = runs[0], [(run, found) for run in runs[1:] if (found := differences(runs[0], run))]
    if not others:
        return []
    rows = [
        Row(Cell(label), [_difference(found[name], form) if name in found else MISSING for _, found in others])
        for name, (label, form) in _FIGURES.items()
        if any(name in found for _, found in others)
    ]
    columns = [
        Cell(f"{run.label} − {first.label}", f"{len(shared_environments(first, run))} environments")
        for run, _ in others
    ]
    note = "On the environments that both have figures of, drawn in pairs; shares in points."
    return [Table(f"What each adds to {first.label}", columns, rows, note)]


def _difference(difference: tuple[float, tuple[float, float]], form: str) -> Cell:
    value, interval = difference
    # A share's difference is in points: "5 %" of a share could be read as a part of it.
    scale, signed = (100, "{:+.1f}") if form == SHARE else (1, form.replace("{:", "{:+"))
    return Cell(signed.format(scale * value), " to ".join(signed.format(scale * end) for end in interval))


def _stop_reasons(runs: Sequence[FinishedEvaluation]) -> Table:
    reasons = list(dict.fromkeys(reason for run in runs for reason in run.figures.stop_reasons))
    rows = []
    for run in runs:
        counts = [run.figures.stop_reasons.get(reason, 0) for reason in reasons]
        cells = [Cell(str(count), SHARE.format(count / sum(counts))) for count in counts]
        rows.append(Row(Cell(run.label, _whose(run)), cells))
    columns = [Cell(reason.replace("_", " ")) for reason in reasons]
    return Table("Why episodes ended", columns, rows)


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
    return Table("By the ending that is right" if kind == "ending" else f"By {kind}", columns, rows)
