"""The report of a stage: items that were kept, and rejections by reason."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from synthesis.errors import SynthesisError
from synthesis.records import JsonObject

SecondTry = tuple[str, bool]
"""Reason for which a reply was rejected and asked for once more, and whether the second reply broke no rule."""

_noted: ContextVar[list[SecondTry] | None] = ContextVar("second tries", default=None)


@contextmanager
def noted_second_tries() -> Iterator[list[SecondTry]]:
    """Collect the second tries of the work inside the block, and of the tasks that it starts.

    >>> with noted_second_tries() as tries:
    ...     note_second_try("wrong hops", True)
    >>> tries
    [('wrong hops', True)]
    """
    tries: list[SecondTry] = []
    token = _noted.set(tries)
    try:
        yield tries
    finally:
        _noted.reset(token)


def note_second_try(reason: str, is_accepted: bool) -> None:
    """Note a second try for the work at hand, if its second tries are collected."""
    if (noted := _noted.get()) is not None:
        noted.append((reason, is_accepted))


Result = TypeVar("Result")

_REASONS_IN_FULL: Final = 3


class Rejected(SynthesisError):
    """An item is not kept. `reason` is a short fixed phrase that is counted; `detail` describes the fault.

    `made` is the unfinished item as JSON: the teacher was paid for it, so it is kept with the reason.
    """

    def __init__(self, reason: str, detail: str = "", made: JsonObject | None = None):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.made = made or {}

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class NothingKept(SynthesisError):
    """A stage kept none of the items that it read; the message has the first reasons in full."""


@dataclass
class StageReport:
    """The outcomes of a stage's items; `read` = `kept` + the sum of `rejected`, or the stage lost an item."""

    stage: str
    read: int = 0
    kept: int = 0
    repaired: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    first_rejections: list[str] = field(default_factory=list)
    """The first few different rejections in full: reason and detail."""
    out: str = ""
    seconds: float = 0.0
    asked_again: Counter[str] = field(default_factory=Counter)
    """Number of replies that broke a rule of structure and were asked for once more, by reason."""
    mended: Counter[str] = field(default_factory=Counter)
    """Number of these replies whose second try broke no rule, by reason."""
    usage: JsonObject = field(default_factory=dict)
    """Calls, tokens and cost of a language model by kind of question; empty without one."""
    made_by: str = ""
    """The notice on the data, if the embedded teacher made it."""
    already_complete: bool = False
    """Whether an earlier run with an equal config did the work, and this one only reports it."""

    def reject(self, rejected: Rejected) -> None:
        """Count an item that is not kept."""
        self.rejected[rejected.reason] += 1
        self._show(str(rejected))

    def add_second_tries(self, tries: Iterable[SecondTry]) -> None:
        """Count replies that were asked for once more."""
        for reason, is_accepted in tries:
            self.asked_again[reason] += 1
            self.mended[reason] += is_accepted

    def add_second_tries_of(self, other: StageReport) -> None:
        """Count the second tries of another stage of the same work."""
        self.asked_again += other.asked_again
        self.mended += other.mended

    def add_rejections(self, later: StageReport) -> None:
        """Count the rejections and second tries of a later stage of the same work."""
        self.add_second_tries_of(later)
        self.rejected += later.rejected
        for text in later.first_rejections:
            self._show(text)

    def _show(self, text: str) -> None:
        if len(self.first_rejections) < _REASONS_IN_FULL and text not in self.first_rejections:
            self.first_rejections.append(text)

    def require_kept(self, kind: str) -> None:
        """Require that an item was kept.

        Raises:
            NothingKept: none was; the message has the first reasons in full.

        >>> report = StageReport("tasks", read=1)
        >>> report.reject(Rejected("unusable reply", "not JSON"))
        >>> report.require_kept("task")
        Traceback (most recent call last):
        synthesis.stage.NothingKept: no task was kept of 1 read (unusable reply 1); unusable reply: not JSON
        """
        if not self.kept:
            raise NothingKept(self.nothing_kept(kind))

    def nothing_kept(self, kind: str) -> str:
        """Return the message for a stage that kept no item of a kind: the number read, and the reasons."""
        return "; ".join([f"no {kind} was kept of {self.read} read{self._reasons()}", *self.first_rejections])

    def _reasons(self) -> str:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.rejected.items()))
        return f" ({reasons})" if reasons else ""

    def closing_line(self) -> str:
        """Return the one line a stage ends with.

        >>> StageReport("chains", read=5, kept=3, rejected=Counter({"incoherent": 2}), out="runs/x").closing_line()
        'chains: kept 3 of 5, rejected 2 (incoherent 2) -> runs/x [0.0 s]'
        """
        rejected = f", rejected {self.rejected.total()}{self._reasons()}"
        repaired = f", repaired {self.repaired}" if self.repaired else ""
        again = f", asked again {self.asked_again.total()}, {self.mended.total()} mended" if self.asked_again else ""
        where = f" -> {self.out}" if self.out else ""
        complete = "already complete, " if self.already_complete else ""
        became = f"kept {self.kept} of {self.read}{repaired}{rejected}{again}{where}"
        notice = f"; {self.made_by}" if self.made_by else ""
        return f"{self.stage}: {complete}{became} [{self.seconds:.1f} s]{notice}"

    def json_line(self) -> str:
        """Return the machine-readable last line of `astra synthesize … --json`."""
        always = {name: getattr(self, name) for name in ("stage", "read", "kept", "repaired")}
        always |= {"rejected": dict(sorted(self.rejected.items())), "out": self.out, "seconds": round(self.seconds, 3)}
        if_any = {
            "asked_again": {
                reason: {"asked": asked, "mended": self.mended[reason]}
                for reason, asked in sorted(self.asked_again.items())
            },
            "usage": self.usage,
            "made_by": self.made_by,
            "already_complete": self.already_complete,
        }
        return json.dumps(always | {name: value for name, value in if_any.items() if value})


async def all_in_order(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Await all side by side and return their results in the order given.

    All are awaited even where one fails, so that the reason of a rejection is the same from run to run.

    Raises:
        BaseException: the first failure in the order given, even if a later one came sooner.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    results: list[Result] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results
