"""Ids that truncation keeps, and draws from them: against an independent reference in float64."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.engine.interface import DecoderError, Sampling
from astra_jax.engine.sampling import Drawn, sample_tokens, slot_keys

SLOTS, VOCABULARY = 4, 307
KEYS_E = slot_keys(0, 0, SLOTS)
sample = jax.jit(sample_tokens)
BEYOND_32_BITS = {"top_k": 2**31}, {"top_p": 1e-40}
NOTHING = np.zeros(SLOTS, np.int32), np.ones(SLOTS, np.float32)


def draw(logits_EV, truncation: tuple[np.ndarray, np.ndarray], *, temperature=1.0, count=0) -> Drawn:
    """Draw one token for each slot; the temperature is one per slot, or one for all."""
    temperature_E = np.broadcast_to(np.float32(temperature), SLOTS)
    return jax.device_get(sample(logits_EV, KEYS_E, np.full(SLOTS, count), temperature_E, *truncation))


def truncation_of(*bounds: tuple[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """`top_k` and `top_p` as arrays, a value for each slot."""
    top_k, top_p = zip(*bounds, strict=True)
    return np.array(top_k, np.int32), np.array(top_p, np.float32)


def in_order(logits_V) -> list[int]:
    """Ids, the likeliest first, of equally likely ones the lowest."""
    return np.argsort(-logits_V, kind="stable").tolist()


def kept_of(logits_V, temperature, top_k, top_p) -> tuple[list[int], float]:
    """The ids that are kept, and how near the decision on any of them was, in relative probability; in float64."""
    left = in_order(logits_V)[: top_k or None]
    nearest = np.inf
    scaled = np.float64(logits_V[left]) / temperature
    p = np.exp(scaled - scaled[0])
    if top_p < 1:
        before = np.concatenate([[0.0], p.cumsum()[:-1]]) / p.sum()
        nearest = min(nearest, np.abs(before - top_p).min())
        left = left[: (before < top_p).sum()]
    return left, nearest


logits = st.integers(0, 2**32 - 1).flatmap(
    lambda seed: st.sampled_from(["distinct", "few values", "all alike"]).map(lambda kind: make_logits(seed, kind))
)


def make_logits(seed: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "all alike":
        return np.full((SLOTS, VOCABULARY), 1.5, np.float32)
    drawn = rng.normal(size=(SLOTS, VOCABULARY)) * rng.uniform(0.5, 6)
    return np.round(drawn).astype(np.float32) if kind == "few values" else drawn.astype(np.float32)


bounds = st.tuples(
    st.sampled_from([0, 1, 2, 5, 63, 64, 65, 200, 1000]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
)


@settings(max_examples=60)
@given(logits, st.tuples(*[bounds] * SLOTS), st.sampled_from([0.3, 0.6, 1.0, 2.0]), st.integers(0, 1000))
def test_a_token_is_one_of_the_references_kept_ids_and_has_its_probability_among_them(
    logits_EV, bounds, temperature, count
):
    drawn = draw(logits_EV, truncation_of(*bounds), temperature=temperature, count=count)
    for slot, (top_k, top_p) in enumerate(bounds):
        # Bounds are float32 as they reach the program.
        kept, nearest = kept_of(logits_EV[slot], temperature, top_k, float(np.float32(top_p)))
        if nearest < 1e-5:
            continue  # the rounding of float32 decides
        token = int(drawn.ids_E[slot])
        assert token in kept
        scaled = np.float64(logits_EV[slot]) / temperature
        mass = np.exp(scaled[kept] - scaled.max()).sum()
        assert drawn.logprobs_E[slot] == pytest.approx(scaled[token] - scaled.max() - np.log(mass), abs=1e-4)


def test_kept_tokens_come_as_often_as_they_are_likely_and_their_probabilities_add_up_to_1():
    logits_V = np.random.default_rng(3).normal(size=VOCABULARY).astype(np.float32) * 2
    logits_EV, truncation = np.broadcast_to(logits_V, (SLOTS, VOCABULARY)), truncation_of(*[(9, 0.95)] * SLOTS)
    kept, _ = kept_of(logits_V, 0.8, 9, 0.95)
    found: dict[int, float] = {}
    times = np.zeros(VOCABULARY)
    for count in range(600):
        drawn = draw(logits_EV, truncation, temperature=0.8, count=count)
        found |= dict(zip(drawn.ids_E.tolist(), np.exp(drawn.logprobs_E).tolist(), strict=True))
        np.add.at(times, np.asarray(drawn.ids_E), 1)
    assert set(found) == set(kept)
    assert len(kept) < 9, "top_p must matter"
    assert sum(found.values()) == pytest.approx(1, abs=1e-5)
    frequencies = times[kept] / times.sum()
    np.testing.assert_allclose(frequencies, [found[token] for token in kept], atol=0.04)


@settings(max_examples=20)
@given(st.permutations(range(SLOTS)), st.integers(0, 100))
def test_the_other_slots_of_a_call_change_no_bit(order, count):
    """One slot of each kind: whole, few, many, greedy; each is drawn as among others of its own kind, and as ever."""
    logits_EV = make_logits(count, "distinct")
    kinds = [(0, 1.0), (20, 0.9), (0, 0.9), (0, 1.0)]
    temperatures = [1.0, 0.7, 0.7, 0.0]
    mixed = draw(
        logits_EV,
        truncation_of(*[kinds[kind] for kind in order]),
        temperature=np.array([temperatures[kind] for kind in order], np.float32),
        count=count,
    )
    for slot, kind in enumerate(order):
        alike = draw(logits_EV, truncation_of(*[kinds[kind]] * SLOTS), temperature=temperatures[kind], count=count)
        for one, other in zip(mixed, alike, strict=True):
            np.testing.assert_array_equal(one[slot], other[slot])


def test_of_a_vocabulary_smaller_than_top_k_every_id_is_kept():
    logits_EV = make_logits(5, "distinct")[:, :40]
    kept, whole = (draw(logits_EV, truncation_of(*[bound] * SLOTS)) for bound in ((64, 1.0), (0, 1.0)))
    log_softmax_EV = jax.nn.log_softmax(logits_EV)
    for drawn in (kept, whole):
        expected = log_softmax_EV[np.arange(SLOTS), drawn.ids_E]
        np.testing.assert_allclose(drawn.logprobs_E, expected, atol=1e-5)


def test_an_impossible_truncation_is_refused_in_one_line():
    for wrong in ({"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}, *BEYOND_32_BITS):
        with pytest.raises(DecoderError, match=r"^expected top_k from 1 to 2\^31 - 1 or none, and [^\n]*$"):
            Sampling(8, **wrong)
    for temperature in (-1.0, 100.1, 1e308, float("nan"), float("inf")):
        with pytest.raises(DecoderError, match=r"^expected a temperature from 0 to 100, found [^\n]*$"):
            Sampling(8, temperature)
