"""Tokens and money that answers cost, metered per piece of work and per kind of question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field

from synthesis.records import JsonObject


@dataclass
class Usage:
    """Tokens and cost of the replies that one piece of work rests on, those from the cache included."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, reply: Usage) -> None:
        """Count the tokens and the cost of one reply."""
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.cost_usd += reply.cost_usd


_current: ContextVar[Usage | None] = ContextVar("usage", default=None)


@contextmanager
def metered_usage() -> Iterator[Usage]:
    """Meter every reply that is asked for inside the block, by this task and the tasks it starts."""
    # Tasks that are started inside copy the context, and with it the reference to this one object.
    usage = Usage()
    token = _current.set(usage)
    try:
        yield usage
    finally:
        _current.reset(token)


def record_usage(reply: Usage) -> None:
    """Count a reply for the work that asked, if it is metered."""
    if (usage := _current.get()) is not None:
        usage.add(reply)


@dataclass
class QuestionCosts:
    """Costs of one kind of question in this run."""

    calls: int = 0
    cached: int = 0
    retries: int = 0
    repairs: int = 0
    bad_replies: int = 0
    cut_off: int = 0
    """Number of replies that were cut off at the token limit; each is asked for once more with a larger limit."""
    seconds: float = 0.0
    mended: Counter[str] = field(default_factory=Counter)
    """Number of mended faults of form in replies that were read all the same, by kind."""
    dropped_fields: set[str] = field(default_factory=set)
    """Fields of calls that the endpoint does not take; calls go on without them."""
    usage: Usage = field(default_factory=Usage)

    def row(self) -> tuple[str, ...]:
        """Return the figures of a line of the ledger."""
        numbers = (self.calls, self.cached, self.retries, self.repairs, self.cut_off, self.bad_replies)
        tokens = (self.usage.prompt_tokens, self.usage.completion_tokens)
        mean = self.seconds / self.calls if self.calls else 0.0
        return (*map(str, numbers + tokens), f"{self.usage.cost_usd:.4f}", f"{mean:.2f}")


@dataclass
class Ledger:
    """Costs by kind of question."""

    questions: dict[str, QuestionCosts] = field(default_factory=dict)

    def of(self, question: str) -> QuestionCosts:
        """Return the costs of one kind of question, to add to."""
        return self.questions.setdefault(question, QuestionCosts())

    def table(self) -> str:
        """Return the ledger for a person to read, one line per kind of question.

        >>> ledger = Ledger()
        >>> ledger.of("WriteTask").calls = 2
        >>> print(ledger.table())
        question   calls  cached  retries  repairs  cut  bad  prompt tokens  completion tokens  USD     mean seconds
        WriteTask  2      0       0        0        0    0    0              0                  0.0000  0.00
        >>> ledger.of("WriteTask").mended["a fence"] += 1
        >>> ledger.table().splitlines()[-1]
        'read leniently: a fence 1'
        """
        head = ("question", "calls", "cached", "retries", "repairs", "cut", "bad", "prompt tokens", "completion tokens")
        rows: list[tuple[str, ...]] = [(*head, "USD", "mean seconds")]
        rows += [(name, *costs.row()) for name, costs in sorted(self.questions.items())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        if mended := sum((costs.mended for costs in self.questions.values()), Counter()):
            lines.append("read leniently: " + ", ".join(f"{kind} {count}" for kind, count in sorted(mended.items())))
        if dropped := sorted({name for costs in self.questions.values() for name in costs.dropped_fields}):
            lines.append(f"left out of the calls, for the endpoint does not take it: {', '.join(dropped)}")
        return "\n".join(lines)

    def summary(self) -> JsonObject:
        """Return the ledger for a program to read: the figures of the table by kind of question."""
        return {
            name: {**asdict(costs), "dropped_fields": sorted(costs.dropped_fields), "mended": dict(costs.mended)}
            for name, costs in sorted(self.questions.items())
        }


def cost_so_far(teacher: object) -> str:
    """Return the sums that a run has spent, for its progress line; empty for a teacher that costs nothing."""
    return str(getattr(teacher, "budget", ""))
