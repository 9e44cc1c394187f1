"""The SQLite file of replies that were paid for, by their question, and of the sum that was spent.

No question in it is asked or paid for twice. Each fault of the file is told in one line.

Decided: docs/decisions/synthesis.md, “A record holds its digest, and `records verify` replays everything it can”.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from synthesis.errors import SynthesisError
from synthesis.run.row_digests import digest_in_sql, row_digest
from synthesis.teacher.usage import Usage

_DIGESTED: Final = ("text", "key", "prompt_tokens", "completion_tokens", "cost_usd")
_TABLES: Final = frozenset({"replies", "damaged_replies", "spent"})
_EARLIER_TABLES: Final = frozenset({"batches", "batch_answers", "damaged_batches", "damaged_batch_answers"})
"""Tables that earlier versions wrote into the file; they are left alone."""


class ReplyFileError(SynthesisError):
    """The file of kept replies is damaged, another file, or cannot be written; the message names it."""


@dataclass(frozen=True)
class CachedReply:
    """A reply that was accepted, and its cost."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float

    @property
    def usage(self) -> Usage:
        """The tokens and the cost of the reply."""
        return Usage(self.prompt_tokens, self.completion_tokens, self.cost_usd)


class ReplyCache(Protocol):
    """Keeps accepted replies, on this machine or on another."""

    async def get(self, key: str) -> CachedReply | None:
        """Return the reply to a question that was answered before."""
        ...

    async def put(self, key: str, reply: CachedReply) -> None:
        """Keep a reply; it survives the death of this process."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


class ReplyDatabase:
    """One connection to the file; a killed process loses nothing that it wrote, a power cut perhaps the last rows."""

    def __init__(self, path: Path):
        """Open the file, or begin it.

        Raises:
            ReplyFileError: it is damaged or another file, or cannot be written.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._fault(error) from error
        try:
            found = {name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if others := found - _TABLES - _EARLIER_TABLES:
                raise ReplyFileError(
                    f"{path}: expected a file of a teacher's replies, found a database with the table "
                    f"{min(others)!r}; name another file as teacher.cache"
                )
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL"):
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
            return self.connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> ReplyFileError:
        return ReplyFileError(
            f"cannot keep the teacher's replies in {self.path}: {error}; make room or give rights and run the same "
            "command again, or, if the file is damaged, move it away: its replies are then asked and paid for again"
        )

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class ReplyFile:
    """A reply cache in the file; each reply is on disk, with a digest, before it is used."""

    def __init__(self, path: Path):
        """Open the file, or begin it, and check each reply in it.

        Raises:
            ReplyFileError: it, or a reply in it, is damaged; it is another file, or cannot be written. So may the
                methods.
        """
        self._database = ReplyDatabase(path)
        try:
            self._database.rows(
                "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER"
                " NOT NULL, completion_tokens INTEGER NOT NULL, cost_usd REAL NOT NULL, digest TEXT) WITHOUT ROWID"
            )
            self._require_undamaged()
        except BaseException:
            self._database.close()
            raise

    def _require_undamaged(self) -> None:
        """Set the replies aside whose digest is not theirs, and stop if there are any.

        Replies of a file from before there were digests get theirs now, if they are JSON.
        """
        digest = digest_in_sql(self._database.connection, _DIGESTED)
        if "digest" not in {name for _, name, *_ in self._database.rows("PRAGMA table_info(replies)")}:
            self._database.rows("ALTER TABLE replies ADD COLUMN digest TEXT")
            self._database.rows(f"UPDATE replies SET digest = {digest} WHERE json_valid(text)")
        damaged = f"FROM replies WHERE digest IS NOT {digest}"
        num_damaged, num_rows = (self._database.rows(f"SELECT count(*) {of}")[0][0] for of in (damaged, "FROM replies"))
        if not num_damaged:
            return
        with self._database.connection:
            self._database.rows("BEGIN IMMEDIATE")
            self._database.rows("CREATE TABLE IF NOT EXISTS damaged_replies AS SELECT * FROM replies WHERE 0")
            self._database.rows(f"INSERT INTO damaged_replies SELECT * {damaged}")
            self._database.rows(f"DELETE {damaged}")
        raise ReplyFileError(
            f"{self._database.path}: {num_damaged} of {num_rows} replies are damaged; none of them is used, and they "
            "now lie in its table damaged_replies; put back an undamaged copy of the file, or run the same command "
            "again to ask and pay for them anew"
        )

    async def get(self, key: str) -> CachedReply | None:
        """Return the reply to a question that was answered before."""
        rows = self._database.rows(
            "SELECT text, prompt_tokens, completion_tokens, cost_usd FROM replies WHERE key = ?", (key,)
        )
        return CachedReply(*rows[0]) if rows else None

    async def put(self, key: str, reply: CachedReply) -> None:
        """Keep a reply with its digest."""
        row = asdict(reply) | {"key": key, "cost_usd": float(reply.cost_usd)}
        values = [row[name] for name in _DIGESTED]
        columns = ", ".join((*_DIGESTED, "digest"))
        self._database.rows(
            f"INSERT OR REPLACE INTO replies ({columns}) VALUES (?, ?, ?, ?, ?, ?)", [*values, row_digest(*values)]
        )

    async def close(self) -> None:
        """Close the file."""
        self._database.close()
