"""Every policy at every temperature on every kind of unseen environment: the table in which nothing is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from astra_jax.report.before_and_after import Cell, PolicyFigures, interval_in_words, number
from astra_jax.report.episodes import policy_order

KINDS: Final = {"": "unseen worlds", "_unseen_tools": "unseen tools", "_unseen_domains": "unseen domains"}
"""Ending of a figure's name to the environments that it was taken on."""
FIGURES: Final = {"f1": ("F1", "{:.3f}"), "answer_accuracy": ("Final answer right", "{:.1%}")}


@dataclass(frozen=True)
class PolicyRow:
    """One policy: a cell per temperature and kind of environment."""

    policy: str
    cells: list[Cell]


@dataclass(frozen=True)
class Block:
    """One figure of all policies."""

    title: str
    rows: list[PolicyRow]


def by_temperature(settings: Sequence[Mapping[str, PolicyFigures]]) -> list[Block]:
    """Return a block per figure; `settings` holds the figures by policy at each temperature, in the order of columns.

    The best policy of each column is marked, equals all; none where no policy solves anything.

    >>> (block,) = by_temperature([{"sft": {"f1": 0.25, "f1_interval": (0.2, 0.3)}, "rl": {"f1": 0.5}}])
    >>> [(row.policy, row.cells[0].text, row.cells[0].interval, row.cells[0].is_best) for row in block.rows]
    [('sft', '0.250', '0.200–0.300', False), ('rl', '0.500', '', True)]
    """
    policies = policy_order([policy for figures in settings for policy in figures])
    blocks = []
    for figure, (title, form) in FIGURES.items():
        columns = [
            _column({policy: by_policy.get(policy, {}) for policy in policies}, f"{figure}{kind}", form)
            for by_policy in settings
            for kind in KINDS
        ]
        if any(cell.text != _MISSING for column in columns for cell in column):
            rows = zip(*columns, strict=True)
            blocks.append(
                Block(title, [PolicyRow(policy, list(cells)) for policy, cells in zip(policies, rows, strict=True)])
            )
    return blocks


def n_in_words(by_policy: Mapping[str, PolicyFigures]) -> str:
    """Say how many environments figures were taken on; each policy's number, if they are not equal.

    >>> n_in_words({"sft": {"n": 256, "n_unseen_tools": 128}, "rl": {"n": 256, "n_unseen_tools": 128}})
    'n = 256 unseen worlds, 128 unseen tools'
    >>> n_in_words({"untrained": {"environments": 16}, "sft": {"environments": 256}})
    'n = 16 (untrained), 256 (sft) environments'
    """

    def told(key: str, words: str) -> str:
        counts = {name: f"{count:.0f}" for name, each in by_policy.items() if (count := number(each, key)) is not None}
        each_own = [f"{count} ({name})" for name, count in counts.items()]
        numbers = set(counts.values()) if len(set(counts.values())) == 1 else each_own
        return f"{', '.join(numbers)} {words}" if counts else ""

    by_kind = filter(None, (told(f"n{kind}", words) for kind, words in KINDS.items()))
    found = ", ".join(by_kind) or told("environments", "environments")  # an evaluation of one record directory
    return f"n = {found}" if found else ""


_MISSING: Final = "–"


def _column(by_policy: Mapping[str, PolicyFigures], key: str, form: str) -> list[Cell]:
    values = {policy: number(figures, key) for policy, figures in by_policy.items()}
    best = max((value for value in values.values() if value), default=None)
    return [
        Cell(_MISSING, is_best=False)
        if value is None
        else Cell(form.format(value), value == best, interval_in_words(by_policy[policy], key, form))
        for policy, value in values.items()
    ]
