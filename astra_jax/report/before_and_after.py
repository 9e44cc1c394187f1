"""The before/after table: the held-out figures of every policy side by side, the best of each row marked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from astra_jax.report.episodes import policy_order

PolicyFigures: TypeAlias = Mapping[str, float | tuple[float, float]]
"""Figures of one policy by name; `NAME_interval` is the 95 % interval of NAME."""


@dataclass(frozen=True)
class Cell:
    """One figure of one policy."""

    text: str
    is_best: bool
    interval: str = ""
    """Its 95 % interval; empty where it has none."""


@dataclass(frozen=True)
class Row:
    """One figure of every policy."""

    label: str
    aim: str
    """Which value is best, in words; empty where that is not known."""
    cells: list[Cell]


@dataclass(frozen=True)
class _Figure:
    key: str
    label: str
    format: str
    aim: str
    distance: Callable[[float], float] | None
    """The less, the better; None where no value is best."""
    is_cost: bool = False


def before_and_after(held_out: Mapping[str, PolicyFigures], *, gold_calls: float | None) -> list[Row]:
    """Return one row per figure over the policies in the order in which they are compared.

    `gold_calls` is how many tool calls a perfect episode makes on average; without it no number of calls is best. A
    policy that solves nothing costs nothing: it is never best at a cost.

    >>> rows = before_and_after({"sft": {"f1": 0.4}, "untrained": {"f1": 0.0}}, gold_calls=None)
    >>> [(cell.text, cell.is_best) for cell in rows[0].cells]
    [('0.000', False), ('0.400', True)]
    """
    policies = policy_order(list(held_out))
    solving = [policy for policy in policies if number(held_out[policy], "f1")]
    rows = []
    for figure in _figures(gold_calls):
        found = {policy: number(held_out[policy], figure.key) for policy in policies}
        values = {policy: value for policy, value in found.items() if value is not None}
        if not values:
            continue
        distances: dict[str, float] = {}
        if figure.distance is not None:
            ranked = [policy for policy in values if policy in solving or not figure.is_cost]
            distances = {policy: round(figure.distance(values[policy]), 9) for policy in ranked}
        least = min(distances.values(), default=None)
        cells = [
            Cell(
                figure.format.format(values[policy]),
                policy in distances and distances[policy] == least,
                interval_in_words(held_out[policy], figure.key, figure.format),
            )
            if policy in values
            else Cell("–", is_best=False)
            for policy in policies
        ]
        rows.append(Row(figure.label, figure.aim, cells))
    return rows


def number(figures: PolicyFigures, key: str) -> float | None:
    """Return a figure; None where it is not there."""
    value = figures.get(key)
    return value if isinstance(value, int | float) else None


def interval_in_words(figures: PolicyFigures, key: str, form: str) -> str:
    """Write the interval of a figure; empty where it has none.

    >>> interval_in_words({"f1": 0.5, "f1_interval": (0.45, 0.54)}, "f1", "{:.2f}")
    '0.45–0.54'
    """
    interval = figures.get(f"{key}_interval")
    return "–".join(map(form.format, interval)) if isinstance(interval, tuple) else ""


def _figures(gold_calls: float | None) -> list[_Figure]:
    higher, lower = ("higher is better", operator.neg), ("lower is better", operator.pos)
    near_gold: tuple[str, Callable[[float], float] | None] = ("", None)
    if gold_calls is not None:
        near_gold = f"a perfect episode makes {gold_calls:.2f}", lambda calls: abs(calls - gold_calls)
    return [
        _Figure("f1", "F1", "{:.3f}", *higher),
        _Figure("f1_unseen_tools", "F1, unseen tools", "{:.3f}", *higher),
        _Figure("f1_unseen_domains", "F1, unseen domains", "{:.3f}", *higher),
        _Figure("recall", "Recall", "{:.3f}", *higher),
        _Figure("precision", "Precision", "{:.3f}", *higher),
        _Figure("solved_fraction", "Episodes solved whole", "{:.1%}", *higher),
        _Figure("answer_accuracy", "Final answer right", "{:.1%}", *higher),
        _Figure("reward", "Reward", "{:.3f}", *higher),
        _Figure("tool_calls_per_episode", "Tool calls per episode", "{:.2f}", *near_gold, is_cost=True),
        _Figure("tokens_per_turn", "Tokens per turn", "{:.1f}", *lower, is_cost=True),
        _Figure("irrelevant_call_share", "Calls to irrelevant tools", "{:.1%}", *lower, is_cost=True),
        _Figure("failed_call_share", "Calls that failed", "{:.1%}", *lower, is_cost=True),
        _Figure("recovered_tool_share", "Tools whose failed call was made good", "{:.1%}", *higher),
        _Figure("refusals_elsewhere", "Refused, where it should not", "{:.1%}", *lower, is_cost=True),
    ]
