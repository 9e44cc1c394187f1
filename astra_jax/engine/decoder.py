"""The decoder of this process: callers await messages, and one task makes all calls.

generate     add the caller's message to the schedule and wait for it
_drive       the task: make calls while there is work, else sleep until a caller comes
_call_once   read given tokens, then sample up to 16 tokens in every row
_take_in     add sampled tokens to their messages, and hand out the messages that ended
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from astra_jax.engine.device import Device, Said
from astra_jax.engine.interface import DecoderError, Finish, Generated, Load, Sampling, Session, Told
from astra_jax.engine.schedule import Schedule
from astra_jax.engine.sizes import Limits
from astra_jax.engine.tracks import SaidRow, Sample, Track

_READS_PER_SAMPLE = 4


@dataclass
class _Message:
    """A message that a caller waits for."""

    ids: Sequence[int]
    sampling: Sampling
    done: asyncio.Future[Generated]
    told: Told | None = None
    computed_tokens: int = 0
    is_aborted: bool = False
    """Whether `abort` was called during a call with the message, which then ends with that call."""


class PagedDecoder:
    """Samples messages of many sessions at once, in the pages and rows of one device or mesh.

    Calls follow one another; while one runs, callers run their tools. If a call fails, every message under way fails.

    With `calls_away`, a session whose message was handed out is scheduled again exactly that many calls later, however
    long its tools took. The calls then depend on tokens alone, and the same seeds give the same bytes. If a session is
    due, all others wait for it, so its caller has to come back, with `generate` or `forget`. Without `calls_away` a
    session is scheduled as soon as it comes back. The draws are the same, and the tokens nearly always: the order of a
    sum depends on the sessions that share a call, and rounding may change a token.
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
        """Sample with the weights of `policy_version` until one of `end_ids`."""
        self._device, self._end_ids, self._calls_away = device, end_ids, calls_away
        self._schedule = Schedule(limits, device.num_shards, device.vocab_size)
        self._policy_version = policy_version
        self._messages: dict[Session, _Message] = {}
        self._num_calls = 0
        self._due: dict[Session, int] = {}
        """Sessions whose message was handed out, and the number of the call before which each must be back."""
        self._back: dict[Session, _Message | None] = {}
        """Messages of sessions that are back before they are scheduled; None: the session is to be forgotten."""
        self._calling = asyncio.Lock()
        """Held from the choice of a call's rows until its results are taken in."""
        self._in_call: set[Session] = set()
        """Sessions of the call that is running."""
        self._driver: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_closing = False
        self._has_failed = asyncio.Event()
        self._failure: Exception | None = None
        self._sampled_tokens = self._read_tokens = 0
        self._call_seconds = 0.0

    @property
    def load(self) -> Load:
        """The load of this decoder."""
        return Load(
            sessions=len(self._schedule.tracks),
            waiting=len(self._messages) + sum(message is not None for message in self._back.values()),
            free_pages=sum(book.num_available for book in self._schedule.books),
            row_steps=self._device.row_steps,
            sampled_tokens=self._sampled_tokens,
            read_tokens=self._read_tokens,
            call_seconds=self._call_seconds,
            waited_seconds=self._device.waited_seconds,
            left_seconds=self._device.left_seconds,
        )

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        """Sample the message that follows `ids`, all tokens of the session so far.

        `told` hears of all tokens, in order, before the message is returned.

        Raises:
            DecoderError: the sequence is too long; an id is not in the vocabulary; a message of the session is under
                way; or the decoder is closed.
        """
        if self._is_closing:
            raise DecoderError("the decoder is closed; make a new one")
        self._schedule.require_room(ids, sampling)
        if session in self._messages or session in self._back:
            raise DecoderError(f"{_name(session)} has a message under way; wait for it before the next one")
        message = _Message(ids, sampling, asyncio.get_running_loop().create_future(), told)
        if session in self._due:
            self._back[session] = message
        else:
            self._begin(session, message)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.ensure_future(self._drive())
        self._wake.set()
        try:
            return await message.done
        except asyncio.CancelledError:  # its caller has gone
            self.abort(session)
            self._due.pop(session, None)  # its message may have been handed out just now
            while session in self._in_call:  # also if the caller is cancelled once more
                with contextlib.suppress(asyncio.CancelledError):
                    async with self._calling:
                        pass
            raise

    def _begin(self, session: Session, message: _Message) -> None:
        self._schedule.ask(session, message.ids, message.sampling, self._policy_version)
        self._messages[session] = message

    def abort(self, session: Session) -> None:
        """End the session's message where it stands: its `generate` returns the tokens that have arrived so far."""
        self._wake.set()
        if session in self._in_call:
            self._messages[session].is_aborted = True
        elif session in self._messages:
            self._hand_out(session, "aborted")
        elif (message := self._back.get(session)) is not None:
            del self._back[session], self._due[session]
            _answer(message, Generated([], [], [], "aborted"))

    def forget(self, session: Session) -> None:
        """Give up the pages of a session that has ended.

        Raises:
            DecoderError: a message of it is under way.
        """
        if session in self._messages or self._back.get(session) is not None:
            raise DecoderError(f"{_name(session)} has a message under way; wait for it or abort it first")
        if session in self._due:
            self._back[session] = None
            self._wake.set()
        else:
            self._schedule.forget(session)

    async def until_failed(self) -> NoReturn:
        """Wait until a call, or another host, fails, and raise the error: also if no message is under way."""
        await self._has_failed.wait()
        assert self._failure is not None
        raise self._failure

    async def close(self, *, failed: bool = False) -> None:
        """Free everything; callers that still wait get a DecoderError.

        Hosts that share a device wait until all have closed theirs; one that has `failed` only tells the others.

        Raises:
            HostFailed, HostsEnd: as `SharedDevice.leave`.
        """
        self._is_closing = True
        self._wake.set()
        if self._driver is not None:  # the running call is finished, because other hosts take part in it
            await asyncio.gather(self._driver, return_exceptions=True)
        self._fail(
            DecoderError("the decoder was closed while a message was under way; close it after the last message")
        )
        for session in list(self._schedule.tracks):
            self._schedule.forget(session)
        try:
            await self._device.leave(failed=failed)
        finally:
            self._device.close()

    # --- the driver ---

    async def _drive(self) -> None:
        try:
            while not self._is_closing:
                await asyncio.sleep(0)  # a caller whose message was handed out may ask again at once
                self._wake.clear()  # before looking for work, so that a caller that comes meanwhile is not missed
                is_back = self._take_in_due()
                if is_back and await self._call_once():
                    self._num_calls += 1
                elif is_back and self._due and not self._messages:
                    self._num_calls = min(self._due.values())  # nothing to do before the next session is due
                elif not self._is_closing:
                    # With `calls_away` other hosts must not go on: their calls would depend on how long tools take.
                    await self._device.idle(self._wake, holds_up=self._calls_away is not None)
        except Exception as error:  # noqa: BLE001 - every caller that waits is told
            self._failure = error
            self._has_failed.set()
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        for message in [*self._messages.values(), *self._back.values()]:
            if message is not None and not message.done.done():
                message.done.set_exception(error)
        for session in self._messages:
            self._schedule.tracks[session].sampling = None
        self._messages.clear()
        self._due.clear()
        self._back.clear()
        self._schedule.forget_contents()  # a call that failed may have written anything

    def _take_in_due(self) -> bool:
        """Schedule the sessions that are due, sorted by call and session; return False if one of them is not back."""
        due = sorted((call, session) for session, call in self._due.items() if call <= self._num_calls)
        if any(session not in self._back for _, session in due):
            return False  # no call is made without it: else the rows of calls would depend on how long tools take
        for _, session in due:
            message = self._back[session]
            if message is None:
                self._schedule.forget(session)
            else:
                self._begin(session, message)
            # Deleted last: if `_begin` refuses the message, `_fail` still has to tell its caller.
            del self._due[session], self._back[session]
        return True

    async def _call_once(self) -> bool:
        """Make the next calls of programs; return whether there were any."""
        # Reading comes first, because it fills rows; but few calls in turn, so that sampling does not wait long.
        num_reads = 0
        while num_reads < _READS_PER_SAMPLE and await self._read():
            num_reads += 1
        return await self._sample() or num_reads > 0

    async def _read(self) -> bool:
        async with self._calling:
            read = self._schedule.next_read()
            if read is None:
                return False
            with self._in_call_of(row.track for row in read.all_rows()):
                await self._device.read(read)
                for row in read.all_rows():
                    self._read_tokens += len(row.ids)
                    self._messages[row.track.session].computed_tokens += len(row.ids)
                    self._schedule.has_read(row)
            return True

    async def _sample(self) -> bool:
        async with self._calling:
            sample = self._schedule.next_sample()
            if sample is None:
                return False
            with self._in_call_of(row.track for row in sample.all_rows()):
                self._take_in(sample, await self._device.sample(sample))
            return True

    @contextlib.contextmanager
    def _in_call_of(self, tracks: Iterable[Track]) -> Iterator[None]:
        """Note the sessions of a call while it runs; at its end hand out the messages that were aborted meanwhile."""
        self._in_call, started = {track.session for track in tracks}, time.monotonic()
        try:
            yield
            for session in self._in_call:
                if session in self._messages and self._messages[session].is_aborted:
                    self._hand_out(session, "aborted")
        finally:
            self._in_call = set()
            self._call_seconds += time.monotonic() - started

    def _take_in(self, sample: Sample, said: Said) -> None:
        for row, of_row in zip(sample.all_rows(), said, strict=True):
            track = row.track
            assert track.sampling is not None
            ends = {*self._end_ids, *track.sampling.stop_ids}
            # A program stops a row only at the decoder's own end ids: tokens behind another stop id are dropped here.
            count = next((number for number, id_ in enumerate(of_row.ids, 1) if id_ in ends), len(of_row.ids))
            of_row = SaidRow(of_row.ids[:count], of_row.logprobs[:count])
            self._sampled_tokens += count
            self._schedule.has_sampled(row, of_row)
            message = self._messages[track.session]
            if message.told is not None and count:
                try:
                    message.told(of_row.ids, of_row.logprobs)
                except Exception as error:  # noqa: BLE001 - only this caller's message fails
                    if not message.done.done():
                        message.done.set_exception(error)
                    self._hand_out(track.session, "aborted")
                    continue
            if count and of_row.ids[-1] in ends:
                self._hand_out(track.session, "end")
            elif track.num_left == 0:
                self._hand_out(track.session, "length")

    def _hand_out(self, session: Session, finish: Finish) -> None:
        message, track = self._messages.pop(session), self._schedule.tracks[session]
        track.sampling = None
        # The caller of an aborted message may come back at any time, the caller of a cancelled one perhaps never.
        if self._calls_away is not None and finish != "aborted" and not message.done.done():
            self._due[session] = self._num_calls + self._calls_away
        said = Generated(
            *(track.said, track.logprobs, track.versions, finish),
            # One more than was read: the last given token is computed with the first sampled one.
            computed_tokens=min(len(message.ids), message.computed_tokens + 1),
        )
        _answer(message, said)


def _name(session: Session) -> str:
    return f"the session with seed {session.seed} and slot {session.slot}"


def _answer(message: _Message, generated: Generated) -> None:
    if not message.done.done():
        message.done.set_result(generated)
