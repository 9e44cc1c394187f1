"""The next call that reads is the one that a scan of all sessions would find, whatever happened before."""

from __future__ import annotations

import copy
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.schedule import Schedule
from astra_jax.engine.tracks import Read, ReadRow, Track
from astra_jax.plan.clock import run_on_clock
from tests.astra_jax.engine.test_schedule import (
    CheckedDevice,
    callers_of_any_kind,
    limits_of_any_kind,
    run_all,
    some_limits,
)


def asking_by_scan(schedule: Schedule) -> list[Track]:
    tracks = [track for track in schedule.tracks.values() if track.sampling is not None]
    return sorted(tracks, key=lambda track: track.ticket)


def lacks_rows_by_scan(schedule: Schedule, asking: list[Track]) -> bool:
    largest = schedule.limits.row_shapes[0]
    num_rows = largest.prefixes * largest.rows_per_prefix
    for shard in range(len(schedule.books)):
        unread = [track.num_unread > 0 for track in asking if track.shard == shard]
        if sum(unread) >= schedule.limits.read_rows or (any(unread) and len(unread) - sum(unread) < num_rows):
            return True
    return False


def next_read_by_scan(schedule: Schedule) -> Read | None:
    """Look at every session that asks, in the order of their tickets."""
    asking = asking_by_scan(schedule)
    if not asking or (asking[0].num_unread == 0 and not lacks_rows_by_scan(schedule, asking)):
        return None
    rows: list[list[ReadRow]] = [[] for _ in schedule.books]
    being_read, taken = set(), set()
    kind = None
    for track in asking:
        if track.num_unread > 0:
            schedule._adopt(track)
        if track.num_unread <= 0:
            continue
        begins = track.num_cached == 0
        of_track = (begins, *schedule.limits.read_shape(track.num_unread, begins=begins))
        kind = kind or of_track
        _, most_rows, most_tokens = kind
        if of_track != kind or len(rows[track.shard]) == most_rows:
            continue
        count = min(track.num_unread, most_tokens)
        stretch = (track.shard, schedule._content_of_stretch(track, count))
        if stretch in being_read:
            continue
        made = schedule._room_for(track, count, taken)
        if made is None:
            continue
        being_read.add(stretch)
        taken.add(track.session)
        rows[track.shard].append(ReadRow(track, track.ids[track.num_cached : track.num_cached + count], *made))
    return Read(rows, *kind) if kind is not None and any(rows) else None


def told(read: Read | None) -> object:
    if read is None:
        return None
    rows = [[(row.track.session, row.ids, row.copy) for row in of_shard] for of_shard in read.rows]
    return rows, read.begins, read.most_rows, read.most_tokens


def state(schedule: Schedule) -> object:
    tracks = [(session, track.table, track.num_cached) for session, track in schedule.tracks.items()]
    return tracks, [(book._free, [*book._idle]) for book in schedule.books]


class Compared(Schedule):
    """Asks the scan as well, of a copy of itself, before each call that reads or samples."""

    num_compared = 0

    def next_read(self) -> Read | None:
        kept = (self._tickets, self._next_shard, self.limits)
        other = copy.deepcopy(self, {id(part): part for part in kept})
        expected, found = next_read_by_scan(other), super().next_read()
        assert told(found) == told(expected)
        assert state(self) == state(other)
        type(self).num_compared += found is not None
        return found

    def next_sample(self):
        ready = {track.session for track in asking_by_scan(self) if track.num_unread == 0}
        sample = super().next_sample()
        if sample is not None:
            assert {row.track.session for row in sample.all_rows()} <= ready
        assert [*self._asking()] == asking_by_scan(self)
        return sample


def test_whatever_sessions_do_the_next_read_is_the_one_that_a_scan_finds():
    Compared.num_compared = 0
    compare()
    assert Compared.num_compared > 100


@settings(max_examples=100, deadline=None)
@given(
    limits=limits_of_any_kind(),
    callers=st.lists(callers_of_any_kind(), min_size=1, max_size=8),
    num_shards=st.integers(1, 2),
    calls_away=st.sampled_from([None, 0, 2]),
    interruptions=st.lists(st.sampled_from([1, 2]), max_size=3),
)
def compare(limits, callers, num_shards, calls_away, interruptions):
    with mock.patch("astra_jax.engine.decoder.Schedule", Compared):
        run_on_clock(
            run_all(CheckedDevice(limits, num_shards=num_shards), dict(enumerate(callers)), calls_away, interruptions)
        )


def test_sessions_that_have_nothing_to_read_are_not_looked_at():
    """Their number of unread tokens is asked for once: when they have been read."""
    schedule = Schedule(some_limits(num_pages=4000), 1, vocab_size=8)
    for slot in range(200):
        schedule.ask(Session(slot, 0), [1 + slot % 7, 2, 3, 1 + slot // 7 % 7, 1 + slot // 49], Sampling(4), 0)
    while (read := schedule.next_read()) is not None or schedule._unread:
        if read is None:
            schedule.forget(next(iter(schedule._unread)).session)
            continue
        for row in read.all_rows():
            schedule.has_read(row)
    num_asked = 0

    def counted(track: Track) -> int:
        nonlocal num_asked
        num_asked += 1
        return len(track.ids) - 1 - track.num_cached

    with mock.patch.object(Track, "num_unread", property(counted)):
        assert schedule.next_read() is None
    assert num_asked == 0
