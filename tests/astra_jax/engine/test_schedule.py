"""Any sessions in any number of pages: each reads its own tokens, writes where no other session reads, and ends."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import Said
from astra_jax.engine.interface import Generated, Sampling, Session
from astra_jax.engine.schedule import Schedule
from astra_jax.engine.sizes import Limits
from astra_jax.engine.tracks import Read, SaidRow, Sample, Track
from astra_jax.plan.clock import ClockDevice, Costs, Lognormal, run_on_clock

END_IDS = (0,)
COSTS, MESSAGE_TOKENS = Costs(0.02, 0.001), Lognormal(6, 0.8)


class CheckedDevice(ClockDevice):
    """Keeps in its pages, for each token, the whole history that it was computed with, and checks each call.

    As on a real device, all is read first, and last all is written; the rest of the page after the last new token is
    overwritten as well.
    """

    def __init__(self, limits: Limits, *, num_shards: int = 1, message_tokens: Lognormal = MESSAGE_TOKENS):
        super().__init__(
            limits,
            costs=COSTS,
            message_tokens=message_tokens.draw,
            end_ids=END_IDS,
            vocab_size=8,
            num_shards=num_shards,
        )
        self.vocab_size = 512  # it says few words, so that messages begin alike; its callers know more
        self.pages = [[[None] * limits.page_tokens for _ in range(limits.num_pages)] for _ in range(num_shards)]
        self.num_calls, self.most_calls = 0, 10**9
        self.schedule: Schedule | None = None

    async def read(self, read: Read) -> None:
        rows = [row for of_shard in read.rows for row in of_shard]
        begins = {row.track.num_cached == 0 for row in rows}
        assert begins == {read.begins}, "a call has a program of its own for those that begin"
        assert all(len(of_shard) <= read.most_rows for of_shard in read.rows)
        assert all(0 < len(row.ids) <= read.most_tokens for row in rows)
        self._check([(row.track, len(row.ids)) for row in rows])
        for row in rows:
            assert row.ids == row.track.ids[row.track.num_cached :][: len(row.ids)]
            self._write(row.track, row.ids)
        await super().read(read)

    async def sample(self, sample: Sample) -> Said:
        rows = list(sample.all_rows())
        assert len(sample.rows) == self.num_shards
        for shard, of_shard in enumerate(sample.rows):
            assert len(of_shard) <= sample.most_rows
            assert {row.track.shard for row in of_shard} <= {shard}
        assert all(len(row.track.table) <= sample.most_pages for row in rows)
        assert all(row.track.num_unread == 0 for row in rows)
        self._check([(row.track, row.max_tokens) for row in rows])
        said = await super().sample(sample)
        for row, (ids, *_) in zip(rows, said, strict=True):
            self._write(row.track, [row.track.ids[-1], *ids[:-1]])
        return said

    def _check(self, rows: Sequence[tuple[Track, int]]) -> None:
        self.num_calls += 1
        assert self.num_calls <= self.most_calls, "a session starves"
        page_tokens = self._limits.page_tokens
        check_references(self.schedule)
        for track, count in rows:
            assert len(track.table) * page_tokens >= track.num_cached + count
            lies = [token for page in track.table for token in self.pages[track.shard][page]]
            assert lies[: track.num_cached] == histories(track, track.ids[: track.num_cached])
            for place in range(track.num_cached, track.num_cached + count):
                page = track.table[place // page_tokens]
                assert self.schedule.books[track.shard]._references[page] == 1, "another session reads it"

    def _write(self, track: Track, ids: Sequence[int]) -> None:
        assert list(ids[:1]) == track.ids[track.num_cached :][:1]
        known = histories(track, [*track.ids[: track.num_cached], *ids])
        page_tokens = self._limits.page_tokens
        touched = track.table[: -(-len(known) // page_tokens)]
        for place in range(track.num_cached, len(touched) * page_tokens):
            page = self.pages[track.shard][touched[place // page_tokens]]
            page[place % page_tokens] = known[place] if place < len(known) else None


def histories(track: Track, ids: Sequence[int]) -> list[int]:
    """A hash for each token, of the token, all before it and the policy version."""
    begin = hash(track.policy_version)
    return list(itertools.accumulate(ids, lambda before, token: hash((before, token)), initial=begin))[1:]


def check_references(schedule: Schedule) -> None:
    for shard, book in enumerate(schedule.books):
        tables = [track.table for track in schedule.tracks.values() if track.shard == shard]
        referred = Counter(page for table in tables for page in table)
        assert [referred[page] for page in range(book.num_pages)] == book._references
        assert book.num_available == book.num_pages - len(referred)
        assert all(len(set(table)) == len(table) for table in tables)


@dataclass(frozen=True)
class Caller:
    """One session: its prompt, and of each turn how much it may say, how much it is given, and how long tools take."""

    prompt: list[int]
    turns: list[tuple[int, int, float]]
    stops_at: tuple[int, float, bool] | None = None
    """In which turn it is stopped, after which time, and whether by a cancellation or by `abort`."""

    async def run(self, decoder: PagedDecoder, slot: int, most: int) -> list[Generated]:
        session, ids, messages = Session(3, slot), self.prompt, []
        for number, (max_tokens, num_given, seconds) in enumerate(self.turns):
            if len(ids) + max_tokens > most:
                break
            asked = asyncio.ensure_future(decoder.generate(ids, Sampling(max_tokens), session))
            if self.stops_at is not None and self.stops_at[0] == number:
                await asyncio.wait([asked], timeout=self.stops_at[1])
                asked.cancel() if self.stops_at[2] else decoder.abort(session)
                await asyncio.gather(asked, return_exceptions=True)
                if asked.cancelled():
                    break
            messages.append(await asked)
            await asyncio.sleep(seconds)
            ids = [*ids, *messages[-1].ids, *range(1, 1 + num_given)]
        decoder.forget(session)
        return messages


async def run_all(
    device: CheckedDevice,
    callers: dict[int, Caller],
    calls_away: int | None = None,
) -> dict[int, list[Generated]]:
    """Each caller to its end."""
    limits = device._limits
    decoder = PagedDecoder(device, limits, end_ids=END_IDS, calls_away=calls_away)
    device.schedule = decoder._schedule
    asked = asyncio.gather(*(caller.run(decoder, slot, limits.max_tokens) for slot, caller in callers.items()))
    found = await asked
    while decoder.load.sessions:
        await asyncio.sleep(1)
    check_references(decoder._schedule)
    assert decoder.load.free_pages == limits.num_pages * device.num_shards
    assert decoder.load.waiting == 0
    await decoder.close()
    return dict(zip(callers, found, strict=True))


def some_limits(**changes) -> Limits:
    return Limits(
        **{
            "max_tokens": 30,
            "num_pages": 200,
            "page_tokens": 4,
            "row_counts": (4, 1),
            "sample_tokens": 4,
            "read_rows": 2,
            "read_tokens": 4,
            "first_read_rows": 2,
            "first_read_tokens": 8,
            **changes,
        }
    )


@st.composite
def limits_of_any_kind(draw) -> Limits:
    page_tokens = draw(st.integers(1, 5))
    return some_limits(
        page_tokens=page_tokens,
        num_pages=-(-30 // page_tokens) + 1 + draw(st.sampled_from([0, 0, 0, 1, 3, 12])),
        row_counts=draw(st.sampled_from([(1,), (4, 1), (3, 2), (8, 4, 1)])),
        sample_tokens=draw(st.integers(1, 6)),
        read_rows=draw(st.integers(1, 3)),
        read_tokens=draw(st.integers(1, 6)),
        first_read_rows=draw(st.integers(1, 3)),
        first_read_tokens=draw(st.integers(1, 12)),
    )


@st.composite
def callers_of_any_kind(draw) -> Caller:
    times = st.sampled_from([0.0, 0.01, 0.05, 0.3])
    prompt = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3][: draw(st.integers(1, 10))]
    return Caller(
        prompt=[*prompt[:-1], draw(st.integers(1, 2))],
        turns=draw(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6), times), min_size=1, max_size=4)),
        stops_at=draw(st.none() | st.tuples(st.integers(0, 3), times, st.booleans())),
    )


@settings(max_examples=150, deadline=None)
@given(
    limits=limits_of_any_kind(),
    callers=st.lists(callers_of_any_kind(), min_size=1, max_size=8),
    num_shards=st.integers(1, 2),
    calls_away=st.sampled_from([None, 0, 2]),
)
def test_any_sessions_in_any_pages_sample_the_same_as_alone(limits, callers, num_shards, calls_away):
    device = CheckedDevice(limits, num_shards=num_shards)
    # Each token that is sampled, and each that is read, could be a call of its own, and be read anew for each message.
    device.most_calls = 100 + sum(limits.max_tokens * (1 + len(caller.turns)) for caller in callers)
    found = run_on_clock(run_all(device, dict(enumerate(callers)), calls_away))
    for slot, caller in enumerate(callers):
        if caller.stops_at is None:
            alone = run_on_clock(run_all(CheckedDevice(some_limits()), {slot: caller}))[slot]
            assert found[slot] == alone


async def said_by(decoder: PagedDecoder, slot: int, ids: list[int], max_tokens: int) -> list[int]:
    """One message of a session that is forgotten."""
    message = await decoder.generate(ids, Sampling(max_tokens), Session(3, slot))
    decoder.forget(Session(3, slot))
    return message.ids


def checked(limits: Limits, median: float) -> tuple[CheckedDevice, PagedDecoder]:
    """A decoder all of whose messages have one length."""
    device = CheckedDevice(limits, message_tokens=Lognormal(median, 0.0))
    decoder = PagedDecoder(device, limits, end_ids=END_IDS)
    device.schedule = decoder._schedule
    return device, decoder


def test_siblings_on_two_shards_do_not_wait_for_one_another():
    """Their prompts begin alike, but neither finds the pages of the other."""

    async def main() -> None:
        device = CheckedDevice(some_limits(), num_shards=2, message_tokens=Lognormal(2, 0.0))
        decoder = PagedDecoder(device, some_limits(), end_ids=END_IDS)
        device.schedule = decoder._schedule
        await asyncio.gather(*(said_by(decoder, slot, [1, 2, 3, 4, 5, 6 + slot, 7], 12) for slot in range(2)))
        assert device.num_calls == 2, "one that reads and one that samples"
        await decoder.close()

    run_on_clock(main())


def test_no_more_prompts_are_remembered_than_there_are_pages():
    """A service has new ones without end."""
    schedule = Schedule(some_limits(num_pages=9), num_shards=2, vocab_size=512)
    for number in range(100):
        shards = set()
        for sibling in range(2):
            session = Session(number, sibling)
            shards.add(schedule.ask(session, [1, number, 2], Sampling(1), policy_version=0).shard)
            schedule.forget(session)
        assert len(shards) == 1
        assert len(schedule._shard_of_prompt) <= 18


def test_given_tokens_are_read_however_many_others_are_ready():
    """Others are given nothing, so that they are ready as soon as they ask; a call of reads is never full."""

    async def main() -> None:
        limits = some_limits(row_counts=(1,), read_rows=4)
        _, decoder = checked(limits, 2)
        busy = [Caller([1, 2, 3], [(2, 0, 0.0)] * 13) for _ in range(3)]
        others = [asyncio.create_task(caller.run(decoder, slot, 30)) for slot, caller in enumerate(busy)]
        await asyncio.sleep(0.1)
        ids = await said_by(decoder, 9, [5, 6, 7, 8], 12)
        assert len(ids) == 2
        assert not any(other.done() for other in others)
        await asyncio.gather(*others)
        await decoder.close()

    run_on_clock(main())


def test_a_shard_that_has_rows_free_reads_however_many_are_ready_on_another():
    async def main() -> None:
        limits = some_limits(row_counts=(2,), read_rows=4)
        device = CheckedDevice(limits, num_shards=2, message_tokens=Lognormal(20, 0.0))
        decoder = PagedDecoder(device, limits, end_ids=END_IDS)
        device.schedule = decoder._schedule
        others = [asyncio.create_task(said_by(decoder, slot, [1, 2, 3], 20)) for slot in range(6)]
        await asyncio.sleep(0.1)  # these are of one shard
        start = asyncio.get_running_loop().time()
        await said_by(decoder, 9, [5, 6, 7, 8], 20)
        assert asyncio.get_running_loop().time() - start < 20 * COSTS.seconds_per_step + 0.15
        await asyncio.gather(*others)
        await decoder.close()

    run_on_clock(main())


def test_several_calls_read_before_one_samples_in_rows_that_are_free():
    """Else rows run empty wherever more messages end in a call than another one reads."""

    async def main() -> None:
        limits = some_limits(row_counts=(16,), first_read_rows=2)
        device, decoder = checked(limits, 4)
        await asyncio.gather(*(said_by(decoder, slot, [1 + slot % 7, 1 + slot // 7, 3], 4) for slot in range(8)))
        assert device.num_calls == 4 + 1
        assert decoder.load.row_steps == 16 * 4
        await decoder.close()

    run_on_clock(main())


def test_the_first_to_ask_gets_pages_even_if_all_are_sampling():
    """Two fill all pages between them; neither could go on if none gave way."""

    async def main() -> None:
        device, decoder = checked(some_limits(num_pages=9), 100)
        device.most_calls = 200
        async with asyncio.timeout(100):
            found = await asyncio.gather(*(said_by(decoder, slot, [1 + slot, 2, 3], 27) for slot in range(2)))
        assert [len(ids) for ids in found] == [27, 27]
        await decoder.close()

    run_on_clock(main())


def test_prompts_that_begin_alike_are_read_in_one_call():
    """Most do: the chat format has the same words before the first tool."""
    schedule = Schedule(some_limits(), 1, vocab_size=512)
    for slot in range(2):
        schedule.ask(Session(0, slot), [1, 2, 3, 4, 5, 6 + slot, 7, 8, 9], Sampling(2), policy_version=0)
    assert [row.ids for row in schedule.next_read().rows[0]] == [[1, 2, 3, 4, 5, 6 + slot, 7, 8] for slot in range(2)]


def test_room_that_a_message_did_not_use_gives_way_to_a_siblings_page():
    """Both are given pages for eight tokens, say four, and are then given the same."""
    schedule = Schedule(some_limits(sample_tokens=8, read_tokens=8), 1, vocab_size=8)
    prompt, said, given = [1, 2, 3, 4, 5], [6, 7, 6, 7], [1, 1, 2, 2, 3]
    tracks = [schedule.ask(Session(0, slot), prompt, Sampling(8), policy_version=0) for slot in range(2)]

    def read_all() -> None:
        while (read := schedule.next_read()) is not None:
            for row in read.all_rows():
                schedule.has_read(row)

    read_all()
    sample = schedule.next_sample()
    for row in sample.all_rows():
        schedule.has_sampled(row, SaidRow(said, [0.0] * 4))
    assert [len(track.table) for track in tracks] == [3, 3], "a page more than eight cached tokens take"
    for slot in range(2):
        schedule.ask(Session(0, slot), prompt + said + given, Sampling(8), policy_version=0)
    read_all()
    assert [track.num_cached for track in tracks] == [13, 13]
    assert tracks[0].table[:1] == tracks[1].table[:1]
    assert tracks[0].table[2:3] == tracks[1].table[2:3]
    for slot in range(2):
        schedule.forget(Session(0, slot))
    assert schedule.books[0].num_available == 200
