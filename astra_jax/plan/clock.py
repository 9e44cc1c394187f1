"""A device without a model, and a clock that jumps: schedules can be tried at the size of a pod, in no time.

Lengths of messages are given or drawn. Their tokens are made up, and calls take the time of given costs.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol, TypeVar

from astra_jax.engine.device import Said
from astra_jax.engine.sizes import Limits
from astra_jax.engine.tracks import Read, SaidRow, Sample, Track

_T = TypeVar("_T")


@dataclass(frozen=True)
class Lognormal:
    """A distribution of lengths or seconds; the same key always draws the same."""

    median: float
    sigma: float
    """Standard deviation of the logarithm; 0 always draws the median."""

    def draw(self, *key: int) -> float:
        """Return the draw of a key."""
        if self.sigma == 0:
            return self.median
        digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
        uniform = ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(uniform))


class CallSeconds(Protocol):
    """The time of the calls of a device."""

    def read(self, read: Read, num_tokens: int) -> float:
        """Return the seconds of a call that reads, `num_tokens` of its busiest host."""

    def sample(self, sample: Sample, num_steps: int) -> float:
        """Return the seconds of a call that samples so many tokens in every row."""


@dataclass(frozen=True)
class Costs:
    """Calls whose time depends on the number of tokens or steps alone."""

    seconds_per_step: float
    """Seconds of a step, which samples one token in every row."""
    seconds_per_read_token: float

    def read(self, read: Read, num_tokens: int) -> float:
        """Return the seconds of a call that reads."""
        return num_tokens * self.seconds_per_read_token

    def sample(self, sample: Sample, num_steps: int) -> float:
        """Return the seconds of a call that samples."""
        return num_steps * self.seconds_per_step


class ClockDevice:
    """Makes tokens up, from seed, slot and place, and sleeps as long as computing them would have taken.

    `message_tokens` says how long a message is, from the seed and the slot of its session and the tokens before it.
    """

    num_steps = row_steps = 0
    """Steps of all calls that sampled; the same times the rows of each call."""
    waited_seconds = left_seconds = read_seconds = sample_seconds = 0.0
    """Seconds of waiting for other hosts, none; of all calls that read; of all that sampled."""

    def __init__(
        self,
        limits: Limits,
        *,
        costs: CallSeconds,
        message_tokens: Callable[[int, int, int], float],
        end_ids: tuple[int, ...],
        vocab_size: int = 512,
        num_shards: int = 1,
    ):
        self.num_shards, self.vocab_size = num_shards, vocab_size
        self._limits, self._costs, self._message_tokens = limits, costs, message_tokens
        self._end_id = end_ids[0]
        self._words = [number for number in range(self.vocab_size) if number not in end_ids]

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Wait: there is no other host."""
        await until.wait()

    async def leave(self, *, failed: bool) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    async def read(self, read: Read) -> None:
        """Sleep as long as reading takes."""
        num_tokens = max(await self.of_all_hosts(sum(len(row.ids) for row in read.all_rows())))
        seconds = self._costs.read(read, num_tokens)
        self.read_seconds += seconds
        await asyncio.sleep(seconds)

    async def sample(self, sample: Sample) -> Said:
        """Sleep as long as sampling takes; return made-up tokens."""
        tracks = [row.track for row in sample.all_rows()]
        lefts = [self._num_left(track) for track in tracks]
        counts = [min(row.max_tokens, left) for row, left in zip(sample.all_rows(), lefts, strict=True)]
        # The call ends as soon as only `leave_at` rows go on: the next longest one decides its steps.
        longest_first = sorted(itertools.chain(*await self.of_all_hosts(counts)), reverse=True)
        steps = min(longest_first[sample.leave_at], self._limits.sample_tokens)
        said = [
            self._say(track, min(count, steps), left) for track, count, left in zip(tracks, counts, lefts, strict=True)
        ]
        self.num_steps += steps
        self.row_steps += steps * self.num_shards * sample.most_rows
        seconds = self._costs.sample(sample, steps)
        self.sample_seconds += seconds
        await asyncio.sleep(seconds)
        return said

    async def of_all_hosts(self, own: _T) -> list[_T]:
        """Return what each host brings, here this one alone."""
        return [own]

    def _num_left(self, track: Track) -> int:
        begins_at = len(track.ids) - len(track.said)
        drawn = self._message_tokens(track.session.seed, track.session.slot, begins_at)
        return max(1, round(drawn)) - len(track.said)

    def _say(self, track: Track, count: int, num_left: int) -> SaidRow:
        first, mixed = len(track.ids), track.session.seed * 1_000_003 + track.session.slot * 8_191
        words = self._words
        ids = [words[(mixed + place * 2_654_435_761 >> 7) % len(words)] for place in range(first, first + count)]
        if count == num_left:
            ids[-1] = self._end_id
        logprobs = [-(1 + number) / len(words) for number in ids]
        return SaidRow(ids, logprobs)


class ClockLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while a task runs, and then jumps to the next timer; no task may wait for a thread."""

    def __init__(self) -> None:
        """Begin at second 0."""
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Return the seconds since the beginning."""
        return self._jumps.seconds


class _Jumps(selectors.DefaultSelector):
    seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("there is no timer to jump to: all wait for one another")
        self.seconds += timeout
        return super().select(0)


def run_on_clock(main: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end on a clock that jumps.

    Raises:
        RuntimeError: all tasks wait for one another.
    """
    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        return runner.run(main)
