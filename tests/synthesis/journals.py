"""The finished items of a journal, also while another process writes it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path


def finished_items(journal: Path) -> list[int]:
    """Return the items that a journal holds, in the order of their completion."""
    try:
        with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
            return [item for (item,) in database.execute("SELECT item FROM outcomes ORDER BY rowid")]
    except sqlite3.OperationalError:  # not there yet, or without its table yet
        return []


def num_finished(journals: Iterable[Path]) -> int:
    """Return how many items several journals hold."""
    return sum(len(finished_items(journal)) for journal in journals)
