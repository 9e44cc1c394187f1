"""The contract of every decoder: `CLAUSES`, each a coroutine of a `Subject` that asserts.

`test_conformance.py` runs them for the decoders there are. None knows a page or a row; none needs the time that it runs
in to be real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from astra_jax.engine.interface import Decoder, DecoderError, Generated, Sampling, Session

PROMPT = list(range(21, 41))
GIVEN = [41, 42, 43, 44, 45]
SHORT, LONG = Sampling(24), Sampling(100)
SESSIONS = [Session(7, slot) for slot in range(6)]


@dataclass(frozen=True)
class Subject:
    """A kind of decoder."""

    make: Callable[[Any, int], Decoder]
    """Of these weights, and their version."""
    weights: Any
    other_weights: Any
    end_ids: tuple[int, ...]
    max_tokens: int
    """Of a sequence."""
    tolerance: float = 1e-4
    """How far log-probs may be apart where other calls computed them."""

    def a_decoder(self) -> Decoder:
        return self.make(self.weights, 0)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("waited for nothing")


def same(found: Generated, expected: Generated, tolerance: float) -> bool:
    return (found.ids, found.finish) == (expected.ids, expected.finish) and found.logprobs == pytest.approx(
        expected.logprobs, abs=tolerance
    )


async def one_message(decoder: Decoder, session: Session, sampling: Sampling) -> Generated:
    message = await decoder.generate(PROMPT, sampling, session)
    decoder.forget(session)
    return message


def under_way(
    decoder: Decoder, sessions: list[Session], sampling: Sampling = LONG
) -> dict[Session, asyncio.Task[Generated]]:
    return {session: asyncio.create_task(one_message(decoder, session, sampling)) for session in sessions}


async def alone(subject: Subject, session: Session, sampling: Sampling = LONG) -> Generated:
    decoder = subject.a_decoder()
    message = await decoder.generate(PROMPT, sampling, session)
    await decoder.close()
    return message


async def a_long_one(subject: Subject) -> tuple[Session, Generated]:
    """A session whose message takes many calls."""
    decoder = subject.a_decoder()
    messages = await asyncio.gather(*under_way(decoder, SESSIONS).values())
    await decoder.close()
    session, message = max(zip(SESSIONS, messages, strict=True), key=lambda pair: len(pair[1].ids))
    assert len(message.ids) > 40, "this suite needs a message that is long"
    return session, message


async def two_turns(decoder: Decoder, session: Session, *, delay: float = 0.0) -> list[Generated]:
    await asyncio.sleep(delay)
    first = await decoder.generate(PROMPT, SHORT, session)
    await asyncio.sleep(delay)
    second = await decoder.generate([*PROMPT, *first.ids, *GIVEN], SHORT, session)
    decoder.forget(session)
    return [first, second]


async def a_message_ends_with_an_end_token_or_at_its_limit(subject: Subject) -> None:
    decoder = subject.a_decoder()
    finishes = set()
    for sampling in (Sampling(1), Sampling(5), SHORT):
        for task in under_way(decoder, SESSIONS, sampling).values():
            message = await task
            finishes.add(message.finish)
            assert len(message.ids) == len(message.logprobs) == len(message.policy_versions) <= sampling.max_tokens
            assert set(subject.end_ids).isdisjoint(message.ids[:-1])
            assert (message.finish == "end") == (message.ids[-1] in subject.end_ids)
            assert message.finish == "end" or len(message.ids) == sampling.max_tokens
            assert set(message.policy_versions) == {0}
            assert max(message.logprobs) <= 0
    assert finishes == {"end", "length"}, "this suite needs messages of both kinds"
    await decoder.close()


async def neighbours_and_the_time_of_a_call_change_no_token(subject: Subject) -> None:
    expected = []
    for session in SESSIONS:
        decoder = subject.a_decoder()
        expected.append(await two_turns(decoder, session))
        await decoder.close()
    assert len({tuple(first.ids) for first, _ in expected}) == len(SESSIONS), "sessions draw on their own"
    for delays in ([0.0] * 6, [0.05, 0.0, 0.03, 0.01, 0.04, 0.02]):
        decoder = subject.a_decoder()
        found = await asyncio.gather(
            *(two_turns(decoder, session, delay=delay) for session, delay in zip(SESSIONS, delays, strict=True))
        )
        await decoder.close()
        for messages, as_expected in zip(found, expected, strict=True):
            assert all(same(*pair, subject.tolerance) for pair in zip(messages, as_expected, strict=True))


async def what_truncation_kept_is_handed_out_and_every_token_is_among_it(subject: Subject) -> None:
    decoder = subject.a_decoder()
    few, many = Sampling(24, top_k=5, top_p=0.9), Sampling(24, top_p=0.9)
    whole, truncated = under_way(decoder, SESSIONS[:2], SHORT), under_way(decoder, SESSIONS[2:4], few)
    others = under_way(decoder, SESSIONS[4:6], many)
    for task in [*whole.values(), *others.values()]:
        assert (await task).kept == []
    for session, task in truncated.items():
        message = await task
        for token, kept in zip(message.ids, message.kept, strict=True):
            assert token in kept
            assert len(set(kept)) == len(kept) <= 5
        assert same(message, await alone(subject, session, few), subject.tolerance), (
            "neighbours that truncate otherwise change nothing"
        )
    await decoder.close()


async def a_second_message_goes_on_from_the_first_and_what_was_given(subject: Subject) -> None:
    greedy = Sampling(12, temperature=0.0)
    decoder = subject.a_decoder()
    first = await decoder.generate(PROMPT, greedy, SESSIONS[0])
    ids = [*PROMPT, *first.ids, *GIVEN]
    second = await decoder.generate(ids, greedy, SESSIONS[0])
    fresh = subject.a_decoder()
    assert same(second, await fresh.generate(ids, greedy, SESSIONS[0]), subject.tolerance)
    await asyncio.gather(decoder.close(), fresh.close())


async def a_session_may_say_something_else_than_it_was_given(subject: Subject) -> None:
    """A caller shortens what was said: what is cached of the rest is not used, even if less than a prompt is left."""
    greedy = Sampling(12, temperature=0.0)
    decoder, fresh = subject.a_decoder(), subject.a_decoder()
    await decoder.generate(PROMPT, greedy, SESSIONS[0])
    for ids in ([*PROMPT, *GIVEN, *GIVEN], PROMPT[:4]):
        expected = await fresh.generate(ids, greedy, SESSIONS[0])
        fresh.forget(SESSIONS[0])
        await until(lambda: fresh.load.sessions == 0)
        assert same(await decoder.generate(ids, greedy, SESSIONS[0]), expected, subject.tolerance)
    await asyncio.gather(decoder.close(), fresh.close())


async def two_messages_of_one_session_at_once_are_refused(subject: Subject) -> None:
    expected = await alone(subject, SESSIONS[0], SHORT)
    decoder = subject.a_decoder()
    first, second = await asyncio.gather(
        *(decoder.generate(PROMPT, SHORT, SESSIONS[0]) for _ in range(2)), return_exceptions=True
    )
    assert isinstance(first, Generated)
    assert same(first, expected, subject.tolerance)
    assert isinstance(second, DecoderError)
    assert "\n" not in str(second)
    ids = [*PROMPT, *first.ids, *GIVEN]
    third, fourth = await asyncio.gather(
        *(decoder.generate(ids, SHORT, SESSIONS[0]) for _ in range(2)), return_exceptions=True
    )
    assert isinstance(third, Generated)
    assert isinstance(fourth, DecoderError)
    await decoder.close()


async def what_is_too_long_is_refused_and_nothing_is_lost(subject: Subject) -> None:
    decoder, other = subject.a_decoder(), subject.a_decoder()
    expected = await two_turns(other, SESSIONS[0])
    too_long = Sampling(subject.max_tokens - len(PROMPT) + 1)
    with pytest.raises(DecoderError, match=rf"^[^\n]*{subject.max_tokens} tokens[^\n]*$"):
        await decoder.generate(PROMPT, too_long, SESSIONS[0])
    for ids, max_tokens in (([], 1), (PROMPT, 0)):
        with pytest.raises(DecoderError):
            await decoder.generate(ids, Sampling(max_tokens), SESSIONS[0])
    first = await decoder.generate(PROMPT, SHORT, SESSIONS[0])
    with pytest.raises(DecoderError):
        await decoder.generate([*PROMPT, *first.ids], too_long, SESSIONS[0])
    second = await decoder.generate([*PROMPT, *first.ids, *GIVEN], SHORT, SESSIONS[0])
    assert [same(*pair, subject.tolerance) for pair in zip([first, second], expected, strict=True)] == [True, True]
    await asyncio.gather(decoder.close(), other.close())


async def ids_that_are_none_of_the_vocabulary_are_refused(subject: Subject) -> None:
    expected = await alone(subject, SESSIONS[0], SHORT)
    decoder = subject.a_decoder()
    for ids, sampling in (([*PROMPT, 10**6], SHORT), ([-1, *PROMPT], SHORT), (PROMPT, Sampling(24, stop_ids=(10**6,)))):
        with pytest.raises(DecoderError, match=r"^[^\n]*token ids from 0 to \d+, found (1000000|-1)[^\n]*$"):
            await decoder.generate(ids, sampling, SESSIONS[0])
    assert same(await decoder.generate(PROMPT, SHORT, SESSIONS[0]), expected, subject.tolerance)
    await decoder.close()


async def a_stop_id_ends_a_message_too_and_what_follows_is_as_if_nothing_had_come_after_it(subject: Subject) -> None:
    session, expected = await a_long_one(subject)
    decoder, fresh = subject.a_decoder(), subject.a_decoder()
    stop_id = expected.ids[20]
    count = expected.ids.index(stop_id) + 1
    message = await decoder.generate(PROMPT, Sampling(LONG.max_tokens, stop_ids=(stop_id,)), session)
    assert (message.ids, message.finish) == (expected.ids[:count], "end")
    assert message.logprobs == pytest.approx(expected.logprobs[:count], abs=1e-4)
    assert len(message.policy_versions) == count
    ids, greedy = [*PROMPT, *message.ids, *GIVEN], Sampling(12, temperature=0.0)
    assert same(
        await decoder.generate(ids, greedy, session), await fresh.generate(ids, greedy, session), subject.tolerance
    )
    await asyncio.gather(decoder.close(), fresh.close())


async def an_aborted_message_returns_what_there_is_and_others_go_on(subject: Subject) -> None:
    session, expected = await a_long_one(subject)
    others = [other for other in SESSIONS if other != session][:2]
    expected_others = [await alone(subject, other) for other in others]
    decoder = subject.a_decoder()
    task, tasks = asyncio.create_task(decoder.generate(PROMPT, LONG, session)), under_way(decoder, others)
    await until(lambda: decoder.load.sampled_tokens > 0)
    decoder.abort(session)
    message = await task
    assert message.finish == "aborted"
    assert 0 < len(message.ids) < len(expected.ids)
    assert message.ids == expected.ids[: len(message.ids)]
    assert len(message.ids) == len(message.logprobs) == len(message.policy_versions)
    # It may go on: its draws are counted from its prompt.
    rest = await decoder.generate([*PROMPT, *message.ids], Sampling(LONG.max_tokens - len(message.ids)), session)
    found = [await tasks[other] for other in others]
    assert all(same(*pair, subject.tolerance) for pair in zip(found, expected_others, strict=True))
    decoder.abort(session)  # no message: nothing to do
    assert rest.finish in ("end", "length")
    await decoder.close()


async def who_listens_hears_every_token_once_and_may_end_the_message(subject: Subject) -> None:
    session, whole = await a_long_one(subject)
    heard: list[tuple[int, float]] = []
    calls: list[int] = []

    def told(ids: list[int], logprobs: list[float]) -> None:
        heard.extend(zip(ids, logprobs, strict=True))
        calls.append(len(ids))

    decoder = subject.a_decoder()
    message = await decoder.generate(PROMPT, LONG, session, told)
    assert [id_ for id_, _ in heard] == message.ids == whole.ids
    assert [logprob for _, logprob in heard] == message.logprobs
    decoder.forget(session)

    def told_to_end(ids: list[int], logprobs: list[float]) -> None:
        told(ids, logprobs)
        decoder.abort(again)

    heard.clear()
    again = replace(session, number=1)
    ended = await decoder.generate(PROMPT, LONG, again, told_to_end)
    assert [id_ for id_, _ in heard] == ended.ids == whole.ids[: len(ended.ids)]
    assert len(ended.ids) in (calls[0], len(whole.ids))  # what comes from a server is whole
    decoder.forget(again)
    await decoder.close()


async def a_listener_that_fails_ends_its_own_message_alone(subject: Subject) -> None:
    session, whole = await a_long_one(subject)
    decoder = subject.a_decoder()

    def fails(ids: list[int], logprobs: list[float]) -> None:
        raise RuntimeError("of the listener")

    failing, other = (replace(session, number=number) for number in (1, 2))
    found = await asyncio.gather(
        decoder.generate(PROMPT, LONG, failing, fails), decoder.generate(PROMPT, LONG, other), return_exceptions=True
    )
    assert isinstance(found[0], RuntimeError)
    assert isinstance(found[1], Generated)
    assert found[1].ids == whole.ids
    for each in (failing, other):
        decoder.forget(each)
    await decoder.close()


async def one_that_is_cancelled_again_and_again_is_let_go_of(subject: Subject) -> None:
    session, _ = await a_long_one(subject)
    decoder = subject.a_decoder()
    begun = asyncio.Event()

    async def asking() -> None:
        try:
            await decoder.generate(PROMPT, LONG, session, lambda ids, logprobs: begun.set())
        finally:
            decoder.forget(session)

    task = asyncio.create_task(asking())
    await begun.wait()
    for _ in range(20):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(task, return_exceptions=True)
    assert decoder.load.sessions == 0
    await decoder.close()


async def a_message_that_has_not_begun_is_aborted_too(subject: Subject) -> None:
    decoder = subject.a_decoder()
    first = await decoder.generate(PROMPT, Sampling(1), SESSIONS[0])
    task = asyncio.create_task(decoder.generate([*PROMPT, *first.ids, *GIVEN], LONG, SESSIONS[0]))
    await asyncio.sleep(0)
    decoder.abort(SESSIONS[0])
    message = await task
    assert (message.ids, message.finish) == ([], "aborted")
    await decoder.close()


async def a_cancelled_message_is_let_go_of(subject: Subject) -> None:
    """Its caller may forget the session, or ask again, at once; and nobody waits for it."""
    session, _ = await a_long_one(subject)
    decoder = subject.a_decoder()
    free_pages = decoder.load.free_pages
    expected = await alone(subject, SESSIONS[1], SHORT)
    for num_sampled in (0, 1):
        sampled_before = decoder.load.sampled_tokens
        task = under_way(decoder, [session])[session]
        await asyncio.sleep(0)
        await until(lambda: decoder.load.sampled_tokens >= sampled_before + num_sampled)  # noqa: B023 - called at once
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        decoder.forget(session)
        await until(lambda: decoder.load.sessions == 0)
        assert decoder.load.free_pages == free_pages
    asked = asyncio.create_task(decoder.generate(PROMPT, LONG, SESSIONS[1]))
    await until(lambda: decoder.load.waiting > 0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert same(await decoder.generate(PROMPT, SHORT, SESSIONS[1]), expected, subject.tolerance)
    await decoder.close()


async def one_that_is_cancelled_as_it_ends_holds_up_nobody(subject: Subject) -> None:
    """At whatever moment it is cancelled: before, in or after the call that ends it."""
    expected = await alone(subject, SESSIONS[1], SHORT)
    decoder = subject.a_decoder()
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
    assert same(await decoder.generate(PROMPT, SHORT, SESSIONS[1]), expected, subject.tolerance)
    await decoder.close()


async def nothing_that_is_cached_outlives_its_weights(subject: Subject) -> None:
    greedy = Sampling(12, temperature=0.0)
    decoder, fresh = subject.a_decoder(), subject.make(subject.other_weights, 5)
    first = await decoder.generate(PROMPT, greedy, SESSIONS[0])
    await decoder.update_weights(subject.other_weights, 5)
    ids = [*PROMPT, *first.ids, *GIVEN]
    # The session goes on, and another with the same prompt begins.
    second = await decoder.generate(ids, greedy, SESSIONS[0])
    decoder.forget(SESSIONS[0])
    begun = await decoder.generate(PROMPT, greedy, SESSIONS[1])
    assert set(second.policy_versions) == set(begun.policy_versions) == {5}
    assert same(second, await fresh.generate(ids, greedy, SESSIONS[0]), subject.tolerance)
    fresh.forget(SESSIONS[0])
    assert same(begun, await fresh.generate(PROMPT, greedy, SESSIONS[1]), subject.tolerance)
    await asyncio.gather(decoder.close(), fresh.close())


async def new_weights_sample_the_rest_of_a_message(subject: Subject) -> None:
    session, expected = await a_long_one(subject)
    decoder = subject.a_decoder()
    task = under_way(decoder, [session])[session]
    await until(lambda: decoder.load.sampled_tokens > 0)
    await decoder.update_weights(subject.other_weights, 5)
    message = await task
    old = message.policy_versions.count(0)
    assert 0 < old < len(message.ids)
    assert message.policy_versions == [0] * old + [5] * (len(message.ids) - old)
    assert message.ids[:old] == expected.ids[:old]
    await decoder.close()


async def what_is_forgotten_gives_its_pages_back(subject: Subject) -> None:
    decoder = subject.a_decoder()
    free_pages = decoder.load.free_pages
    await asyncio.gather(*(two_turns(decoder, session) for session in SESSIONS))
    decoder.forget(Session(99, 99))  # never heard of: nothing to do
    await until(lambda: decoder.load.sessions == 0)
    assert decoder.load.free_pages == free_pages
    assert decoder.load.waiting == 0
    await decoder.close()


async def close_leaves_no_task(subject: Subject) -> None:
    before = asyncio.all_tasks()
    decoder = subject.a_decoder()
    await decoder.close()
    decoder = subject.a_decoder()
    await one_message(decoder, SESSIONS[0], Sampling(1))
    tasks = under_way(decoder, SESSIONS[1:3])
    await until(lambda: decoder.load.sampled_tokens > 1)
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    await decoder.close()
    assert asyncio.all_tasks() == before


CLAUSES: list[Callable[[Subject], Awaitable[None]]] = [
    a_session_may_say_something_else_than_it_was_given,
    a_message_ends_with_an_end_token_or_at_its_limit,
    neighbours_and_the_time_of_a_call_change_no_token,
    what_truncation_kept_is_handed_out_and_every_token_is_among_it,
    a_second_message_goes_on_from_the_first_and_what_was_given,
    two_messages_of_one_session_at_once_are_refused,
    what_is_too_long_is_refused_and_nothing_is_lost,
    ids_that_are_none_of_the_vocabulary_are_refused,
    a_stop_id_ends_a_message_too_and_what_follows_is_as_if_nothing_had_come_after_it,
    an_aborted_message_returns_what_there_is_and_others_go_on,
    who_listens_hears_every_token_once_and_may_end_the_message,
    a_listener_that_fails_ends_its_own_message_alone,
    one_that_is_cancelled_again_and_again_is_let_go_of,
    a_message_that_has_not_begun_is_aborted_too,
    a_cancelled_message_is_let_go_of,
    one_that_is_cancelled_as_it_ends_holds_up_nobody,
    nothing_that_is_cached_outlives_its_weights,
    new_weights_sample_the_rest_of_a_message,
    what_is_forgotten_gives_its_pages_back,
    close_leaves_no_task,
]
