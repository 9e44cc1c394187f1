"""Batches under way, and what came back in them, beside the replies: a run that was killed asks for neither again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from synthesis.records import JsonValue
from synthesis.teacher.reply_database import ReplyDatabase


class OpenBatch(NamedTuple):
    """A batch that was sent, or was about to be."""

    mark: str
    """What it is found by where its id was lost."""
    id: str | None
    questions: tuple[str, ...]
    begun: float
    """Unix time."""


class BatchTable:
    """The batches of one address and key in the file of replies; every method may raise `ReplyFileError`.

    What came back is shared by all keys of the address: it is paid for, whoever paid.
    """

    def __init__(self, path: Path, base_url: str, api_key_env: str):
        """`api_key_env` names the variable that holds the key, which itself is written nowhere."""
        self._base_url, self._api_key_env = base_url, api_key_env
        self._database = ReplyDatabase(
            path,
            "CREATE TABLE IF NOT EXISTS batches (mark TEXT PRIMARY KEY, id TEXT, base_url TEXT NOT NULL,"
            " questions TEXT NOT NULL, begun REAL NOT NULL, api_key_env TEXT)",
            "CREATE TABLE IF NOT EXISTS batch_answers (base_url TEXT NOT NULL, question TEXT NOT NULL, body TEXT NOT"
            " NULL, is_taken INTEGER NOT NULL, PRIMARY KEY (base_url, question)) WITHOUT ROWID",
        )
        if "api_key_env" not in {name for _, name, *_ in self._database.rows("PRAGMA table_info(batches)")}:
            self._database.rows("ALTER TABLE batches ADD COLUMN api_key_env TEXT")  # a file of before keys were named

    def open_batches(self) -> list[OpenBatch]:
        """Return the batches whose answers have not come yet, the oldest first; not those of another key."""
        rows = self._database.rows(
            "SELECT mark, id, questions, begun FROM batches WHERE base_url = ? AND coalesce(api_key_env, ?) = ?"
            " ORDER BY begun, mark",
            (self._base_url, self._api_key_env, self._api_key_env),
        )
        return [OpenBatch(mark, id_, tuple(json.loads(questions)), begun) for mark, id_, questions, begun in rows]

    def begin(self, mark: str, questions: Sequence[str]) -> OpenBatch:
        """Write down a batch that is about to be sent."""
        batch = OpenBatch(mark, None, tuple(questions), time.time())
        self._database.rows(
            "INSERT INTO batches (mark, base_url, questions, begun, api_key_env) VALUES (?, ?, ?, ?, ?)",
            (mark, self._base_url, json.dumps(batch.questions), batch.begun, self._api_key_env),
        )
        return batch

    def name(self, mark: str, batch_id: str) -> None:
        """Write down the id that the endpoint gave a batch."""
        self._database.rows("UPDATE batches SET id = ? WHERE mark = ?", (batch_id, mark))

    def finish(self, mark: str, answers: Mapping[str, JsonValue]) -> None:
        """Keep what a batch answered, by question, and forget the batch: both, or neither."""
        self._database.rows("BEGIN IMMEDIATE")
        try:
            for question, body in answers.items():
                self._database.rows(
                    "INSERT OR REPLACE INTO batch_answers VALUES (?, ?, ?, 0)",
                    (self._base_url, question, json.dumps(body)),  # as ASCII: SQLite takes no half of a character
                )
            self._database.rows("DELETE FROM batches WHERE mark = ?", (mark,))
            self._database.rows("COMMIT")
        except BaseException:
            self._database.rows("ROLLBACK")
            raise

    def take(self, question: str) -> tuple[JsonValue, bool] | None:
        """Return what was answered to a question, and whether it is taken for the first time; None if nothing was."""
        rows = self._database.rows(
            "SELECT body, is_taken FROM batch_answers WHERE base_url = ? AND question = ?", (self._base_url, question)
        )
        if not rows:
            return None
        ((body, is_taken),) = rows
        if not is_taken:
            self._database.rows(
                "UPDATE batch_answers SET is_taken = 1 WHERE base_url = ? AND question = ?", (self._base_url, question)
            )
        return json.loads(body), not is_taken

    def close(self) -> None:
        """Close the file."""
        self._database.close()
