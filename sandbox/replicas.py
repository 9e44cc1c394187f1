"""The replicas of the service that a client spreads its calls over, and which of them it leaves alone for a while.

A call goes to the replica with the fewest of this client's calls. One that failed rests, longer each time; after its
rest it gets calls again only once its `/health` is good, which one caller asks for all.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

_FIRST_REST_SECONDS = 0.25
_LONGEST_REST_SECONDS = 5.0


@dataclass(eq=False)
class Replica:
    """One address, and what this client knows about it."""

    url: str
    outstanding: int = 0
    """Calls that have been sent and not answered."""
    answered: int = 0
    failed: int = 0
    rests_until: float = 0.0
    rest_seconds: float = 0.0
    """How long it rests, or last rested; 0 where it is in order."""
    is_asked: bool = False
    """Whether somebody asks for its health just now."""

    def is_resting(self, now: float) -> bool:
        """Whether it gets no calls."""
        return self.rest_seconds > 0 and (now < self.rests_until or self.is_asked)


@dataclass
class Waits:
    """What calls took beyond the time that their process ran: the way, the queue, further attempts."""

    calls: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one call."""
        self.calls += 1
        self.seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)


@dataclass
class Replicas:
    """All addresses of one service; safe to share between threads."""

    all: list[Replica]
    _turn: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, tried: set[Replica], same: Replica | None = None) -> Replica:
        """Return the replica for the next attempt, which is then `give_back`'s; rather none that has been `tried`.

        One that asked for a source's text gets it: the `same` is returned. Where its `rest_seconds` are not 0, its
        health is to be asked for before anything else.
        """
        now = time.monotonic()
        with self._lock:
            count = len(self.all)
            in_turn = [self.all[(self._turn + place) % count] for place in range(count)]
            self._turn += 1
            chosen = same or min(
                in_turn,
                key=lambda one: (
                    one.is_resting(now),
                    one in tried,
                    one.rests_until if one.is_resting(now) else 0.0,
                    one.outstanding,
                ),
            )
            chosen.outstanding += 1
            if chosen.rest_seconds:
                chosen.is_asked = True
            return chosen

    def give_back(self, replica: Replica, *, is_in_order: bool | None) -> None:
        """Say how the attempt ended: answered, failed, or (None) given up by its caller."""
        now = time.monotonic()
        with self._lock:
            replica.outstanding -= 1
            replica.is_asked = False
            if is_in_order:
                replica.answered += 1
                replica.rest_seconds = 0.0
            elif is_in_order is not None:
                replica.failed += 1
                # Calls that fail together are one failure, and the only replica is never left alone.
                if len(self.all) > 1 and not replica.is_resting(now):
                    replica.rest_seconds = min(
                        _LONGEST_REST_SECONDS, max(_FIRST_REST_SECONDS, 2 * replica.rest_seconds)
                    )
                    replica.rests_until = now + replica.rest_seconds

    def is_well(self, replica: Replica) -> None:
        """Learn that the health of a replica that has rested is good."""
        with self._lock:
            replica.is_asked, replica.rest_seconds = False, 0.0

    def has_another(self, tried: set[Replica]) -> bool:
        """Whether a replica that has not been tried may take a call now."""
        now = time.monotonic()
        with self._lock:
            return any(one not in tried and not one.is_resting(now) for one in self.all)
