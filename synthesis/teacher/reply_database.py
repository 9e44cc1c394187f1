"""The SQLite file of what was paid for: replies, what was spent, batches under way. Every fault of it is one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from synthesis.errors import SynthesisError

_TABLES: Final = frozenset({"replies", "spent", "batches", "batch_answers"})


class ReplyFileError(SynthesisError):
    """The file of kept replies is damaged, another file, or cannot be written; the message names it."""


class ReplyDatabase:
    """One connection to the file; a killed process loses nothing that it wrote, a power cut perhaps the last rows."""

    def __init__(self, path: Path, *tables: str):
        """Open the file, or begin it; `tables` are the statements that make what the caller keeps in it.

        Raises:
            ReplyFileError: it is damaged, another file, or cannot be written.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error
        try:
            found = {name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if found - _TABLES:
                raise ReplyFileError(
                    f"{path}: expected a file of a teacher's replies, found a database with the table "
                    f"{min(found - _TABLES)!r}; name another file as teacher.cache"
                )
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", *tables):
                self.rows(statement)
        except BaseException:
            self.close()
            raise

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows; each is a transaction of its own.

        Raises:
            ReplyFileError: SQLite could not.
        """
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> ReplyFileError:
        return ReplyFileError(
            f"cannot keep the teacher's replies in {self._path}: {error}; make room or give rights and run the same "
            "command again, or, if the file is damaged, move it away: what it holds is then asked and paid for again"
        )

    def close(self) -> None:
        """Close the connection."""
        self._database.close()
