"""Real rollouts of a tiny model: the learner's log-probs equal the sampled ones, and a seed repeats."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import numpy as np
import pytest

from astra_jax.chat.format import Source, render
from astra_jax.engine import device
from astra_jax.engine import sizes as sizes_module
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import PromptTooLong, RolloutConfig, RolloutEngine, Start
from astra_jax.mesh.hosts import HostFailed
from astra_jax.rl.batch import make_rl_batch
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import rl_loss
from astra_jax.testing import InProcessSandbox, tiny_environment
from sandbox.client import AsyncSandboxClient

TEMPERATURE = 0.9
LIMITS = RolloutConfig(
    max_prompt_tokens=256, max_response_tokens=160, max_turns=6, temperature=TEMPERATURE, read_tokens=64
)
KNOWN = tiny_environment()
STRANGE = tiny_environment(owner="Teal Finch", flat="Opal Gate", rent=777)
STARTS = [Start(KNOWN, KNOWN.tools), Start(STRANGE, STRANGE.tools)]
GROUP_SIZE = 3


async def roll_out(policy, starts=STARTS, seed=0, sandbox=None, config=LIMITS):
    engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox or InProcessSandbox(), config)
    return await engine.run(policy.params, starts, group_size=GROUP_SIZE, seed=seed, policy_version=4)


def rows(episode):
    ledger = episode.ledger
    return list(zip(ledger.ids, ledger.sources, ledger.sampled_logprobs, ledger.turns, strict=True))


@pytest.fixture(scope="module")
def groups(taught):
    return asyncio.run(roll_out(taught))


def test_groups_come_back_in_the_order_they_were_submitted(groups):
    assert [[episode.environment for episode in group] for group in groups] == [[KNOWN] * 3, [STRANGE] * 3]
    assert all(episode.stop_reason is not None for group in groups for episode in group)
    assert {version for group in groups for each in group for version in each.ledger.policy_versions} == {-1, 4}


def test_sampled_logprobs_equal_the_learners_on_the_same_tokens(taught, groups):
    """Also those of tokens after tool responses, which entered the cache in one piece."""
    scored = [ScoredGroup(group, tuple(map(float, range(GROUP_SIZE))), 4) for group in groups]
    batch, _ = make_rl_batch(scored, length_bucket_tokens=128, pad_id=taught.tokenizer.pad_id)
    objective = Objective(TEMPERATURE, clip_epsilon=0.2, chunk_tokens=128)
    _, learnt_BT = rl_loss(taught.params, batch, model_config=taught.model_config, objective=objective)
    is_sampled = np.asarray(batch.loss_mask_BT) > 0
    np.testing.assert_allclose(
        np.asarray(learnt_BT)[is_sampled], np.asarray(batch.sampled_logprobs_BT)[is_sampled], rtol=0, atol=2e-5
    )
    turns = [turn for group in groups for e in group for *_, source, _, turn in rows(e) if source == Source.MODEL]
    assert turns.count(1) > 50
    assert turns.count(2) + turns.count(3) > 50


async def test_the_rows_that_an_episode_is_in_change_none_of_its_tokens(taught, groups, monkeypatch):
    monkeypatch.setattr(sizes_module, "_ROWS_OF_CPU", 2)
    for group, same in zip(groups, await roll_out(taught), strict=True):
        assert [episode.ledger.ids for episode in group] == [episode.ledger.ids for episode in same]


class SlowSandbox(InProcessSandbox):
    """Tools that take another time at every call."""

    async def execute(self, *args, **kwargs):
        await asyncio.sleep(random.random() / 50)
        return await super().execute(*args, **kwargs)


async def test_the_same_seed_gives_the_same_bytes_however_long_tools_take_and_another_seed_others(taught, groups):
    again, other = await roll_out(taught, sandbox=SlowSandbox()), await roll_out(taught, seed=1)
    for group, same in zip(groups, again, strict=True):
        assert list(map(rows, group)) == list(map(rows, same))
        assert [episode.outcomes for episode in group] == [episode.outcomes for episode in same]
    assert [e.ledger.ids for group in groups for e in group] != [e.ledger.ids for group in other for e in group]


async def test_episodes_that_wait_for_no_other_have_the_same_tokens(taught, groups):
    """Their log-probs are the same up to the order of sums."""
    config = LIMITS.model_copy(update={"reproducible": False})
    for group, same in zip(groups, await roll_out(taught, sandbox=SlowSandbox(), config=config), strict=True):
        for one, other in zip(group, same, strict=True):
            assert one.ledger.ids == other.ledger.ids
            assert (other.tool_seconds > 0) == bool(other.outcomes)
            np.testing.assert_allclose(one.ledger.sampled_logprobs, other.ledger.sampled_logprobs, atol=2e-5)


async def test_a_cold_policy_solves_its_lesson_through_a_real_sandbox(taught, sandbox_url):
    """SFT, tokens, cache, sandbox and reward in one: the sampled ledger is the rendered gold episode."""
    cold = LIMITS.model_copy(update={"temperature": 0.1})
    async with AsyncSandboxClient(sandbox_url) as sandbox:
        group, _ = await roll_out(taught, sandbox=sandbox, config=cold)
    documents = [tool.document for tool in KNOWN.tools]
    for episode in group:
        assert taught.tokenizer.decode(episode.ledger.ids) + "\n" == render(KNOWN.gold_messages(), documents)
        assert (episode.stop_reason, episode.num_turns) == ("no_tool_call", 3)
        assert episode_reward(episode) == pytest.approx(1.0, abs=1e-5)


async def test_greedy_episodes_are_alike_with_any_seed(taught):
    greedy = LIMITS.model_copy(update={"temperature": 0.0})
    groups, others = [await roll_out(taught, config=greedy, seed=seed) for seed in (0, 1)]
    assert [list(map(rows, group)) for group in groups] == [list(map(rows, group)) for group in others]
    assert all(len({tuple(episode.ledger.ids) for episode in group}) == 1 for group in groups)


class NeverAnswers(InProcessSandbox):
    def __init__(self):
        super().__init__()
        self.is_asked, self.num_left = asyncio.Event(), 0

    async def execute(self, *_, **__):
        self.num_left += 1
        self.is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.num_left -= 1


class Fails(RolloutEngine):
    """The real engine; its decoder fails as soon as a tool is waited for: another host has ended."""

    def _decoder(self, *args):
        decoder = super()._decoder(*args)

        async def until_failed():
            await self.sandbox.is_asked.wait()
            raise HostFailed("another host")

        decoder.until_failed = until_failed
        return decoder


async def test_after_a_decoder_failed_no_episode_waits_for_a_tool(taught):
    sandbox = NeverAnswers()
    engine = Fails(taught.model_config, taught.tokenizer, sandbox, LIMITS.model_copy(update={"temperature": 0.1}))
    with pytest.raises(HostFailed, match="another host"):
        await asyncio.wait_for(engine.run(taught.params, STARTS[:1], group_size=GROUP_SIZE, seed=0), 60)
    assert sandbox.is_asked.is_set()
    assert sandbox.num_left == 0


async def test_a_prompt_over_the_limit_is_refused_by_name(taught):
    short = LIMITS.model_copy(update={"max_prompt_tokens": 20})
    with pytest.raises(PromptTooLong, match=f"at most 20 tokens, found .*{KNOWN.id}.*raise max_prompt_tokens"):
        await roll_out(taught, config=short)


def test_only_an_environment_that_fits_and_has_a_question_can_be_run(taught):
    def can_run(environment, **limits):
        config = LIMITS.model_copy(update=limits)
        engine = RolloutEngine(taught.model_config, taught.tokenizer, InProcessSandbox(), config)
        return engine.can_run(Start(environment, environment.tools))

    assert can_run(KNOWN)
    assert not can_run(KNOWN, max_prompt_tokens=20)
    asked = tuple(question.model_copy(update={"call": None}) for question in KNOWN.sub_questions)
    idle = KNOWN.model_copy(update={"sub_questions": asked})
    assert not can_run(idle)
    assert can_run(idle.model_copy(update={"expectation": "refuse"}))
    assert can_run(idle.model_copy(update={"final_state": {}}))


def test_limits_beyond_the_models_context_are_refused_before_anything_runs(taught):
    long = LIMITS.model_copy(update={"max_response_tokens": 2000})
    with pytest.raises(ValueError, match="sequences of 2256 tokens exceed the model's context of 1024"):
        RolloutEngine(taught.model_config, taught.tokenizer, InProcessSandbox(), long)


async def test_a_rollout_that_is_given_up_waits_for_its_thread():
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def decode():
        begun.set()
        may_end.wait(10)
        ended.append(True)

    rollout = asyncio.ensure_future(device.off_the_loop(decode))
    await asyncio.to_thread(begun.wait)
    rollout.cancel()
    await asyncio.sleep(0.05)
    assert not rollout.done()  # the thread still holds weights and cache
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert ended == [True]


def test_the_end_of_a_loop_waits_for_its_thread():
    begun, ended = threading.Event(), []

    def decode():
        begun.set()
        time.sleep(0.2)
        ended.append("thread")

    async def rollout():
        try:
            await device.off_the_loop(decode)
        finally:
            ended.append("pages are given back")

    async def leave():
        rollouts.append(asyncio.ensure_future(rollout()))
        await asyncio.to_thread(begun.wait)

    rollouts: list[asyncio.Future[None]] = []
    asyncio.run(leave())
    assert ended == ["thread", "pages are given back"]


async def test_no_decoder_is_made_if_an_episode_cannot_begin(taught, monkeypatch):
    engine = RolloutEngine(taught.model_config, taught.tokenizer, InProcessSandbox(), LIMITS)
    decoders = []
    monkeypatch.setattr(engine, "_decoder", lambda *_: decoders.append(True))
    monkeypatch.setattr(engine, "_begun", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await engine.run(taught.params, [Start(KNOWN, KNOWN.tools)], group_size=1, seed=0)
    assert decoders == []
