"""The number of calls in flight: it grows while the endpoint keeps up, and halves at a 429."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from anyio import CapacityLimiter

_LATENCY_GROWTH: Final = 2.0
"""Multiple of the best latency so far, up to which latency counts as flat."""


class AdaptiveConcurrency:
    """Additive increase, multiplicative decrease; doubles per round trip until the endpoint first pushes back."""

    def __init__(self, *, start: int, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.limit = float(min(start, maximum))
        self._maximum = maximum
        self._clock = clock
        self._slots = CapacityLimiter(int(self.limit))
        self._is_probing = True
        self._best_seconds = float("inf")
        self._smoothed_seconds = 0.0
        self._last_cut = float("-inf")

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Return a place among the calls in flight; entering it waits for one."""
        return self._slots

    def succeeded(self, seconds: float) -> None:
        """Grow after a success, while latency is flat."""
        self._best_seconds = min(self._best_seconds, seconds)
        weight = 0.1 if self._smoothed_seconds else 1.0  # the first success is the average so far
        self._smoothed_seconds += weight * (seconds - self._smoothed_seconds)
        # One more per success doubles the limit in a round trip; 1 / limit per success adds one in a round trip.
        if self._smoothed_seconds <= _LATENCY_GROWTH * self._best_seconds:
            self.limit = min(self._maximum, self.limit + (1.0 if self._is_probing else 1.0 / self.limit))
        self._slots.total_tokens = int(self.limit)

    def pushed_back(self) -> None:
        """Halve, at most once per round trip: the calls that are in flight were sent at the old rate."""
        self._is_probing = False
        now = self._clock()
        if now - self._last_cut >= self._smoothed_seconds:
            self._last_cut = now
            self.limit = max(1.0, self.limit / 2)
            self._slots.total_tokens = int(self.limit)
