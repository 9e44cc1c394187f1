"""The held-out figures of every policy: at each temperature side by side, and all figures of one setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from astra_jax.report.episodes import policy_name, policy_order
from astra_jax.report.tables import MISSING, SHARE, Cell, Figures, Row, Table, figure_cell, number

_KINDS: Final = {"": "unseen worlds", "_unseen_tools": "unseen tools", "_unseen_domains": "unseen domains"}
"""Ending of a figure's name to the environments that it was taken on."""
_HIGHER, _LOWER = "higher is better", "lower is better"
_CALLS: Final = "tool_calls_per_episode"
_FIGURES: Final = {
    "f1": ("F1", "{:.3f}", _HIGHER),
    "f1_unseen_tools": ("F1, unseen tools", "{:.3f}", _HIGHER),
    "f1_unseen_domains": ("F1, unseen domains", "{:.3f}", _HIGHER),
    "recall": ("Recall", "{:.3f}", _HIGHER),
    "precision": ("Precision", "{:.3f}", _HIGHER),
    "solved_fraction": ("Episodes solved whole", SHARE, _HIGHER),
    "answer_accuracy": ("Final answer right", SHARE, _HIGHER),
    "reward": ("Reward", "{:.3f}", _HIGHER),
    _CALLS: ("Tool calls per episode", "{:.2f}", ""),
    "tokens_per_turn": ("Tokens per turn", "{:.1f}", _LOWER),
    "irrelevant_call_share": ("Calls to irrelevant tools", SHARE, _LOWER),
    "failed_call_share": ("Calls that failed", SHARE, _LOWER),
    "recovered_tool_share": ("Tools whose failed call was made good", SHARE, _HIGHER),
    "refusals_elsewhere": ("Refused, where it should not", SHARE, _LOWER),
}
"""Name of a figure to its label, its form, and the values that are better."""


def before_and_after(title: str, held_out: Mapping[str, Figures], *, gold_calls: float | None) -> Table:
    """Return one row per figure over the policies in the order in which they are compared; the best cells are marked.

    `gold_calls` is the mean number of tool calls of a perfect episode; without it no number of calls is best. A
    policy that solves nothing costs nothing, so it is never best at a cost.

    >>> table = before_and_after("Greedy", {"sft": {"f1": 0.4}, "untrained": {"f1": 0.0}}, gold_calls=None)
    >>> [(cell.text, cell.is_marked) for cell in table.rows[0].cells]
    [('0.000', False), ('0.400', True)]
    """
    policies = policy_order(list(held_out))
    rows = []
    for name, (label, form, aim) in _FIGURES.items():
        values = {policy: value for policy in policies if (value := number(held_out[policy], name)) is not None}
        if not values:
            continue
        ideal = gold_calls if name == _CALLS else 0.0
        if aim == _HIGHER:
            distances = {policy: -value for policy, value in values.items()}
        elif ideal is None:
            distances = {}
        else:  # a cost
            solving = {policy: value for policy, value in values.items() if number(held_out[policy], "f1")}
            distances = {policy: abs(value - ideal) for policy, value in solving.items()}
        distances = {policy: round(distance, 9) for policy, distance in distances.items()}
        best = min(distances.values(), default=None)
        if name == _CALLS and gold_calls is not None:
            aim = f"a perfect episode makes {gold_calls:.2f}"
        cells = [
            figure_cell(held_out[policy], name, form, is_marked=policy in distances and distances[policy] == best)
            for policy in policies
        ]
        rows.append(Row(Cell(label, aim), cells))
    return Table(title, [Cell(policy_name(policy)) for policy in policies], rows, number_of_environments(held_out))


def by_temperature(settings: Mapping[str, Mapping[str, Figures]]) -> list[Table]:
    """Return F1 and final answers of each policy in every setting on every kind of environment.

    `settings` holds the figures by policy, by the words for a setting. The best cells of a column are marked; none is
    if no policy solves anything.

    >>> settings = {"Greedy": {"sft": {"f1": 0.25, "f1_interval": (0.2, 0.3)}, "rl": {"f1": 0.5}}}
    >>> [(row.label.text, row.cells[0].text, row.cells[0].is_marked) for row in by_temperature(settings)[0].rows]
    [('SFT', '0.250', False), ('RL', '0.500', True)]
    """
    policies = policy_order([policy for by_policy in settings.values() for policy in by_policy])
    tables = []
    for figure in ("f1", "answer_accuracy"):
        label, form, _ = _FIGURES[figure]
        columns: list[Cell] = []
        rows = [Row(Cell(policy_name(policy)), []) for policy in policies]
        for setting, by_policy in settings.items():
            for ending, kind in _KINDS.items():
                of_policies = [by_policy.get(policy, {}) for policy in policies]
                values = [number(figures, f"{figure}{ending}") for figures in of_policies]
                best = max(filter(None, values), default=None)
                columns.append(Cell(kind, setting))
                for row, figures, value in zip(rows, of_policies, values, strict=True):
                    is_best = value is not None and value == best
                    row.cells.append(figure_cell(figures, f"{figure}{ending}", form, is_marked=is_best))
        tables.append(Table(label, columns, rows))
    return [table for table in tables if any(cell != MISSING for row in table.rows for cell in row.cells)]


def number_of_environments(by_policy: Mapping[str, Figures]) -> str:
    """Return the number of environments that figures were taken on; each policy's number, if they are not equal.

    >>> number_of_environments({"sft": {"n": 256, "n_unseen_tools": 128}, "rl": {"n": 256, "n_unseen_tools": 128}})
    'n = 256 unseen worlds, 128 unseen tools'
    >>> number_of_environments({"untrained": {"environments": 16}, "sft": {"environments": 256}})
    'n = 16 (untrained), 256 (sft) environments'
    """

    def told(key: str, words: str) -> str:
        counts = {name: f"{count:.0f}" for name, each in by_policy.items() if (count := number(each, key)) is not None}
        of_each = [f"{count} ({name})" for name, count in counts.items()]
        numbers = set(counts.values()) if len(set(counts.values())) == 1 else of_each
        return f"{', '.join(numbers)} {words}" if counts else ""

    by_kind = filter(None, (told(f"n{ending}", words) for ending, words in _KINDS.items()))
    found = ", ".join(by_kind) or told("environments", "environments")  # an evaluation of one record directory
    return f"n = {found}" if found else ""
