"""How many calls are in flight at once: more while the endpoint keeps up, half as many when it says that it cannot."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_LATENCY_GROWTH: Final = 2.0
"""Latency is flat while it stays below this many times the best that was seen."""


class AdaptiveConcurrency:
    """Additive increase, multiplicative decrease; doubles per round trip until the endpoint first pushes back."""

    def __init__(self, *, start: int, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.limit = float(min(start, maximum))
        self._maximum = maximum
        self._clock = clock
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_probing = True
        self._best_seconds = float("inf")
        self._smoothed_seconds = 0.0
        self._last_cut = float("-inf")

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a place among the calls in flight and hold it."""
        if self._in_flight >= int(self.limit):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # Woken and cancelled at once: the place is ours already, so pass it on. Otherwise the cancelled turn
                # stays in the queue, and `_wake` steps over it.
                if turn.done() and not turn.cancelled():
                    self._in_flight -= 1
                    self._wake()
                raise
        else:
            self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._wake()

    def succeeded(self, seconds: float) -> None:
        """Grow after a success, while latency is flat."""
        self._best_seconds = min(self._best_seconds, seconds)
        weight = 0.1 if self._smoothed_seconds else 1.0  # the first success is the average so far
        self._smoothed_seconds += weight * (seconds - self._smoothed_seconds)
        # One more per success doubles the limit in a round trip; 1 / limit per success adds one in a round trip.
        if self._smoothed_seconds <= _LATENCY_GROWTH * self._best_seconds:
            self.limit = min(self._maximum, self.limit + (1.0 if self._is_probing else 1.0 / self.limit))
        self._wake()

    def pushed_back(self) -> None:
        """Halve, at most once per round trip: the calls that are in flight were sent at the old rate."""
        self._is_probing = False
        now = self._clock()
        if now - self._last_cut >= self._smoothed_seconds:
            self._last_cut = now
            self.limit = max(1.0, self.limit / 2)

    def _wake(self) -> None:
        while self._waiting and self._in_flight < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1  # for the one who is woken: nobody takes the place before it runs
                turn.set_result(None)
