"""Our decoder: sessions come and go, and rows are filled again as soon as messages end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from astra_jax.engine.device import Device
from astra_jax.engine.interface import Capabilities, DecoderError, Finish, Generated, Load, Pause, Sampling, Session
from astra_jax.engine.schedule import Limits, Sample, Schedule, Track


@dataclass
class _Message:
    """A message that somebody waits for."""

    track: Track
    done: asyncio.Future[Generated]
    is_aborted: bool = False


class PagedDecoder:
    """Pages and rows of one device or mesh; a `Decoder`.

    Calls follow one another; while one runs, callers run their tools. A call that fails fails every message
    under way.

    With `calls_away`, a session that was handed a message is part of the schedule again exactly so many calls later,
    however long its tools took: then all that is computed, and in which order, follows from tokens alone, and the same
    seeds give the same bytes. Without it, a session goes on as soon as it comes back: tokens are the same, up to the
    rounding of sums whose order depends on who shares a call.
    """

    def __init__(
        self,
        device: Device,
        limits: Limits,
        *,
        end_ids: tuple[int, ...],
        policy_version: int = 0,
        calls_away: int | None = None,
    ):
        """Sample with the weights of `policy_version`; a message ends with one of `end_ids`."""
        self._device, self._end_ids, self._calls_away = device, end_ids, calls_away
        self._schedule = Schedule(limits, device.num_shards)
        self._policy_version = policy_version
        self._messages: dict[Session, _Message] = {}
        self._num_calls = 0
        self._due: dict[Session, int] = {}
        """Before which call a session that is away is expected back."""
        self._back: dict[Session, Callable[[], None]] = {}
        """What sessions that are back, but not due yet, have come back with."""
        self._driver: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._paused: Pause | None = None
        self._is_idle = asyncio.Event()
        self._row_steps = self._sampled_tokens = self._read_tokens = 0

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(takes_weights=True, replays=True)

    @property
    def load(self) -> Load:
        """How busy it is."""
        return Load(
            sessions=len(self._schedule.tracks),
            waiting=len(self._messages),
            free_pages=sum(book.num_available for book in self._schedule.books),
            row_steps=self._row_steps,
            sampled_tokens=self._sampled_tokens,
            read_tokens=self._read_tokens,
            programs=self._device.num_programs,
        )

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: Session) -> Generated:
        """Sample the message that follows `ids`, all tokens of the session so far.

        Raises:
            DecoderError: it is too long; or the session is asked for two messages at once.
        """
        done: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        if session in self._due:
            self._back[session] = functools.partial(self._begin_later, ids, sampling, session, done)
        else:
            self._begin(ids, sampling, session, done)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.ensure_future(self._drive())
        self._wake.set()
        try:
            return await done
        except asyncio.CancelledError:  # nobody waits for it any more
            if session in self._due:
                self._back[session] = lambda: None
            self.abort(session)
            raise

    def _begin(self, ids: Sequence[int], sampling: Sampling, session: Session, done: asyncio.Future[Generated]) -> None:
        self._messages[session] = _Message(self._schedule.ask(session, ids, sampling, self._policy_version), done)

    def _begin_later(
        self, ids: Sequence[int], sampling: Sampling, session: Session, done: asyncio.Future[Generated]
    ) -> None:
        try:
            self._begin(ids, sampling, session, done)
        except DecoderError as error:
            done.set_exception(error)

    def abort(self, session: Session) -> None:
        """End the session's message where it stands: its `generate` returns what there is."""
        if session in self._messages:
            self._messages[session].is_aborted = True
        self._wake.set()

    def forget(self, session: Session) -> None:
        """Let go of the session: nobody will ask for it again.

        Raises:
            DecoderError: it is being sampled for.
        """
        if session in self._messages:
            raise DecoderError(
                f"expected a session without a message under way, found seed {session.seed} slot {session.slot}"
            )
        if session in self._due:
            self._back[session] = functools.partial(self._schedule.forget, session)
            self._wake.set()
        else:
            self._schedule.forget(session)

    async def close(self) -> None:
        """Let go of everything; no message may be under way that somebody waits for."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
        self._messages.clear()
        self._due.clear()
        self._back.clear()

    async def pause(self, how: Pause) -> None:
        """Stop sampling; return when nothing is under way any more."""
        self._paused = how
        self._wake.set()
        if self._driver is not None and not self._driver.done():
            self._is_idle.clear()
            await self._is_idle.wait()
        if how is Pause.RETRACT:
            self._schedule.forget_contents()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = None
        self._wake.set()

    async def update_weights(self, params: Any, version: int) -> None:
        """Sample with other weights from the next token on; nothing that is cached outlives them."""
        was_paused = self._paused
        await self.pause(Pause.KEEP if was_paused is None else was_paused)
        self._device.take_weights(params)
        self._schedule.forget_contents()
        self._policy_version = version
        for track in self._schedule.tracks.values():
            track.policy_version = version
        if was_paused is None:
            self.resume()

    # --- the driver ---

    async def _drive(self) -> None:
        try:
            while self._messages or self._due:
                await asyncio.sleep(0)  # who was just answered may ask again at once
                self._hand_out_aborted()
                await self._take_in_due()
                if await self._call_once():
                    self._num_calls += 1
                elif self._due and not self._is_halted:
                    self._num_calls = min(self._due.values())  # nothing to do before the next of them is back
                elif self._messages:
                    await self._wait()
        except Exception as error:
            for message in self._messages.values():
                if not message.done.done():
                    message.done.set_exception(error)
            self._messages.clear()
            raise
        finally:
            self._is_idle.set()

    @property
    def _is_halted(self) -> bool:
        return self._paused in (Pause.KEEP, Pause.RETRACT)

    async def _wait(self) -> None:
        self._wake.clear()
        self._is_idle.set()
        await self._wake.wait()

    async def _take_in_due(self) -> None:
        """Wait for the sessions that are due, and take in what they have come back with, in their own order."""
        due = [session for session, call in self._due.items() if call <= self._num_calls]
        for session in sorted(due, key=lambda session: (self._due[session], session)):
            while session not in self._back:
                await self._wait()
            del self._due[session]
            self._back.pop(session)()

    async def _call_once(self) -> bool:
        """Carry out the next calls of programs; return whether there were any."""
        if self._is_halted:
            return False
        drains = self._paused is Pause.DRAIN
        # Given tokens are read first: they fill rows. One call of them to one that samples, so that neither waits long.
        read = None if drains else self._schedule.next_read()
        if read is not None:
            await self._device.read(read)
            for row in (row for of_shard in read.rows for row in of_shard):
                self._read_tokens += len(row.ids)
                self._schedule.has_read(row)
        sample = self._schedule.next_sample(only_begun=drains)
        if sample is not None:
            said, steps = await self._device.sample(sample)
            self._row_steps += steps * sample.shape.prefixes * sample.shape.rows_per_prefix * self._device.num_shards
            self._take_in(sample, said)
        return read is not None or sample is not None

    def _take_in(self, sample: Sample, said: Sequence[tuple[list[int], list[float]]]) -> None:
        for row, (ids, logprobs) in zip(sample.all_rows(), said, strict=True):
            track = row.track
            self._sampled_tokens += len(ids)
            self._schedule.has_sampled(row, ids, logprobs)
            if ids and ids[-1] in self._end_ids:
                self._hand_out(track, "end")
            elif track.num_left == 0:
                self._hand_out(track, "length")

    def _hand_out(self, track: Track, finish: Finish) -> None:
        message = self._messages.pop(track.session)
        track.sampling = None
        if self._calls_away is not None and finish != "aborted":
            self._due[track.session] = self._num_calls + self._calls_away
        if not message.done.done():
            message.done.set_result(Generated(track.said, track.logprobs, track.versions, finish))

    def _hand_out_aborted(self) -> None:
        for message in [message for message in self._messages.values() if message.is_aborted]:
            self._hand_out(message.track, "aborted")
