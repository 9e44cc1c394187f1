"""The budget of a run: tokens and dollars of all its commands together.

Calls whose replies were no use count as well.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

from synthesis.teacher.cache import ReplyDatabase
from synthesis.teacher.usage import Usage


class Budget:
    """Counts tokens and dollars against `max_tokens` and `max_usd`; in a file, the count outlives the process.

    It is one count for all runs that keep their replies in that file.

    >>> budget = Budget(max_usd=1.0)
    >>> budget.spend(Usage(1000, 200, 0.75)), budget.is_used_up, str(budget)
    (None, False, '0.75 of 1.00 USD')
    >>> budget.spend(Usage(1000, 200, 0.25)), budget.is_used_up
    (None, True)
    """

    def __init__(self, max_usd: float | None = None, max_tokens: int | None = None, file: Path | None = None):
        self._max_usd, self._max_tokens = max_usd, max_tokens
        self.spent = Usage()
        self._database = None if file is None else ReplyDatabase(file)
        if self._database is not None:
            columns = "(prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cost_usd REAL NOT NULL)"
            self._database.rows(f"CREATE TABLE IF NOT EXISTS spent {columns}")
            (row,) = self._database.rows(
                "SELECT total(prompt_tokens), total(completion_tokens), total(cost_usd) FROM spent"
            )
            self.spent = Usage(int(row[0]), int(row[1]), row[2])

    def spend(self, usage: Usage) -> None:
        """Count one call."""
        self.spent.add(usage)
        if self._database is not None:
            self._database.rows("INSERT INTO spent VALUES (?, ?, ?)", astuple(usage))

    @property
    def is_used_up(self) -> bool:
        """Whether a limit is reached."""
        tokens = self.spent.prompt_tokens + self.spent.completion_tokens
        return (self._max_usd is not None and self.spent.cost_usd >= self._max_usd - 1e-9) or (
            self._max_tokens is not None and tokens >= self._max_tokens
        )

    def __str__(self) -> str:
        """Return the sums spent, with their limits, for a progress line."""
        tokens = self.spent.prompt_tokens + self.spent.completion_tokens
        said = []
        if self.spent.cost_usd or self._max_usd is not None:
            said.append(f"{self.spent.cost_usd:.2f}{'' if self._max_usd is None else f' of {self._max_usd:.2f}'} USD")
        if not said or self._max_tokens is not None:
            said.append(f"{tokens:,}{'' if self._max_tokens is None else f' of {self._max_tokens:,}'} tokens")
        return ", ".join(said)

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
