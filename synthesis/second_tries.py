"""Second tries: what a rule rejected and was asked for once more, noted by the work that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class SecondTry(NamedTuple):
    """One reply that was asked for again."""

    reason: str
    """Of the first one's rejection."""
    is_accepted: bool
    """Whether the second one broke no rule."""


_noted: ContextVar[list[SecondTry] | None] = ContextVar("second tries", default=None)


@contextmanager
def noted_second_tries() -> Iterator[list[SecondTry]]:
    """Collect the second tries of the work inside the block, and of the tasks that it starts.

    >>> with noted_second_tries() as tries:
    ...     note_second_tries([SecondTry("wrong hops", True)])
    >>> tries
    [SecondTry(reason='wrong hops', is_accepted=True)]
    """
    tries: list[SecondTry] = []
    token = _noted.set(tries)
    try:
        yield tries
    finally:
        _noted.reset(token)


def note_second_tries(tries: Iterable[SecondTry]) -> None:
    """Count second tries for the work at hand, if it is noted."""
    if (noted := _noted.get()) is not None:
        noted.extend(tries)
