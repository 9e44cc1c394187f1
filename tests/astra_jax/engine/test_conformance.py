"""The decoders there are pass the suite: on a tiny model, and on none; at each session's own pace, and in one order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from astra_jax.checkpoints.policy import Policy
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import Device, Said, XLADevice
from astra_jax.engine.interface import DecoderError, Generated, Sampling, Session
from astra_jax.engine.sizes import Limits
from astra_jax.engine.tracks import Read, Sample
from astra_jax.model.qwen3 import init_params
from astra_jax.plan.clock import ClockDevice, Costs, Lognormal, run_on_clock
from tests.astra_jax.engine.conformance import CLAUSES, GIVEN, PROMPT, SESSIONS, Subject

END_IDS = tuple(range(108, 116))  # of an untrained model, so many that some messages end
# Pages for hardly more than one session of full length; one shape, so that little is compiled.
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
Run = Callable[[Coroutine[Any, Any, None]], None]


def run_for_real(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, timeout=120))


def paged(policy: Policy, calls_away: int | None) -> tuple[Run, Subject]:
    def make(params: Any, version: int) -> PagedDecoder:
        device = XLADevice(policy.model_config, params, LIMITS, end_ids=END_IDS)
        return PagedDecoder(device, LIMITS, end_ids=END_IDS, policy_version=version, calls_away=calls_away)

    other = init_params(policy.model_config, seed=1)
    return run_for_real, Subject(make, policy.params, other, END_IDS, LIMITS.max_tokens, tolerance=1e-4)


def a_clock_device(limits: Limits = LIMITS) -> ClockDevice:
    return ClockDevice(limits, costs=Costs(0.02, 0.001), message_tokens=Lognormal(24, 0.9), end_ids=END_IDS)


def clock(policy: Policy, calls_away: int | None) -> tuple[Run, Subject]:
    def make(params: Any, version: int) -> PagedDecoder:
        return PagedDecoder(a_clock_device(), LIMITS, end_ids=END_IDS, policy_version=version, calls_away=calls_away)

    return run_on_clock, Subject(make, None, None, END_IDS, LIMITS.max_tokens)


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize("calls_away", [None, 2], ids=["own_pace", "one_order"])
@pytest.mark.parametrize("kind", [paged, clock])
def test_every_decoder_passes_the_suite(kind, calls_away, clause, untrained):
    run, subject = kind(untrained, calls_away)
    run(clause(subject))


def test_a_prompt_is_read_at_once_as_in_parts(untrained):
    """Its first tokens attend to one another as those find them that are read behind what lies in pages."""
    _, subject = paged(untrained, None)
    prompts = [[*range(first, first + 23)] for first in (21, 45, 60)]

    async def first_logprobs(*, in_parts: bool) -> list[float]:
        decoder, found = subject.a_decoder(), []
        for slot, prompt in enumerate(prompts):
            if in_parts:  # its first two pages lie there when it is read
                await decoder.generate(prompt[:17], Sampling(1), Session(7, 9 + slot))
            found += (await decoder.generate(prompt, Sampling(1, temperature=0.0), Session(7, slot))).logprobs
        await decoder.close()
        return found

    at_once, in_parts = (asyncio.run(first_logprobs(in_parts=in_parts)) for in_parts in (False, True))
    assert in_parts == pytest.approx(at_once, abs=1e-5)


class Observed:
    """A device, and the sessions and places of all its calls."""

    def __init__(self, device: Device):
        self.device, self.calls = device, []
        self.num_shards, self.vocab_size, self.num_programs = device.num_shards, device.vocab_size, 0

    @property
    def row_steps(self) -> int:
        return self.device.row_steps

    async def read(self, read: Read) -> None:
        rows = [row for of_shard in read.rows for row in of_shard]
        self.calls.append([(row.track.session, row.track.num_cached, row.ids) for row in rows])
        await self.device.read(read)

    async def sample(self, sample: Sample) -> Said:
        rows = sample.all_rows()
        self.calls.append([(row.track.session, len(row.track.ids), list(row.track.table)) for row in rows])
        return await self.device.sample(sample)

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        await self.device.idle(until, holds_up=holds_up)

    async def leave(self, *, failed: bool) -> None:
        await self.device.leave(failed=failed)

    def close(self) -> None:
        self.device.close()


async def three_turns(decoder: PagedDecoder, session: Session, random: Random) -> list[Generated]:
    """Messages with tools that take any time."""
    ids, messages = PROMPT, []
    for _ in range(3):
        messages.append(await decoder.generate(ids, Sampling(24), session))
        ids = [*ids, *messages[-1].ids, *GIVEN]
        await asyncio.sleep(random.choice([0.0, 0.0, random.random() / 50]))
    decoder.forget(session)
    return messages


def calls_and_messages(device: Device, calls_away: int | None, run: Any, *, delays: int) -> tuple[list, list]:
    observed, random = Observed(device), Random(delays)

    async def main() -> list[list[Generated]]:
        decoder = PagedDecoder(observed, LIMITS, end_ids=END_IDS, calls_away=calls_away)
        found = await asyncio.gather(*(three_turns(decoder, session, random) for session in SESSIONS))
        await decoder.close()
        return found

    return observed.calls, run(main())


@pytest.mark.parametrize("kind", ["paged", "clock"])
def test_with_calls_away_the_delays_of_tools_change_no_call_and_no_bit(kind, untrained):
    """Pages run out, and sequences give way; that too follows from tokens alone."""

    def found(calls_away: int | None, delays: int) -> tuple[list, list]:
        if kind == "clock":
            return calls_and_messages(a_clock_device(LIMITS), calls_away, run_on_clock, delays=delays)
        config, params = untrained.model_config, untrained.params
        device = XLADevice(config, params, LIMITS, end_ids=END_IDS)
        return calls_and_messages(device, calls_away, asyncio.run, delays=delays)

    calls, messages = found(2, 0)
    assert found(2, 1) == (calls, messages)
    assert found(2, 2) == (calls, messages)
    other_calls, other_messages = found(None, 1)
    assert other_calls != calls, "delays must matter to somebody"
    assert [[message.ids for message in of_session] for of_session in other_messages] == [
        [message.ids for message in of_session] for of_session in messages
    ]


def test_a_call_that_fails_fails_every_message_and_the_next_one_begins_anew():
    class Fails(ClockDevice):
        async def sample(self, sample: Sample) -> Said:
            if fails:
                raise OSError("lost")
            return await super().sample(sample)

    async def main() -> None:
        device = Fails(LIMITS, costs=Costs(0.02, 0.001), message_tokens=Lognormal(24, 0.9), end_ids=END_IDS)
        decoder = PagedDecoder(device, LIMITS, end_ids=END_IDS, calls_away=2)
        asked = [decoder.generate(PROMPT, Sampling(24), session) for session in SESSIONS]
        failed = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(error) for error in failed] == ["lost"] * len(SESSIONS)
        fails.clear()
        read_before = decoder.load.read_tokens
        assert (await decoder.generate(PROMPT, Sampling(24), SESSIONS[0])).ids
        assert decoder.load.read_tokens == read_before + len(PROMPT) - 1, "what was cached then is read again"
        await decoder.close()

    fails = [True]
    run_on_clock(main())


def test_whoever_still_waits_when_a_decoder_is_closed_is_told():
    async def main() -> None:
        decoder = PagedDecoder(a_clock_device(), LIMITS, end_ids=END_IDS)
        task = asyncio.create_task(decoder.generate(PROMPT, Sampling(24), SESSIONS[0]))
        await asyncio.sleep(0.03)
        await decoder.close()
        with pytest.raises(DecoderError, match="closed"):
            await task

    run_on_clock(main())


def test_on_the_clock_sleeps_take_no_time_and_those_who_wait_for_one_another_are_found_out():
    async def main() -> float:
        start = asyncio.get_running_loop().time()
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        return asyncio.get_running_loop().time() - start

    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    assert run_on_clock(main()) == pytest.approx(7200)
    with pytest.raises(RuntimeError, match="all wait for one another"):
        run_on_clock(wait_for_nobody())


def test_lengths_are_drawn_from_their_distribution():
    drawn = sorted(Lognormal(100, 0.5).draw(0, slot) for slot in range(2001))
    assert drawn[1000] == pytest.approx(100, rel=0.05)
    assert drawn[1682] == pytest.approx(100 * math.exp(0.5), rel=0.08)
    assert Lognormal(100, 0.5).draw(0, 1) == Lognormal(100, 0.5).draw(0, 1) != Lognormal(100, 0.5).draw(1, 0)
