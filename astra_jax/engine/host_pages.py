"""Pages in a host's memory: what sessions had to let go of where a device's pages ran out, until they come back for it.

A page is set aside when its place on the device is given to another sequence, if its session is to go on and its way
out and back takes less time than reading its tokens again. Which that is follows from stated rates, never from a clock:
so the same seeds make the same calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from astra_jax.engine.pages import Content

MOVED_AT_ONCE: Final = 16
"""The most pages of a shard that a call moves: one shape is compiled for each direction."""


@dataclass(frozen=True)
class HostMemory:
    """How many pages a host holds of each of its shards, and what decides whether one is worth it."""

    num_pages: int
    bytes_per_second: float
    """Between a shard's devices and its host."""
    read_tokens_per_second: float
    """By which tokens of a shard are computed anew."""

    def is_cheaper(self, page_bytes: int, num_tokens: int) -> bool:
        """Say whether a page goes out and comes back in less time than its tokens are read again.

        >>> host = HostMemory(num_pages=1, bytes_per_second=1e10, read_tokens_per_second=5e3)
        >>> [host.is_cheaper(5_000_000, num_tokens) for num_tokens in (32, 6, 5)]  # 1 ms, and 0.2 ms a token
        [True, True, False]
        """
        return 2 * page_bytes / self.bytes_per_second < num_tokens / self.read_tokens_per_second


class Move(NamedTuple):
    """A page that goes to a place in the host's memory, or comes back from there."""

    shard: int
    page: int
    place: int


@dataclass(frozen=True)
class Moves:
    """A call that moves pages one way, at most `MOVED_AT_ONCE` of each shard."""

    is_out: bool
    """From the device to the host."""
    of_shards: list[list[Move]]


def in_calls(moves: Iterable[tuple[bool, Move]], num_shards: int) -> list[Moves]:
    """Return the calls that make moves in their order: a place, or a page, may be used again right after.

    >>> moves = [(True, Move(0, 5, 0)), (True, Move(1, 7, 0)), (False, Move(0, 8, 0)), (True, Move(0, 6, 0))]
    >>> [(call.is_out, [len(of_shard) for of_shard in call.of_shards]) for call in in_calls(moves, 2)]
    [(True, [1, 1]), (False, [1, 0]), (True, [1, 0])]
    """
    calls: list[Moves] = []
    for is_out, move in moves:
        if not calls or calls[-1].is_out != is_out or len(calls[-1].of_shards[move.shard]) == MOVED_AT_ONCE:
            calls.append(Moves(is_out, [[] for _ in range(num_shards)]))
        calls[-1].of_shards[move.shard].append(move)
    return calls


class HostBook:
    """What lies in which place of one shard's host memory; a place is held as long as a session awaits its content."""

    def __init__(self, num_places: int):
        self._free = list(range(num_places - 1, -1, -1))
        self._awaited: Counter[Content] = Counter()
        self._places: dict[Content, int] = {}

    @property
    def num_held(self) -> int:
        """Places in use."""
        return len(self._places)

    def await_all(self, contents: Iterable[Content]) -> None:
        """Take in that one session more will come back for these."""
        for content in contents:
            self._awaited[content] += 1

    def give_up(self, contents: Iterable[Content]) -> None:
        """Take in that one session less will; what nobody awaits loses its place."""
        for content in contents:
            self._awaited[content] -= 1
            if self._awaited[content] == 0:
                del self._awaited[content]
                if content in self._places:
                    self._free.append(self._places.pop(content))

    def keep(self, content: Content) -> int | None:
        """Return a place for this; None if nobody awaits it, it has one already, or there is none left."""
        if content not in self._awaited or content in self._places or not self._free:
            return None
        self._places[content] = self._free.pop()
        return self._places[content]

    def find(self, content: Content) -> int | None:
        """Return the place in which this lies."""
        return self._places.get(content)
