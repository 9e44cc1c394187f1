"""Replies that were paid for, kept on disk by what was asked: never asked for, or paid for, twice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from synthesis.teacher.reply_database import ReplyDatabase


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
    """A reply cache in an SQLite file; every reply is on disk, with a digest, before it is used."""

    def __init__(self, path: Path):
        """Open the file, or begin it, and check every reply in it.

        Raises:
            ReplyFileError: it is damaged, another file, or cannot be written; so may the methods.
        """
        columns = (
            "(key TEXT PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT"
            " NULL, cost_usd REAL NOT NULL, digest TEXT) WITHOUT ROWID"
        )
        self._database = ReplyDatabase(path, {"replies": columns})

    async def get(self, key: str) -> CachedReply | None:
        """Return the reply to a question that was answered before."""
        rows = self._database.rows(
            "SELECT text, prompt_tokens, completion_tokens, cost_usd FROM replies WHERE key = ?", (key,)
        )
        return CachedReply(*rows[0]) if rows else None

    async def put(self, key: str, reply: CachedReply) -> None:
        """Keep a reply."""
        self._database.keep("replies", **(asdict(reply) | {"key": key, "cost_usd": float(reply.cost_usd)}))

    async def close(self) -> None:
        """Close the file."""
        self._database.close()
