"""The SQLite file of a teacher's paid replies by question, and of the sum spent.

No question in it is asked or paid for twice. Each fault of the file is told in one line.

Decided: docs/decisions/synthesis.md, “A record holds its digest, and `records verify` replays everything it can”.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

from synthesis.errors import SynthesisError
from synthesis.run.fingerprint import digest_in_sql, row_digest
from synthesis.teacher.usage import Usage

_DIGESTED: Final = ("text", "key", "prompt_tokens", "completion_tokens", "cost_usd")
_COLUMNS: Final = "prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cost_usd REAL NOT NULL"
_SCHEMA: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    f"CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, {_COLUMNS}, digest TEXT)"
    " WITHOUT ROWID",
    f"CREATE TABLE IF NOT EXISTS spent ({_COLUMNS})",
)
_TABLES: Final = frozenset({"replies", "damaged_replies", "spent"})


class ReplyFileError(SynthesisError):
    """The file of kept replies is damaged, another file, or cannot be written; the message names it."""


@dataclass(frozen=True)
class CachedReply:
    """A reply that was accepted, and its cost."""

    text: str
    usage: Usage


class ReplyFile:
    """The replies of a file; a killed process loses nothing that it wrote, a power cut perhaps the last rows."""

    def __init__(self, path: Path):
        """Open the file, or begin it, and check the digest of each reply in it.

        Raises:
            ReplyFileError: the file, or a reply in it, is damaged; the file is of another kind or an older version, or
                cannot be written. The methods raise it too.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error
        try:
            found = {name for (name,) in self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if others := found - _TABLES:
                raise ReplyFileError(
                    f"{path}: not a file of a teacher's replies, but a database with the table {min(others)!r}; name "
                    "another file as teacher.cache"
                )
            columns = {row[1] for row in self._rows("PRAGMA table_info(replies)")}
            if columns and "digest" not in columns:
                raise ReplyFileError(
                    f"{path}: the replies of an older version, which have no digests; move the file away, or name "
                    "another file as teacher.cache: its replies are then asked and paid for again"
                )
            for statement in _SCHEMA:
                self._rows(statement)
            self._require_undamaged()
        except BaseException:
            self._connection.close()
            raise

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, a transaction of its own, and return its rows."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> ReplyFileError:
        return ReplyFileError(
            f"cannot keep the teacher's replies in {self.path}: {error}; make room or give rights and run the same "
            "command again, or, if the file is damaged, move it away: its replies are then asked and paid for again"
        )

    def _require_undamaged(self) -> None:
        """Set aside the replies that do not have their digest, and raise an error if there are any."""
        damaged = f"FROM replies WHERE digest IS NOT {digest_in_sql(self._connection, _DIGESTED)}"
        num_damaged, num_rows = (self._rows(f"SELECT count(*) {of}")[0][0] for of in (damaged, "FROM replies"))
        if not num_damaged:
            return
        with self._connection:
            self._rows("BEGIN IMMEDIATE")
            self._rows("CREATE TABLE IF NOT EXISTS damaged_replies AS SELECT * FROM replies WHERE 0")
            self._rows(f"INSERT INTO damaged_replies SELECT * {damaged}")
            self._rows(f"DELETE {damaged}")
        raise ReplyFileError(
            f"{self.path}: {num_damaged} of {num_rows} replies are damaged; none of them is used, and they now lie in "
            "its table damaged_replies; put back an undamaged copy of the file, or run the same command again to ask "
            "and pay for them anew"
        )

    async def get(self, key: str) -> CachedReply | None:
        """Return the reply to a question that was answered before."""
        rows = self._rows("SELECT text, prompt_tokens, completion_tokens, cost_usd FROM replies WHERE key = ?", (key,))
        return CachedReply(rows[0][0], Usage(*rows[0][1:])) if rows else None

    async def put(self, key: str, reply: CachedReply) -> None:
        """Keep a reply with its digest."""
        values = [reply.text, key, *astuple(reply.usage)]
        columns = ", ".join((*_DIGESTED, "digest"))
        self._rows(
            f"INSERT OR REPLACE INTO replies ({columns}) VALUES (?, ?, ?, ?, ?, ?)", [*values, row_digest(*values)]
        )

    def spent(self) -> Usage:
        """Return the sum of all runs that keep their replies here, calls whose replies were no use included."""
        (row,) = self._rows("SELECT total(prompt_tokens), total(completion_tokens), total(cost_usd) FROM spent")
        return Usage(int(row[0]), int(row[1]), row[2])

    def spend(self, usage: Usage) -> None:
        """Add one call to the sum."""
        self._rows("INSERT INTO spent VALUES (?, ?, ?)", astuple(usage))

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


class Budget:
    """Counts tokens and dollars against `max_tokens` and `max_usd`; in a file, the count outlives the process.

    >>> budget = Budget(max_usd=1.0)
    >>> budget.spend(Usage(1000, 200, 0.75)), budget.is_used_up, str(budget)
    (None, False, '0.75 of 1.00 USD')
    >>> budget.spend(Usage(1000, 200, 0.25)), budget.is_used_up
    (None, True)
    """

    def __init__(self, max_usd: float | None = None, max_tokens: int | None = None, file: ReplyFile | None = None):
        self._max_usd, self._max_tokens, self._file = max_usd, max_tokens, file
        self.spent = Usage() if file is None else file.spent()

    def spend(self, usage: Usage) -> None:
        """Count one call."""
        self.spent.add(usage)
        if self._file is not None:
            self._file.spend(usage)

    @property
    def _tokens(self) -> int:
        return self.spent.prompt_tokens + self.spent.completion_tokens

    @property
    def is_used_up(self) -> bool:
        """Whether a limit is reached."""
        return (self._max_usd is not None and self.spent.cost_usd >= self._max_usd - 1e-9) or (
            self._max_tokens is not None and self._tokens >= self._max_tokens
        )

    def __str__(self) -> str:
        """Return the sums spent, with their limits, for a progress line."""
        said = []
        if self.spent.cost_usd or self._max_usd is not None:
            said.append(f"{self.spent.cost_usd:.2f}{'' if self._max_usd is None else f' of {self._max_usd:.2f}'} USD")
        if not said or self._max_tokens is not None:
            limit = "" if self._max_tokens is None else f" of {self._max_tokens:,}"
            said.append(f"{self._tokens:,}{limit} tokens")
        return ", ".join(said)
