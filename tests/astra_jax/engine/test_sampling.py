"""A token is drawn from softmax(logits / temperature), by its slot and its position alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from astra_jax.engine.sampling import _by_inverse_cdf, sample_tokens, slot_keys

sample = jax.jit(sample_tokens)


def draw(logits_EV, keys_E, counts_E, temperature):
    slots = len(logits_EV)
    return sample(logits_EV, keys_E, counts_E, temperature, np.zeros(slots, np.int32), np.ones(slots, np.float32))


SLOTS, VOCABULARY = 8, 40
LOGITS_EV = 3 * np.random.default_rng(0).normal(size=(SLOTS, VOCABULARY)).astype(np.float32)
COUNTS_E = jnp.arange(SLOTS) % 3


def log_softmax(logits_EV: np.ndarray) -> np.ndarray:
    logits_EV = logits_EV.astype(np.float64)
    return logits_EV - np.log(np.exp(logits_EV).sum(-1, keepdims=True))


def test_every_token_of_a_vocabulary_of_many_blocks_comes_as_often_as_it_is_likely():
    num_draws, vocabulary = 60_000, 300
    logits_V = np.random.default_rng(1).normal(size=vocabulary).astype(np.float32) * 2
    logits_EV, counts_E = jnp.broadcast_to(logits_V, (num_draws, vocabulary)), jnp.zeros(num_draws, int)
    ids_E, logprobs_E, *_ = draw(logits_EV, slot_keys(5, 0, num_draws), counts_E, jnp.float32(1))
    expected_V = np.exp(log_softmax(logits_V[None])[0])
    np.testing.assert_allclose(logprobs_E, np.log(expected_V)[ids_E], atol=1e-5)
    found_V = np.bincount(ids_E, minlength=vocabulary)
    # χ² over ids that are expected at least five times; the rest together are one more class.
    is_common = expected_V * num_draws >= 5
    found = np.append(found_V[is_common], found_V[~is_common].sum())
    expected = np.append(expected_V[is_common], expected_V[~is_common].sum()) * num_draws
    assert scipy.stats.chi2.sf(((found - expected) ** 2 / expected).sum(), len(found) - 1) > 1e-3


@pytest.mark.parametrize("scale", [3, 8])
def test_the_mean_log_prob_of_many_draws_is_that_of_the_distribution(scale):
    """A sampler that is too hot or too cold in the tail shows here."""
    num_draws, vocabulary = 40_000, 2304
    logits_V = (np.random.default_rng(0).normal(size=vocabulary) * scale).astype(np.float32)
    expected_V = log_softmax(logits_V[None])[0]
    mean = (np.exp(expected_V) * expected_V).sum()
    standard_error = np.sqrt((np.exp(expected_V) * (expected_V - mean) ** 2).sum() / num_draws)
    logprobs = [
        draw(jnp.broadcast_to(logits_V, (4000, vocabulary)), slot_keys(seed, 0, 4000), jnp.full(4000, seed), 1.0)[1]
        for seed in range(num_draws // 4000)
    ]
    assert abs(np.concatenate(logprobs).mean(dtype=np.float64) - mean) < 4 * standard_error


def test_the_extremes_of_both_numbers_never_draw_a_token_of_no_weight():
    weights_EV = np.zeros((4, 300), np.float32)
    weights_EV[:, [140, 141, 260]] = [0.25, 1e-9, 0.5]
    almost_1 = np.nextafter(np.float32(1), np.float32(0))
    uniform_E2 = np.array([[0, 0], [0, almost_1], [almost_1, 0], [almost_1, almost_1]], np.float32)
    ids_E, mass_E = _by_inverse_cdf(weights_EV, uniform_E2)
    assert ids_E.tolist() == [140, 141, 260, 260] or ids_E.tolist() == [140, 140, 260, 260]
    np.testing.assert_allclose(mass_E, 0.75)


def test_at_temperature_0_the_most_likely_token_is_taken_with_the_log_prob_of_the_raw_policy():
    ids_E, logprobs_E, *_ = draw(LOGITS_EV, slot_keys(0, 0, SLOTS), COUNTS_E, jnp.float32(0))
    np.testing.assert_array_equal(ids_E, LOGITS_EV.argmax(-1))
    np.testing.assert_allclose(logprobs_E, log_softmax(LOGITS_EV).max(-1), atol=1e-5)


def test_slots_positions_and_seeds_draw_apart():
    logits_EV, zeros_E, one = jnp.zeros((64, 1000)), jnp.zeros(64, int), jnp.float32(1)
    at_one_position, *_ = draw(logits_EV, slot_keys(0, 0, 64), zeros_E, one)
    of_one_slot, *_ = draw(logits_EV, slot_keys(0, 0, 1)[jnp.zeros(64, int)], jnp.arange(64), one)
    another_seed, *_ = draw(logits_EV, slot_keys(1, 0, 64), zeros_E, one)
    for ids_E in (at_one_position, of_one_slot):
        assert len(set(ids_E.tolist())) > 50
    assert (np.asarray(at_one_position) != another_seed).mean() > 0.9
