"""The held-out figures of every policy, and the number of environments that they were taken on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from astra_jax.report.episodes import policy_name, policy_order
from astra_jax.report.tables import SHARE, Cell, Figures, Row, Table, figure_cell, number

_KINDS: Final = {"": "unseen worlds", "_unseen_tools": "unseen tools", "_unseen_domains": "unseen domains"}
"""Ending of a figure's name to the environments that it was taken on."""
_FIGURES: Final = {
    "f1": ("F1", "{:.3f}"),
    "f1_unseen_tools": ("F1, unseen tools", "{:.3f}"),
    "f1_unseen_domains": ("F1, unseen domains", "{:.3f}"),
    "answer_accuracy": ("Final answer right", SHARE),
    "answer_accuracy_unseen_tools": ("Final answer right, unseen tools", SHARE),
    "answer_accuracy_unseen_domains": ("Final answer right, unseen domains", SHARE),
    "recall": ("Recall", "{:.3f}"),
    "precision": ("Precision", "{:.3f}"),
    "solved_fraction": ("Episodes solved whole", SHARE),
    "reward": ("Reward", "{:.3f}"),
    "tool_calls_per_episode": ("Tool calls per episode", "{:.2f}"),
    "tokens_per_turn": ("Tokens per turn", "{:.1f}"),
    "irrelevant_call_share": ("Calls to irrelevant tools", SHARE),
    "failed_call_share": ("Calls that failed", SHARE),
    "recovered_tool_share": ("Tools whose failed call was made good", SHARE),
    "refusals_elsewhere": ("Refused, where it should not", SHARE),
}
"""Name of a figure to its label and its form."""


def held_out_table(title: str, held_out: Mapping[str, Figures]) -> Table:
    """Return one row per figure, one column per policy, in the order in which policies are compared.

    Their number of environments stands in the note if it is the same for all, and in the head of each column if not.

    >>> table = held_out_table("Greedy", {"sft": {"f1": 0.4, "f1_interval": (0.3, 0.5)}, "base": {"f1": 0.0}})
    >>> [column.text for column in table.columns], table.rows[0].cells[1]
    (['Base', 'SFT'], Cell(text='0.400', detail='0.300–0.500'))
    """
    policies = policy_order(list(held_out))
    rows = [
        Row(Cell(label), [figure_cell(held_out[policy], name, form) for policy in policies])
        for name, (label, form) in _FIGURES.items()
        if any(name in figures for figures in held_out.values())
    ]
    counts = {policy: number_of_environments({policy: held_out[policy]}) for policy in policies}
    is_same = len(set(counts.values())) == 1
    columns = [Cell(policy_name(policy), "" if is_same else counts[policy]) for policy in policies]
    return Table(title, columns, rows, counts[policies[0]] if is_same else "not all on the same environments")


def number_of_environments(by_policy: Mapping[str, Figures]) -> str:
    """Return the number of environments that figures were taken on, which is the same for every policy.

    >>> number_of_environments({"sft": {"n": 256, "n_unseen_tools": 128}, "rl": {"n": 256, "n_unseen_tools": 128}})
    'n = 256 unseen worlds, 128 unseen tools'
    """

    def told(key: str, words: str) -> str:
        counts = {count for each in by_policy.values() if (count := number(each, key)) is not None}
        return f"{' or '.join(f'{count:.0f}' for count in sorted(counts))} {words}" if counts else ""

    by_kind = filter(None, (told(f"n{ending}", words) for ending, words in _KINDS.items()))
    found = ", ".join(by_kind) or told("environments", "environments")  # an evaluation of one record directory
    return f"n = {found}" if found else ""
