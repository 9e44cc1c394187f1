"""What is taken from the logits of what was said: against a loop over the full forward pass, in float64."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import XLADevice
from astra_jax.engine.interface import DecoderError, Generated, Sampling, Session
from astra_jax.engine.penalties import and_then, penalized, so_far
from astra_jax.engine.sizes import Limits, RowShape
from astra_jax.model.qwen3 import bind
from astra_jax.plan.clock import ClockDevice, Costs, Lognormal

PROMPT = [11, 12, 13, 12, 14, 15, 16]
LIMITS = Limits(
    max_prompt_tokens=16,
    max_tokens=64,
    num_pages=64,
    page_tokens=8,
    row_shapes=(RowShape(2, 2), RowShape(1, 1)),
    sample_tokens=5,  # a message takes several calls
    read_rows=2,
    read_tokens=16,
    first_read_rows=2,
    first_read_tokens=32,
)
HARSH = {"presence_penalty": 2.0, "frequency_penalty": 0.7, "repetition_penalty": 3.0}
VOCABULARY = 23


def expected_logits(logits_V, given_ids, said_ids, *, presence_penalty, frequency_penalty, repetition_penalty):
    """Token by token, as vLLM's documentation has the three."""
    penalised = np.float64(logits_V).copy()
    for token in {*given_ids, *said_ids}:
        penalised[token] *= repetition_penalty if penalised[token] <= 0 else 1 / repetition_penalty
    for token in said_ids:
        penalised[token] -= frequency_penalty
    for token in set(said_ids):
        penalised[token] -= presence_penalty
    return penalised


ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.tuples(ids, ids), min_size=2, max_size=2),
    more=ids,
    presence=st.floats(-2, 2, width=32),
    frequency=st.floats(-2, 2, width=32),
    repetition=st.floats(0.125, 8, width=32),
    seed=st.integers(0, 2**32 - 1),
)
def test_logits_are_the_references(texts, more, presence, frequency, repetition, seed) -> None:
    logits_RV = np.random.default_rng(seed).normal(0, 4, (2, VOCABULARY)).astype(np.float32)
    ids_RL = np.full((2, 40), -1)
    for row, (given_ids, said_ids) in enumerate(texts):
        ids_RL[row, : len(given_ids) + len(said_ids)] = [*given_ids, *said_ids]
    before = so_far(jnp.array(ids_RL), jnp.array([len(given_ids) for given_ids, _ in texts]), VOCABULARY)
    for token in more:  # the second row has ended
        before = and_then(before, jnp.array([token, token]), jnp.array([True, False]))
    weights = (jnp.full(2, x, jnp.float32) for x in (presence, frequency, repetition))
    found = penalized(jnp.array(logits_RV), before, *weights)
    asked = {"presence_penalty": presence, "frequency_penalty": frequency, "repetition_penalty": repetition}
    for row, extra in enumerate((more, [])):
        expected = expected_logits(logits_RV[row], texts[row][0], [*texts[row][1], *extra], **asked)
        np.testing.assert_allclose(found[row], expected, rtol=1e-5, atol=1e-5)


def test_neutral_penalties_leave_logits_as_they_are_to_the_bit() -> None:
    logits_RV = jax.random.normal(jax.random.key(0), (1, VOCABULARY)) * 8
    before = so_far(jnp.array([[3, 3, 5]]), jnp.array([1]), VOCABULARY)
    found = penalized(logits_RV, before, jnp.zeros(1), jnp.zeros(1), jnp.ones(1))
    np.testing.assert_array_equal(np.asarray(found).view(np.int32), np.asarray(logits_RV).view(np.int32))


def a_decoder(policy) -> PagedDecoder:
    return PagedDecoder(XLADevice(policy.model_config, policy.params, LIMITS, end_ids=(1,)), LIMITS, end_ids=(1,))


def messages(policy, *samplings: Sampling) -> list[Generated]:
    """One of each session, all at once."""

    async def say() -> list[Generated]:
        decoder = a_decoder(policy)
        found = [decoder.generate(PROMPT, how, Session(3, slot)) for slot, how in enumerate(samplings)]
        said = list(await asyncio.gather(*found))
        await decoder.close()
        return said

    return asyncio.run(say())


@pytest.mark.parametrize("penalty", [*HARSH, "all of them"])
def test_a_greedy_message_is_the_likeliest_under_its_penalties_and_its_neighbours_is_not_touched(untrained, penalty):
    asked = HARSH if penalty == "all of them" else {penalty: HARSH[penalty]}
    neutral = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0} | asked
    greedy = Sampling(24, temperature=0.0)
    (alone,) = messages(untrained, greedy)
    said, neighbour = messages(untrained, replace(greedy, **asked), greedy)
    assert neighbour.ids == alone.ids
    assert said.ids != alone.ids
    ids_BT = jnp.array([[*PROMPT, *said.ids]])
    model = bind(untrained.model_config, untrained.params)
    positions_BT = jnp.arange(ids_BT.shape[1])[None]
    logits_TV = np.float64(model.logits(model(ids_BT, positions_BT, jnp.ones_like(ids_BT))[0]))
    for place, token in enumerate(said.ids):
        logits_V = logits_TV[len(PROMPT) + place - 1]
        penalised_V = expected_logits(logits_V, PROMPT, said.ids[:place], **neutral)
        assert penalised_V.max() - penalised_V[token] < 1e-4
        assert said.logprobs[place] == pytest.approx(penalised_V[token] - _logsumexp(penalised_V), abs=2e-4)


def _logsumexp(x_V) -> float:
    return float(x_V.max() + np.log(np.exp(x_V - x_V.max()).sum()))


def test_a_draw_that_is_penalised_never_repeats_what_it_may_not(untrained) -> None:
    # 2 for having said it once takes little from flat logits: a repetition penalty without bound takes all.
    (said,) = messages(untrained, Sampling(24, temperature=0.2, repetition_penalty=1e6, presence_penalty=2.0))
    (free,) = messages(untrained, Sampling(24, temperature=0.2))
    assert len(set(said.ids)) > len(set(free.ids))


@pytest.mark.parametrize(
    "asked",
    [
        *({"presence_penalty": 2.1}, {"frequency_penalty": -2.1}, {"presence_penalty": np.nan}),
        *({"repetition_penalty": penalty} for penalty in (0.0, 1e-7, 1e7, 1e37, 1e308, np.nan)),
    ],
)
def test_there_are_no_such_penalties(asked) -> None:
    with pytest.raises(DecoderError, match="expected presence_penalty and frequency_penalty from -2 to 2"):
        Sampling(1, **asked)


def test_a_decoder_whose_device_knows_no_penalties_refuses_them() -> None:
    device = ClockDevice(LIMITS, costs=Costs(0.0, 0.0), message_tokens=Lognormal(8, 0.1), end_ids=(1,))

    async def ask() -> None:
        decoder = PagedDecoder(device, LIMITS, end_ids=(1,))
        with pytest.raises(DecoderError, match="expected no penalties"):
            await decoder.generate(PROMPT, Sampling(4, frequency_penalty=0.1), Session(0, 0))
        await decoder.close()

    asyncio.run(ask())
