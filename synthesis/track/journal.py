"""The journal of a stage: items are worked on side by side, and each is written down when it ends.

The journal makes a stage resumable: `kill -9` loses at most the items in flight, and because every item's outcome
depends on the item and its seed alone, a resumed run gives the same bytes as an undisturbed one.

Decided: docs/decisions/synthesis.md, “A record holds its digest, and `records verify` replays everything it can”.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

from tqdm import tqdm

from synthesis.errors import SynthesisError
from synthesis.records import JsonValue
from synthesis.run.fingerprint import MadeOtherwise, digest_in_sql, require_same, row_digest
from synthesis.stage import Rejected, StageReport, noted_second_tries

Item = TypeVar("Item")


class JournalError(SynthesisError):
    """The journal of a stage is damaged, or cannot be written; the message names the file and the remedy."""


class Journal:
    """An SQLite file of finished items, each with its `result` or the reason why it was `rejected`.

    It holds the fingerprint of its items. If that is another one than a run's, the journal is refused and left as it
    is: its items may have been paid for. Any method raises a `JournalError` if the file is damaged or not writable.
    """

    def __init__(self, path: Path, stage: str, fingerprint: Mapping[str, JsonValue]):
        """Open the journal of one stage, or begin it.

        Raises:
            MadeOtherwise: its items have another fingerprint; or it is no journal.
            JournalError: it, or an item in it, is damaged, or the disk is full or not writable.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with self._faults_told():
            self._database = sqlite3.connect(path, isolation_level=None)  # autocommit: an item is a transaction
            try:
                self._require_purpose(stage, fingerprint)
            except BaseException:
                self._database.close()
                raise

    def _require_purpose(self, stage: str, fingerprint: Mapping[str, JsonValue]) -> None:
        path, database = self._path, self._database
        afresh = (
            "To start afresh, name another `out`, or delete the journals: this file, and those of its kind beside it"
        )
        try:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.DatabaseError as error:
            raise MadeOtherwise(f"{path}: not a journal of finished work ({error}). {afresh}") from error
        if tables and not {"purpose", "outcomes"} <= tables:
            raise MadeOtherwise(f"{path}: not a journal of finished work, but another database. {afresh}")
        # With WAL, NORMAL waits for the disk at checkpoints alone: a power cut may take the last items, a kill none.
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        with database:  # both tables or none: a kill in between would leave a file that is no journal
            outcomes = "outcomes (item INTEGER UNIQUE NOT NULL, outcome TEXT NOT NULL, digest TEXT)"
            database.execute("BEGIN")
            database.execute("CREATE TABLE IF NOT EXISTS purpose (text TEXT)")
            database.execute(f"CREATE TABLE IF NOT EXISTS {outcomes}")
        (num_items,) = database.execute("SELECT count(*) FROM outcomes").fetchone()
        if num_items:
            self._require_same(stage, fingerprint, afresh)
        if "digest" not in {row[1] for row in database.execute("PRAGMA table_info(outcomes)")}:
            raise MadeOtherwise(f"{path}: a journal of an older version, whose items have no digests. {afresh}")
        if not num_items:  # it has cost nothing, so it is taken over, even if it was another stage's
            purpose = json.dumps({"stage": stage, "fingerprint": dict(fingerprint)})
            with database:
                database.execute("BEGIN")
                database.execute("DELETE FROM purpose")
                database.execute("INSERT INTO purpose VALUES (?)", (purpose,))
            return
        damaged = f"digest IS NOT {digest_in_sql(database, ('item', 'outcome'))}"
        (num_damaged,) = database.execute(f"SELECT count(*) FROM outcomes WHERE {damaged}").fetchone()
        if num_damaged:
            raise JournalError(
                f"{path}: {num_damaged} of {num_items} finished items are damaged; put back an undamaged copy of the "
                f"journal. {afresh}; items whose replies are kept cost nothing to make again"
            )

    def _require_same(self, stage: str, fingerprint: Mapping[str, JsonValue], afresh: str) -> None:
        row = self._database.execute("SELECT text FROM purpose").fetchone()
        try:
            found = json.loads(row[0]) if row else {}
        except ValueError:
            found = {}
        if found.get("stage") != stage:
            raise MadeOtherwise(f"{self._path}: not a journal of {stage!r}, but that of another version. {afresh}")
        require_same(self._path, found.get("fingerprint", {}), fingerprint, advice=afresh)

    @contextlib.contextmanager
    def _faults_told(self) -> Iterator[None]:
        """Turn a fault of SQLite inside the block into one that names the file."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise JournalError(
                f"cannot keep the journal of finished items {self._path}: {error}; make room or give rights and run "
                "the same command again, or, if the file is damaged, take it away"
            ) from error

    def __contains__(self, item: int) -> bool:
        with self._faults_told():
            return self._database.execute("SELECT 1 FROM outcomes WHERE item = ?", (item,)).fetchone() is not None

    def append(self, item: int, outcome: dict[str, JsonValue]) -> None:
        """Write down the outcome of a finished item; it survives the death of this process."""
        with self._faults_told():
            values = (item, json.dumps(outcome, ensure_ascii=False))
            self._database.execute("INSERT INTO outcomes VALUES (?, ?, ?)", (*values, row_digest(*values)))

    def read(self, item: int) -> dict[str, JsonValue]:
        """Return the outcome of a finished item.

        Raises:
            KeyError: the item is not finished.
        """
        with self._faults_told():
            row = self._database.execute("SELECT outcome FROM outcomes WHERE item = ?", (item,)).fetchone()
        if row is None:
            raise KeyError(item)
        return json.loads(row[0])

    def results(self, count: int) -> Iterator[JsonValue]:
        """Yield the results of the items below `count` that were not rejected, in order."""
        for item in range(count):
            outcome = self.read(item)
            if "result" in outcome:
                yield outcome["result"]

    def rejected(self) -> Iterator[tuple[int, dict[str, JsonValue]]]:
        """Yield each finished item that was rejected, in order, with its outcome; results are not even parsed."""
        return ((item, outcome) for item, outcome in self.notable() if "result" not in outcome)

    def notable(self) -> Iterator[tuple[int, dict[str, JsonValue]]]:
        """Yield, in order, each finished item that was rejected or needed a second try, with its outcome."""
        with self._faults_told():
            # If `result` is the only key, the text begins with it.
            rows = self._database.execute(
                """SELECT item, outcome FROM outcomes WHERE outcome NOT GLOB '{"result":*' ORDER BY item"""
            )
            for item, outcome in rows:
                yield item, json.loads(outcome)

    def num_finished(self, below: int) -> int:
        """Return the number of finished items among those below an index."""
        with self._faults_told():
            return self._database.execute("SELECT count(*) FROM outcomes WHERE item < ?", (below,)).fetchone()[0]

    def close(self) -> None:
        """Close the file; it stays on disk until its stage has written its records."""
        self._database.close()


async def run_stage(
    report: StageReport,
    items: Sequence[Item],
    work: Callable[[Item], Awaitable[JsonValue]],
    *,
    journal: Journal,
    concurrency: int,
    progress: TextIO | None = None,
    cost: Callable[[], str] = str,
    first: Sequence[int] = (),
) -> None:
    """Work on every item that the journal does not hold yet, at most `concurrency` at once; fill in the report.

    The items with the indices in `first` are finished before any other is begun, since others read their outcomes.

    `work` returns a JSON value, or raises `Rejected`; any other exception stops the stage when the items in flight have
    been cancelled; finished items stay in the journal. `progress` is standard error by default; its line ends with the
    text of `cost`.

    Raises:
        Exception: the first one that `work` raised, except `Rejected`.
        JournalError: an outcome cannot be written down.
    """
    started, progress = time.monotonic(), progress or sys.stderr
    bar = tqdm(total=len(items), desc=report.stage, file=progress, disable=not progress.isatty(), leave=False)
    bar.update(journal.num_finished(len(items)))

    async def worker(todo: Iterator[int]) -> None:
        for index in todo:
            with noted_second_tries() as tries:
                try:
                    outcome: dict[str, JsonValue] = {"result": await work(items[index])}
                except Rejected as rejected:
                    outcome = {"rejected": rejected.reason, "detail": rejected.detail}
                    outcome |= {"made": rejected.made} if rejected.made else {}
            if tries:
                outcome = {"second_tries": tries, **outcome}
            journal.append(index, outcome)
            bar.set_postfix_str(cost(), refresh=False)
            bar.update()

    try:
        for indices in (first, range(len(items))):
            todo = (index for index in indices if index not in journal)  # one for all workers: each takes the next
            async with asyncio.TaskGroup() as workers:
                for _ in range(max(1, concurrency)):
                    workers.create_task(worker(todo))
    except BaseExceptionGroup as failed:  # the first one stopped the others
        raise failed.exceptions[0] from None
    finally:
        bar.close()
    # Counted from the journal, in order: a resumed run reports the same as one that was never stopped.
    report.read += len(items)
    report.kept += len(items)
    for index, outcome in journal.notable():
        if index < len(items):
            report.add_second_tries(outcome.get("second_tries", ()))
            if "result" not in outcome:
                report.kept -= 1
                report.reject(Rejected(outcome["rejected"], outcome["detail"]))
    report.seconds += time.monotonic() - started
