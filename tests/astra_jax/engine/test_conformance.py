"""The promises of a decoder hold at each session's own pace and in one order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import Device, Said, XLADevice
from astra_jax.engine.interface import DecoderError, Generated, Sampling, Session
from astra_jax.engine.sizes import Limits
from astra_jax.engine.tracks import Read, Sample

END_IDS = tuple(range(108, 116))  # of an untrained model, so many that some messages end
# Pages for hardly more than one session of full length; one number of rows, so that little is compiled.
LIMITS = Limits(
    max_tokens=160,
    num_pages=24,
    page_tokens=8,
    row_counts=(4,),
    sample_tokens=4,
    read_rows=2,
    read_tokens=8,
    first_read_rows=2,
    first_read_tokens=24,
)
PROMPT, GIVEN = list(range(21, 41)), [41, 42, 43, 44, 45]
SHORT, LONG, GREEDY = Sampling(24), Sampling(100), Sampling(12, temperature=0.0)
SESSIONS = [Session(7, slot) for slot in range(6)]


Make = Callable[[], PagedDecoder]


@pytest.fixture(params=[None, 2], ids=["own_pace", "one_order"])
def decoder_of(request, untrained) -> Make:
    def make() -> PagedDecoder:
        device = XLADevice(untrained.model_config, untrained.params, LIMITS, end_ids=END_IDS)
        return PagedDecoder(device, LIMITS, end_ids=END_IDS, calls_away=request.param)

    return make


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("waited in vain")


def assert_same(found: Generated, expected: Generated) -> None:
    assert (found.ids, found.finish) == (expected.ids, expected.finish)
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def one_message(decoder: PagedDecoder, session: Session, sampling: Sampling) -> Generated:
    message = await decoder.generate(PROMPT, sampling, session)
    decoder.forget(session)
    return message


def under_way(
    decoder: PagedDecoder, sessions: list[Session], sampling: Sampling = LONG
) -> dict[Session, asyncio.Task[Generated]]:
    return {session: asyncio.create_task(one_message(decoder, session, sampling)) for session in sessions}


async def alone(decoder_of: Make, session: Session, sampling: Sampling = LONG) -> Generated:
    decoder = decoder_of()
    message = await decoder.generate(PROMPT, sampling, session)
    await decoder.close()
    return message


async def a_long_one(decoder_of: Make) -> tuple[Session, Generated]:
    """A session whose message takes many calls."""
    decoder = decoder_of()
    messages = await asyncio.gather(*under_way(decoder, SESSIONS).values())
    await decoder.close()
    session, message = max(zip(SESSIONS, messages, strict=True), key=lambda pair: len(pair[1].ids))
    assert len(message.ids) > 40, "this suite needs a message that is long"
    return session, message


async def test_a_message_ends_with_an_end_token_or_at_its_limit(decoder_of: Make) -> None:
    decoder, finishes = decoder_of(), set()
    for sampling in (Sampling(1), Sampling(5), SHORT):
        for task in under_way(decoder, SESSIONS, sampling).values():
            message = await task
            finishes.add(message.finish)
            assert len(message.ids) == len(message.logprobs) == len(message.policy_versions) <= sampling.max_tokens
            assert set(END_IDS).isdisjoint(message.ids[:-1])
            assert (message.finish == "end") == (message.ids[-1] in END_IDS)
            assert message.finish == "end" or len(message.ids) == sampling.max_tokens
            assert set(message.policy_versions) == {0}
            assert max(message.logprobs) <= 0
    assert finishes == {"end", "length"}, "this suite needs messages of both kinds"
    await decoder.close()


async def test_neighbours_that_truncate_otherwise_change_nothing(decoder_of: Make) -> None:
    decoder, few = decoder_of(), Sampling(24, top_k=5, top_p=0.9)
    truncated = under_way(decoder, SESSIONS[2:4], few)
    others = under_way(decoder, SESSIONS[:2], SHORT) | under_way(decoder, SESSIONS[4:], Sampling(24, top_p=0.9))
    await asyncio.gather(*others.values())
    for session, task in truncated.items():
        assert_same(await task, await alone(decoder_of, session, few))
    await decoder.close()


async def test_a_session_may_say_something_else_than_it_was_given(decoder_of: Make) -> None:
    """A caller shortens the history: cached tokens of the rest are not used, even if less than a prompt is left."""
    decoder, fresh = decoder_of(), decoder_of()
    await decoder.generate(PROMPT, GREEDY, SESSIONS[0])
    for ids in ([*PROMPT, *GIVEN, *GIVEN], PROMPT[:4]):
        expected = await fresh.generate(ids, GREEDY, SESSIONS[0])
        fresh.forget(SESSIONS[0])
        await until(lambda: fresh.load.sessions == 0)
        assert_same(await decoder.generate(ids, GREEDY, SESSIONS[0]), expected)
    await asyncio.gather(decoder.close(), fresh.close())


async def test_a_wrong_request_is_refused_in_one_line_and_nothing_is_lost(decoder_of: Make) -> None:
    expected = await alone(decoder_of, SESSIONS[0], SHORT)
    decoder, most = decoder_of(), LIMITS.max_tokens
    for ids, sampling, message in (
        (PROMPT, Sampling(most - len(PROMPT) + 1), f"{most} tokens"),
        ([], Sampling(1), "at least 1 given token"),
        (PROMPT, Sampling(0), "a max_tokens of at least 1"),
        ([10**6, *PROMPT], SHORT, r"token ids from 0 to \d+, found 1000000"),
        ([-1, *PROMPT], SHORT, r"token ids from 0 to \d+, found -1"),
        (PROMPT, Sampling(24, stop_ids=(10**6,)), r"token ids from 0 to \d+, found 1000000"),
    ):
        with pytest.raises(DecoderError, match=rf"^[^\n]*{message}[^\n]*$"):
            await decoder.generate(ids, sampling, SESSIONS[0])
    for _ in range(2):  # also behind a message that the session has had
        first, second = await asyncio.gather(
            *(decoder.generate(PROMPT, SHORT, SESSIONS[0]) for _ in range(2)), return_exceptions=True
        )
        assert isinstance(first, Generated)
        assert_same(first, expected)
        assert isinstance(second, DecoderError)
        assert "\n" not in str(second)
    await decoder.close()


async def test_a_stop_id_ends_a_message_and_tokens_behind_it_leave_no_trace(decoder_of: Make) -> None:
    session, expected = await a_long_one(decoder_of)
    decoder, fresh = decoder_of(), decoder_of()
    stop_id = expected.ids[20]
    count = expected.ids.index(stop_id) + 1
    message = await decoder.generate(PROMPT, replace(LONG, stop_ids=(stop_id,)), session)
    assert_same(message, replace(expected, ids=expected.ids[:count], logprobs=expected.logprobs[:count], finish="end"))
    assert len(message.policy_versions) == count
    ids = [*PROMPT, *message.ids, *GIVEN]
    assert_same(await decoder.generate(ids, GREEDY, session), await fresh.generate(ids, GREEDY, session))
    await asyncio.gather(decoder.close(), fresh.close())


async def test_an_aborted_message_returns_its_tokens_so_far_and_others_go_on(decoder_of: Make) -> None:
    session, expected = await a_long_one(decoder_of)
    others = [other for other in SESSIONS if other != session][:2]
    expected_others = [await alone(decoder_of, other) for other in others]
    decoder = decoder_of()
    task, tasks = asyncio.create_task(decoder.generate(PROMPT, LONG, session)), under_way(decoder, others)
    await until(lambda: decoder.load.sampled_tokens > 0)
    decoder.abort(session)
    message = await task
    assert message.finish == "aborted"
    assert 0 < len(message.ids) == len(message.logprobs) == len(message.policy_versions) < len(expected.ids)
    assert message.ids == expected.ids[: len(message.ids)]
    # It may go on: its draws are counted from its prompt.
    rest = await decoder.generate([*PROMPT, *message.ids], Sampling(LONG.max_tokens - len(message.ids)), session)
    assert rest.finish in ("end", "length")
    for other, as_alone in zip(others, expected_others, strict=True):
        assert_same(await tasks[other], as_alone)
    decoder.abort(session)  # no message: nothing to do
    await decoder.close()


async def test_a_message_that_has_not_begun_is_aborted_too(decoder_of: Make) -> None:
    decoder = decoder_of()
    first = await decoder.generate(PROMPT, Sampling(1), SESSIONS[0])
    task = asyncio.create_task(decoder.generate([*PROMPT, *first.ids, *GIVEN], LONG, SESSIONS[0]))
    await asyncio.sleep(0)
    decoder.abort(SESSIONS[0])
    message = await task
    assert (message.ids, message.finish) == ([], "aborted")
    await decoder.close()


async def test_a_listener_hears_every_token_once_and_may_end_the_message(decoder_of: Make) -> None:
    """One that fails ends its own message alone."""
    session, whole = await a_long_one(decoder_of)
    again, failing, other = (replace(session, number=number) for number in (1, 2, 3))
    heard: list[tuple[int, float]] = []
    calls: list[int] = []

    def told(ids: list[int], logprobs: list[float]) -> None:
        heard.extend(zip(ids, logprobs, strict=True))
        calls.append(len(ids))

    def told_to_end(ids: list[int], logprobs: list[float]) -> None:
        told(ids, logprobs)
        decoder.abort(again)

    def fails(ids: list[int], logprobs: list[float]) -> None:
        raise RuntimeError("of the listener")

    decoder = decoder_of()
    message = await decoder.generate(PROMPT, LONG, session, told)
    assert heard == list(zip(message.ids, message.logprobs, strict=True))
    assert message.ids == whole.ids
    decoder.forget(session)
    heard.clear()
    ended = await decoder.generate(PROMPT, LONG, again, told_to_end)
    assert [id_ for id_, _ in heard] == ended.ids == whole.ids[: calls[0]]
    decoder.forget(again)
    found = await asyncio.gather(
        decoder.generate(PROMPT, LONG, failing, fails), decoder.generate(PROMPT, LONG, other), return_exceptions=True
    )
    assert isinstance(found[0], RuntimeError)
    assert isinstance(found[1], Generated)
    assert found[1].ids == whole.ids
    for each in (failing, other):
        decoder.forget(each)
    await decoder.close()


async def test_a_cancelled_message_leaves_nothing_behind(decoder_of: Make) -> None:
    """Its caller may forget the session, or ask again, at once, even if it is cancelled again and again."""
    session, _ = await a_long_one(decoder_of)
    decoder = decoder_of()
    free_pages = decoder.load.free_pages
    for num_sampled in (0, 1):
        sampled_before = decoder.load.sampled_tokens
        task = under_way(decoder, [session])[session]
        await asyncio.sleep(0)
        await until(lambda: decoder.load.sampled_tokens >= sampled_before + num_sampled)  # noqa: B023 - called at once
        for _ in range(20):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        decoder.forget(session)
        await until(lambda: decoder.load.sessions == 0)
        assert decoder.load.free_pages == free_pages
    await decoder.close()


async def test_a_message_that_is_cancelled_as_it_ends_holds_up_no_other(decoder_of: Make) -> None:
    """At any moment: before, in or after the call that ends it."""
    expected = await alone(decoder_of, SESSIONS[1], SHORT)
    decoder = decoder_of()
    for number in range(12):
        asked = asyncio.create_task(decoder.generate(PROMPT, Sampling(2), SESSIONS[0]))
        await asyncio.sleep(number * 0.005)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        decoder.forget(SESSIONS[0])
        sampled = decoder.load.sampled_tokens
        asked = asyncio.create_task(decoder.generate(PROMPT, Sampling(2), SESSIONS[2]))
        while decoder.load.sampled_tokens == sampled:
            await asyncio.sleep(0.001)
        asked.cancel()  # it may have its message and not have heard of it yet
        await asyncio.gather(asked, return_exceptions=True)
        decoder.forget(SESSIONS[2])
    assert_same(await decoder.generate(PROMPT, SHORT, SESSIONS[1]), expected)
    await decoder.close()


async def test_close_leaves_no_task_and_tells_callers_that_still_wait(decoder_of: Make) -> None:
    before = asyncio.all_tasks()
    await decoder_of().close()
    decoder = decoder_of()
    await one_message(decoder, SESSIONS[0], Sampling(1))
    tasks = under_way(decoder, SESSIONS[1:3])
    await until(lambda: decoder.load.sampled_tokens > 1)
    await decoder.close()
    for task in tasks.values():
        with pytest.raises(DecoderError, match="closed"):
            await task
    with pytest.raises(DecoderError, match="the decoder is closed"):
        await decoder.generate(PROMPT, SHORT, SESSIONS[4])
    assert asyncio.all_tasks() == before


class Observed:
    """A device, and the sessions and places of all its calls."""

    def __init__(self, device: Device):
        self.device, self.calls = device, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    async def read(self, read: Read) -> None:
        self.calls.append([(row.track.session, row.track.num_cached, row.ids) for row in read.all_rows()])
        await self.device.read(read)

    async def sample(self, sample: Sample) -> Said:
        rows = sample.all_rows()
        self.calls.append([(row.track.session, len(row.track.ids), list(row.track.table)) for row in rows])
        return await self.device.sample(sample)


async def three_turns(decoder: PagedDecoder, session: Session, random: Random) -> list[Generated]:
    """Messages with tools that take any time."""
    ids, messages = PROMPT, []
    for _ in range(3):
        messages.append(await decoder.generate(ids, SHORT, session))
        ids = [*ids, *messages[-1].ids, *GIVEN]
        await asyncio.sleep(random.choice([0.0, 0.0, random.random() / 50]))
    decoder.forget(session)
    return messages


def test_with_calls_away_the_delays_of_tools_change_no_call_and_no_bit(untrained):
    """Pages run out, and sequences give way; that too follows from tokens alone."""

    def found(calls_away: int | None, delays: int) -> tuple[list, list]:
        random = Random(delays)
        observed = Observed(XLADevice(untrained.model_config, untrained.params, LIMITS, end_ids=END_IDS))

        async def main() -> list[list[Generated]]:
            decoder = PagedDecoder(observed, LIMITS, end_ids=END_IDS, calls_away=calls_away)
            messages = await asyncio.gather(*(three_turns(decoder, session, random) for session in SESSIONS))
            await decoder.close()
            return messages

        return observed.calls, asyncio.run(main())

    calls, messages = found(2, 0)
    assert found(2, 1) == (calls, messages)
    assert found(2, 2) == (calls, messages)
    other_calls, other_messages = found(None, 1)
    assert other_calls != calls, "delays must matter without calls_away"
    assert [[message.ids for message in of_session] for of_session in other_messages] == [
        [message.ids for message in of_session] for of_session in messages
    ]
