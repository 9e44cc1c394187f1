"""The time in which at least one decoder of a device has had a call under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType


class CallClock:
    """Runs while it is entered, once or several times at once; several decoders may share it.

    >>> readings = iter([10.0, 11.0, 14.0, 20.0])
    >>> clock = CallClock(lambda: next(readings))
    >>> with clock:
    ...     with clock:  # another decoder's call, which adds nothing while the first one runs
    ...         pass
    >>> clock.seconds
    1.0
    >>> with clock:
    ...     pass
    >>> clock.seconds
    7.0
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        """Read the time from `now`, in seconds."""
        self._now, self._num_calls, self._since = now, 0, 0.0
        self.seconds = 0.0
        """Seconds of all calls that have ended."""

    def __enter__(self) -> None:
        if self._num_calls == 0:
            self._since = self._now()
        self._num_calls += 1

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._num_calls -= 1
        if self._num_calls == 0:
            self.seconds += self._now() - self._since
