"""A limit that ends a test which would go on for minutes: for time that must not grow faster than its input."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Never


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail a block that takes longer, at its next chance to handle a signal; allow many times the usual seconds."""

    def fail(*_: object) -> Never:
        raise AssertionError(f"expected an end within {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
