"""The engine against the full forward pass: it shares only the model, and how a token is drawn, with the engine."""

from __future__ import annotations

import asyncio
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.checkpoints.policy import Policy
from astra_jax.engine import device as device_module
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import XLADevice
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.programs import sample_rows
from astra_jax.engine.sampling import sample_tokens, slot_keys
from astra_jax.engine.schedule import Schedule
from astra_jax.engine.sizes import Limits
from astra_jax.mesh.placement import in_force, place_params
from astra_jax.model.qwen3 import bind
from astra_jax.model.sharding import MeshConfig, make_mesh

PROMPTS = [[11, 12, 13], [14, 15], [11 + i % 40 for i in range(53)]]
SLOTS_PER_PROMPT = 3
LIMIT = 40
GIVEN = [[21 + slot] * (slot * 5 % 23) for slot in range(9)]
"""Tokens that each slot is given after its first message: none, less than a page, more than one, more than one read."""


def limits(num_pages: int) -> Limits:
    return Limits(
        max_tokens=112,
        num_pages=num_pages,
        page_tokens=8,
        row_counts=(4, 1),
        sample_tokens=5,
        read_rows=2,
        read_tokens=16,
        first_read_rows=2,
        first_read_tokens=32,
    )


END_IDS = tuple(range(0, 364, 14))
"""An untrained policy hardly ever says the one that it should: with these a message has 14 tokens on average."""


def a_decoder(policy, *, num_pages=200, **kwargs) -> PagedDecoder:
    own = limits(num_pages)
    device = XLADevice(policy.model_config, policy.params, own, end_ids=END_IDS)
    return PagedDecoder(device, own, end_ids=END_IDS, **kwargs)


async def two_messages(decoder, slot, *, temperature=1.0, delay=0.0, first=0):
    """Return both messages of a slot, and all its tokens."""
    prompt = PROMPTS[slot // SLOTS_PER_PROMPT]
    session = Session(seed=3, slot=slot)
    await asyncio.sleep(first)
    one = await decoder.generate(prompt, Sampling(LIMIT, temperature), session)
    ids = [*prompt, *one.ids, *GIVEN[slot]]
    room = LIMIT + len(prompt) - len(ids)
    if room < 1:
        decoder.forget(session)
        return [one], ids
    await asyncio.sleep(delay)
    two = await decoder.generate(ids, Sampling(room, temperature), session)
    decoder.forget(session)
    return [one, two], [*ids, *two.ids]


def by_forward_passes(policy, temperature):
    """Return the two messages of every slot: ids and log-probs, each token by a forward pass of all before it."""
    model = bind(policy.model_config, policy.params)
    whole = jnp.zeros(1, jnp.int32), jnp.ones(1)

    @jax.jit
    def next_token(ids_1T, count, key_1, num_drawn):
        hidden_1TD = model(ids_1T, jnp.arange(ids_1T.shape[1])[None], jnp.ones_like(ids_1T))
        logits_1V = model.logits(hidden_1TD[:, count - 1])
        return sample_tokens(logits_1V, key_1, num_drawn[None], jnp.array([temperature]), *whole)

    def message(slot, ids, num_prompt):
        said = []
        while len(ids) + len(said) < num_prompt + LIMIT and not (said and said[-1][0] in END_IDS):
            so_far = [*ids, *(id_ for id_, _ in said)]
            padded_1T = np.zeros((1, 112), np.int32)  # a causal model does not see the zeros that come later
            padded_1T[0, : len(so_far)] = so_far
            drawn = next_token(padded_1T, len(so_far), slot_keys(3, slot, 1), np.int32(len(so_far) - num_prompt))
            said.append((int(drawn.ids_E[0]), float(drawn.logprobs_E[0])))
        return said

    found = []
    for slot in range(9):
        prompt = PROMPTS[slot // SLOTS_PER_PROMPT]
        one = message(slot, prompt, len(prompt))
        two = message(slot, [*prompt, *(id_ for id_, _ in one), *GIVEN[slot]], len(prompt))
        found.append([one, two] if two else [one])
    return found


@pytest.fixture(scope="module")
def expected(untrained):
    return by_forward_passes(untrained, 1.0)


def assert_same(found, expected):
    for (messages, _), same in zip(found, expected, strict=True):
        assert [message.ids for message in messages] == [[id_ for id_, _ in message] for message in same]
        for one, other in zip(messages, same, strict=True):
            np.testing.assert_allclose(one.logprobs, [logprob for _, logprob in other], atol=2e-5)


async def all_slots(decoder, **kwargs):
    found = await asyncio.gather(*(two_messages(decoder, slot, **kwargs) for slot in range(9)))
    await decoder.close()
    return found


@pytest.mark.parametrize("num_pages", [200, 18])
async def test_its_tokens_are_the_oracles_in_any_order_of_arrival(untrained, expected, num_pages):
    """With 18 pages there is room for hardly more than one sequence: all others are let go of, and read again."""
    rng = random.Random(num_pages)
    decoder = a_decoder(untrained, num_pages=num_pages)
    order = rng.sample(range(9), 9)
    found = await asyncio.gather(
        *(two_messages(decoder, slot, delay=rng.random() / 20, first=rng.random() / 20) for slot in order)
    )
    await decoder.close()
    assert_same([found[order.index(slot)] for slot in range(9)], expected)
    assert decoder.load.free_pages == num_pages
    assert sum(len(messages) == 2 for messages in expected) > 4, "this test must see second messages"


async def test_a_temperature_divides_the_logits(untrained):
    assert_same(await all_slots(a_decoder(untrained), temperature=0.7), by_forward_passes(untrained, 0.7))


async def test_a_prompt_is_read_once(untrained, expected):
    decoder = a_decoder(untrained)
    await all_slots(decoder)
    messages = [messages for messages in expected if len(messages) == 2]
    # Full pages once; each slot reads the rest of its prompt itself.
    prompts = sum((len(prompt) - 1) // 8 * 8 + SLOTS_PER_PROMPT * ((len(prompt) - 1) % 8) for prompt in PROMPTS)
    # Between two messages: the end of the first, which was pending, and all given tokens but the last.
    given = sum(len(GIVEN[slot]) for slot, messages in enumerate(expected) if len(messages) == 2)
    assert messages
    assert prompts < decoder.load.read_tokens <= prompts + given


async def test_a_conversation_that_comes_back_with_its_history_is_not_read_again(untrained):
    decoder = a_decoder(untrained)
    history = [30 + i % 9 for i in range(48)]
    first = await decoder.generate(history, Sampling(4), Session(1, 0))
    decoder.forget(Session(1, 0))
    before = decoder.load.read_tokens
    await decoder.generate([*history, *first.ids, 7], Sampling(4), Session(1, 1))
    assert decoder.load.read_tokens - before <= 8 + len(first.ids)  # the page that was not full, and the new tokens


async def test_after_a_call_that_failed_the_next_ones_begin_anew(untrained, expected, monkeypatch):
    decoder = a_decoder(untrained)

    def fails(*args, **kwargs):
        sample_rows(*args, **kwargs)  # which the pages are given to
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(device_module, "sample_rows", fails)
        sessions = [Session(seed=3, slot=slot) for slot in range(3)]
        asked = (decoder.generate(PROMPTS[0], Sampling(LIMIT), session) for session in sessions)
        assert list(map(str, await asyncio.gather(*asked, return_exceptions=True))) == ["the device is gone"] * 3
    for session in sessions:
        decoder.forget(session)
    assert_same(await all_slots(decoder), expected)


@pytest.mark.parametrize("mesh", [pytest.param(None, marks=pytest.mark.slow), MeshConfig(data=2, fsdp=2, tensor=2)])
async def test_a_read_of_one_shape_is_one_program_for_all_layers(untrained, mesh):
    """Pages of this many no other test has: each program is compiled here, or found on disk."""
    compiled, mesh = [], mesh and make_mesh(mesh)

    def note(event, _, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(about["fun_name"])

    with in_force(mesh):
        params = place_params(untrained.params, mesh)
        decoder = a_decoder(Policy(untrained.model_config, params, untrained.tokenizer), num_pages=197)
        jax.monitoring.register_event_duration_secs_listener(note)
        try:
            await all_slots(decoder)
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
    # Prompts begin in rows of 32 tokens and continue in rows of 16.
    assert [name for name in compiled if "read" in name] == ["jit(read_layer)"] * 2


async def test_letting_go_of_others_in_vain_is_left_alone(untrained):
    schedule = Schedule(limits(18), num_shards=1, vocab_size=512)
    idle, asking = (schedule.ask(Session(0, i), [i + 2] * 20, Sampling(1), 0) for i in range(2))
    assert schedule.next_read() is not None
    idle.sampling = None
    assert schedule._pages(asking, 19, set()) is None
    assert idle.table
