"""Replies that were paid for, kept on disk by what was asked: never asked for, or paid for, twice."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class CachedReply:
    """A reply that was accepted, and what it cost."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float


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


class ReplyFile:
    """A reply cache in an SQLite file; every reply is on disk before it is used."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # As in `track.journal`: a killed process loses no reply, a power cut perhaps the last ones.
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL,"
            " prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cost_usd REAL NOT NULL) WITHOUT ROWID"
        )

    async def get(self, key: str) -> CachedReply | None:
        """Return the reply to a question that was answered before."""
        row = self._database.execute(
            "SELECT text, prompt_tokens, completion_tokens, cost_usd FROM replies WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else CachedReply(*row)

    async def put(self, key: str, reply: CachedReply) -> None:
        """Keep a reply."""
        values = (key, reply.text, reply.prompt_tokens, reply.completion_tokens, reply.cost_usd)
        self._database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?)", values)

    async def close(self) -> None:
        """Close the file."""
        self._database.close()
