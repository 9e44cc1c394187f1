"""A stage of synthesis: many items worked on side by side, each journalled when it is finished, in order at the end.

The journal makes a stage resumable: `kill -9` loses at most the items in flight, and because every item's outcome
depends on the item and its seed alone, a resumed run gives the same bytes as an undisturbed one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TextIO, TypeVar

from tqdm import tqdm

from synthesis.destination import records_of, require_destination
from synthesis.errors import SynthesisError
from synthesis.fingerprint import Fingerprint, MadeOtherwise, require_same
from synthesis.record_io import read_card
from synthesis.records import JsonValue

Item = TypeVar("Item")
Result = TypeVar("Result")

_REASONS_IN_FULL: Final = 3


class Rejected(SynthesisError):
    """An item is not kept. `reason` is a short fixed phrase that is counted; `detail` says what was found."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class NothingKept(SynthesisError):
    """A stage kept nothing of what it read; the message has the first reasons in full."""


class JournalError(SynthesisError):
    """The journal of a stage is damaged, or cannot be written; the message names it and says what to do."""


@dataclass
class StageReport:
    """What a stage did with what it read; `read` = `kept` + the sum of `rejected`, or the stage lost something."""

    stage: str
    read: int = 0
    kept: int = 0
    repaired: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    first_rejections: list[str] = field(default_factory=list)
    """The first few that differ, in full: reason and what was found."""
    out: str = ""
    seconds: float = 0.0
    already_complete: bool = False
    """Whether an earlier run with equal config did it, and this one only says so."""

    def reject(self, rejected: Rejected) -> None:
        """Count an item that is not kept."""
        self.rejected[rejected.reason] += 1
        self._show(str(rejected))

    def add_rejections(self, later: StageReport) -> None:
        """Count what a later stage of the same work did not keep."""
        self.rejected += later.rejected
        for text in later.first_rejections:
            self._show(text)

    def _show(self, text: str) -> None:
        if len(self.first_rejections) < _REASONS_IN_FULL and text not in self.first_rejections:
            self.first_rejections.append(text)

    def require_kept(self, expected: str) -> None:
        """Raise NothingKept, with the first reasons in full, when nothing was kept.

        >>> report = StageReport("tasks", read=1)
        >>> report.reject(Rejected("unusable reply", "not JSON"))
        >>> report.require_kept("a task")
        Traceback (most recent call last):
        synthesis.stage.NothingKept: expected a task, found none in 1 read (unusable reply 1); unusable reply: not JSON
        """
        if not self.kept:
            raise NothingKept(self.nothing_kept(expected))

    def nothing_kept(self, expected: str) -> str:
        """Return what is said of a stage that kept nothing."""
        found = f"none in {self.read} read" + (f" ({self._reasons()})" if self.rejected else "")
        return "; ".join([f"expected {expected}, found {found}", *self.first_rejections])

    def _reasons(self) -> str:
        return ", ".join(f"{reason} {count}" for reason, count in sorted(self.rejected.items()))

    def closing_line(self) -> str:
        """Return the one line a stage ends with.

        >>> StageReport("chains", read=5, kept=3, rejected=Counter({"incoherent": 2}), out="runs/x").closing_line()
        'chains: kept 3 of 5, rejected 2 (incoherent 2) -> runs/x [0.0 s]'
        """
        rejected = f", rejected {self.rejected.total()}" + (f" ({self._reasons()})" if self.rejected else "")
        repaired = f", repaired {self.repaired}" if self.repaired else ""
        where = f" -> {self.out}" if self.out else ""
        complete = "already complete, " if self.already_complete else ""
        return (
            f"{self.stage}: {complete}kept {self.kept} of {self.read}{repaired}{rejected}{where} [{self.seconds:.1f} s]"
        )

    def json_line(self) -> str:
        """Return the machine-readable last line of `astra synthesize … --json`."""
        return json.dumps(
            {
                "stage": self.stage,
                "read": self.read,
                "kept": self.kept,
                "repaired": self.repaired,
                "rejected": dict(sorted(self.rejected.items())),
                "out": self.out,
                "seconds": round(self.seconds, 3),
                **({"already_complete": True} if self.already_complete else {}),
            }
        )


def finished_report(stage: str, out: Path, kind: str, fingerprint: Fingerprint) -> StageReport | None:
    """Return what became of the synthesis whose records already lie in `out`; None where nothing lies there.

    Raises:
        DestinationRefused: something else lies there.
        MadeOtherwise: they were made with something else than `fingerprint` says.
    """
    require_destination(out, records_of(kind))
    if not (out / "dataset.json").is_file():
        return None
    card = read_card(out)
    if not card.made_with:
        raise MadeOtherwise(
            f"{out}: expected records that say what they were made with, found those of an older version or another "
            "program; name another `out`, or move these away"
        )
    require_same(out, card.made_with, fingerprint, advice="Name another `out`, or move these records away")
    return StageReport(
        stage, card.read, card.count, card.repaired, Counter(card.rejected), out=str(out), already_complete=True
    )


class Journal:
    """An SQLite file of finished items, each with its `result` or why it was `rejected`.

    It remembers what it is for. One that holds items of something else is refused and left as it is: they may have been
    paid for.
    """

    def __init__(self, path: Path, stage: str, fingerprint: Mapping[str, JsonValue]):
        """Open the journal of one stage, or begin it.

        Raises:
            MadeOtherwise: its items were made with something else than `fingerprint` says; or it is no journal.
            JournalError: it is damaged, or the disk is full or not writable; the same of `append`.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with _told_of(path):
            self._database = _opened(path, stage, fingerprint)

    def __contains__(self, item: int) -> bool:
        return self._database.execute("SELECT 1 FROM outcomes WHERE item = ?", (item,)).fetchone() is not None

    def append(self, item: int, outcome: dict[str, JsonValue]) -> None:
        """Write down the outcome of a finished item; it survives the death of this process."""
        with _told_of(self._path):
            self._database.execute(
                "INSERT INTO outcomes (item, outcome) VALUES (?, ?)", (item, json.dumps(outcome, ensure_ascii=False))
            )

    def read(self, item: int) -> dict[str, JsonValue]:
        """Return the outcome of a finished item; raises KeyError for one that is not."""
        row = self._database.execute("SELECT outcome FROM outcomes WHERE item = ?", (item,)).fetchone()
        if row is None:
            raise KeyError(item)
        return json.loads(row[0])

    def close(self) -> None:
        """Close the file; it stays on disk until its stage has written its records."""
        self._database.close()


@contextlib.contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """Say which file it was that SQLite could not work on."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise JournalError(
            f"cannot keep the journal of finished items {path}: {error}; make room or give rights and run the same "
            "command again, or, if the file is damaged, take it away"
        ) from error


def _opened(path: Path, stage: str, fingerprint: Mapping[str, JsonValue]) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    try:
        _require_purpose(database, path, stage, fingerprint)
    except BaseException:
        database.close()
        raise
    return database


def _require_purpose(
    database: sqlite3.Connection, path: Path, stage: str, fingerprint: Mapping[str, JsonValue]
) -> None:
    afresh = "To start afresh, name another `out`, or delete the journals: this file, and those of its kind beside it"
    try:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise MadeOtherwise(f"{path}: expected a journal of finished work, found another file ({error})") from error
    if tables and not {"purpose", "outcomes"} <= tables:
        raise MadeOtherwise(f"{path}: expected a journal of finished work, found another database. {afresh}")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("CREATE TABLE IF NOT EXISTS purpose (text TEXT)")
    database.execute("CREATE TABLE IF NOT EXISTS outcomes (item INTEGER UNIQUE NOT NULL, outcome TEXT NOT NULL)")
    purpose = {"stage": stage, "fingerprint": dict(fingerprint)}
    row = database.execute("SELECT text FROM purpose").fetchone()
    if row is not None and database.execute("SELECT 1 FROM outcomes").fetchone() is not None:
        try:
            found = json.loads(row[0])
        except ValueError:
            found = {}
        if found.get("stage") != stage:
            raise MadeOtherwise(f"{path}: expected a journal of {stage!r}, found that of another version. {afresh}")
        require_same(path, found["fingerprint"], fingerprint, advice=afresh)
        return
    database.execute("BEGIN")
    database.execute("DELETE FROM purpose")
    database.execute("INSERT INTO purpose VALUES (?)", (json.dumps(purpose),))
    database.execute("COMMIT")


@dataclass(frozen=True)
class StageResults(Generic[Item]):
    """The outcomes of a stage, read from its journal in the order of the items."""

    journal: Journal
    count: int

    def __iter__(self) -> Iterator[JsonValue]:
        for item in range(self.count):
            outcome = self.journal.read(item)
            if "result" in outcome:
                yield outcome["result"]


async def all_in_order(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Await all side by side; where some fail, raise the first failure in the order given, whichever came first.

    That keeps the reason of a rejection the same from run to run.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    results: list[Result] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def run_stage(
    report: StageReport,
    items: Sequence[Item],
    work: Callable[[Item], Awaitable[JsonValue]],
    *,
    journal: Journal,
    concurrency: int,
    progress: TextIO | None = None,
) -> StageResults[Item]:
    """Work on every item that the journal does not hold yet, at most `concurrency` at once; fill in the report.

    `work` returns a JSON value, or raises `Rejected`; any other exception stops the stage when the items in flight have
    been cancelled, and what was finished stays in the journal. `progress` is standard error unless told otherwise.
    """
    started, progress = time.monotonic(), progress or sys.stderr
    todo = (index for index in range(len(items)) if index not in journal)
    bar = tqdm(total=len(items), desc=report.stage, file=progress, disable=not progress.isatty(), leave=False)
    bar.update(sum(index in journal for index in range(len(items))))

    async def worker() -> None:
        for index in todo:
            try:
                outcome: dict[str, JsonValue] = {"result": await work(items[index])}
            except Rejected as rejected:
                outcome = {"rejected": rejected.reason, "detail": rejected.detail}
            journal.append(index, outcome)
            bar.update()

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(max(1, concurrency)):
                workers.create_task(worker())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        bar.close()
    report.read += len(items)
    for index in range(len(items)):
        outcome = journal.read(index)
        if "result" in outcome:
            report.kept += 1
        else:
            report.reject(Rejected(outcome["rejected"], outcome["detail"]))
    report.seconds += time.monotonic() - started
    return StageResults(journal, len(items))
