"""No tool holds a rollout up for longer than an episode may wait, and a service that fails leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import assistant_body, tool_call_text
from astra_jax.episodes.rollout import RolloutConfig, Start, finished
from astra_jax.testing import InProcessSandbox, tiny_environment, tiny_model_config
from sandbox.client import SandboxUnavailable
from synthesis.records import Message, ToolCall
from tests.astra_jax.engine.clock import run_on_clock
from tests.astra_jax.episodes.scripted_device import OnTheClock

ENVIRONMENT = tiny_environment()
STARTS = [Start(ENVIRONMENT, ENVIRONMENT.tools)] * 2
GROUP_SIZE = 3
GOLD = [message for message in ENVIRONMENT.gold_messages() if message.role == "assistant"]
MOST_SECONDS = 100.0
FOR_EVER = 1e9


class Slow(InProcessSandbox):
    """Answers each call after a time of its own."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.num_hung = list(seconds), 0

    async def execute(self, *arguments, **options):
        seconds = self.seconds.pop(0) if self.seconds else 1.0
        self.num_hung += seconds == FOR_EVER
        await asyncio.sleep(seconds)
        return await super().execute(*arguments, **options)


def spoken(message, tokenizer):
    return [*tokenizer.encode(assistant_body(message, is_last=True)), tokenizer.end_id]


def run(tokenizer, sandbox, messages=GOLD, **limits):
    """Return the groups, the engine, and how long it took by the clock."""
    config = RolloutConfig(max_prompt_tokens=512, max_response_tokens=512, max_turns=6, **limits)
    engine = OnTheClock(tiny_model_config(tokenizer.vocab_size), tokenizer, sandbox, config)
    engine.messages = [spoken(message, tokenizer) for message in messages]

    async def main():
        loop = asyncio.get_running_loop()
        try:
            return await engine.run({}, STARTS, group_size=GROUP_SIZE, seed=0), engine, loop.time()
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}
            load = engine.load
            assert (load.sessions, load.waiting, load.free_pages) == (0, 0, engine.num_pages)

    return run_on_clock(main())


def rows(episode):
    ledger = episode.ledger
    return list(zip(ledger.ids, ledger.sources, ledger.sampled_logprobs, ledger.turns, strict=True))


def test_only_an_episode_that_waits_too_long_is_cut_off_and_no_other_changes(tokenizer):
    """Also if all wait for the row that is due: the time of others does not count as an episode's own."""

    @settings(max_examples=30)
    @given(st.lists(st.sampled_from([1.0, 40.0, 70.0, FOR_EVER]), max_size=14), st.booleans())
    def check(seconds, reproducible):
        groups, _, at_best = run(tokenizer, Slow([]), reproducible=reproducible)
        whole = rows(groups[0][0])
        sandbox = Slow(seconds)
        groups, _, took = run(tokenizer, sandbox, reproducible=reproducible, max_tool_seconds=MOST_SECONDS)
        episodes = [episode for group in groups for episode in group]
        # An episode calls twice: 1 s, 40 s and 70 s are each in time, 40 + 70 and 70 + 70 are not.
        for episode in episodes:
            assert episode.is_unfinished == (episode.tool_seconds >= MOST_SECONDS)
            assert episode.stop_reason == ("deadline" if episode.is_unfinished else "no_tool_call")
            assert rows(episode) == whole[: len(episode.ledger)]
            assert episode.is_unfinished or len(episode.ledger) == len(whole)
            assert episode.tool_seconds <= MOST_SECONDS + 1e-6
        assert sum(episode.is_unfinished for episode in episodes) >= sandbox.num_hung
        assert finished(groups) == [group for group in groups if not any(each.is_unfinished for each in group)]
        # At worst they wait one after another; fewer rows that are full cost some time, too.
        assert took <= 2 * at_best + len(episodes) * MOST_SECONDS

    check()


class OwnTimeout(InProcessSandbox):
    async def execute(self, *_, **__):
        raise TimeoutError("of something else")


def test_another_timeout_is_not_taken_for_the_deadline(tokenizer):
    with pytest.raises(TimeoutError, match="of something else"):
        run(tokenizer, OwnTimeout(), max_tool_seconds=MOST_SECONDS)


class GoneAfter(InProcessSandbox):
    """Answers some calls at once, fails one, and lets all others hang."""

    async def execute(self, *arguments, **options):
        self.num_calls += 1
        if self.num_calls == 4:
            raise SandboxUnavailable("nobody answers")
        await asyncio.sleep(FOR_EVER if self.num_calls > 1 else 0)
        return await super().execute(*arguments, **options)


@pytest.mark.parametrize("reproducible", [True, False])
def test_an_outage_leaves_no_task_and_no_page_behind_and_takes_no_time(tokenizer, reproducible):
    """Not even the other calls of the turn in which it was seen."""
    call = ToolCall(id="c", name="find_flat", arguments={"owner": "Quartz Heron"})
    three = Message(role="assistant", reasoning_content="So", content="", tool_calls=(call,) * 3)
    assert assistant_body(three).count(tool_call_text(call)) == 3
    sandbox = GoneAfter()
    with pytest.raises(SandboxUnavailable, match="nobody answers"):
        run(tokenizer, sandbox, messages=[three, GOLD[-1]], reproducible=reproducible)
    assert sandbox.num_calls >= 4
