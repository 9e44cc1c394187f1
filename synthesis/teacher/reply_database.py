"""The SQLite file of what was paid for: replies, what was spent, batches under way. Every fault of it is one line.

Decided: docs/decisions/synthesis.md, “A record holds its digest, and `records verify` replays everything it can”.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from synthesis.errors import SynthesisError
from synthesis.run.row_digests import digest_in_sql, row_digest

_DIGESTED: Final = {
    "replies": ("text", "key", "prompt_tokens", "completion_tokens", "cost_usd"),
    "batch_answers": ("body", "base_url", "question"),
    "batches": ("questions", "mark", "base_url", "begun"),
}
"""The tables whose rows hold a digest, and the columns that it is taken of; the first is JSON."""
_TABLES: Final = frozenset({*_DIGESTED, *(f"damaged_{table}" for table in _DIGESTED), "spent"})


class ReplyFileError(SynthesisError):
    """The file of kept replies is damaged, another file, or cannot be written; the message names it."""


class ReplyDatabase:
    """One connection to the file; a killed process loses nothing that it wrote, a power cut perhaps the last rows."""

    def __init__(self, path: Path, tables: Mapping[str, str]):
        """Open the file, or begin it; `tables` are those of the caller, with their columns in SQL.

        Raises:
            ReplyFileError: it, or a row of these tables, is damaged; it is another file, or cannot be written.
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
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL"):
                self.rows(statement)
            for table, columns in tables.items():
                self.rows(f"CREATE TABLE IF NOT EXISTS {table} {columns}")
                if table in _DIGESTED:
                    self._require_undamaged(table)
        except BaseException:
            self.close()
            raise

    def _require_undamaged(self, table: str) -> None:
        """Set the rows aside whose digest is not theirs, and stop if there are any.

        Rows of a file from before there were digests get theirs now, if they are JSON.
        """
        digest = digest_in_sql(self._database, _DIGESTED[table])
        if "digest" not in {name for _, name, *_ in self.rows(f"PRAGMA table_info({table})")}:
            self.rows(f"ALTER TABLE {table} ADD COLUMN digest TEXT")
            self.rows(f"UPDATE {table} SET digest = {digest} WHERE json_valid({_DIGESTED[table][0]})")
        damaged = f"FROM {table} WHERE digest IS NOT {digest}"
        num_damaged, num_rows = (self.rows(f"SELECT count(*) {of}")[0][0] for of in (damaged, f"FROM {table}"))
        if not num_damaged:
            return
        with self._database:
            self.rows("BEGIN IMMEDIATE")
            self.rows(f"CREATE TABLE IF NOT EXISTS damaged_{table} AS SELECT * FROM {table} WHERE 0")
            self.rows(f"INSERT INTO damaged_{table} SELECT * {damaged}")
            self.rows(f"DELETE {damaged}")
        raise ReplyFileError(
            f"{self._path}: {num_damaged} of {num_rows} {table.replace('_', ' ')} are damaged; none of them is used, "
            f"and they now lie in its table damaged_{table}; put back an undamaged copy of the file, or run the same "
            "command again to ask and pay for them anew"
        )

    def keep(self, table: str, **row: Any) -> None:
        """Write a row with its digest."""
        row["digest"] = row_digest(*(row[name] for name in _DIGESTED[table]))
        places = ", ".join("?" * len(row))
        self.rows(f"INSERT OR REPLACE INTO {table} ({', '.join(row)}) VALUES ({places})", [*row.values()])

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
