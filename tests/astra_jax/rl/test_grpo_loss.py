"""The GRPO loss and its gradients equal a naive float64 computation, loop by loop, over a padded batch.

So does every objective of `examples/`.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.config import ConfigError
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import bind
from astra_jax.rl.batch import RLBatch
from astra_jax.rl.grpo_loss import Objective, grpo_token_losses
from astra_jax.rl.train import rl_loss
from examples.dapo_objective import dapo, dr_grpo, first_grpo, importance_weighted

CLIP_EPSILON, TEMPERATURE = 0.2, 0.7
OBJECTIVE = Objective(TEMPERATURE, CLIP_EPSILON, chunk_tokens=16)


def reference_loss_and_gradient(policy, sampled, advantages, weights, *, high=CLIP_EPSILON, cap=None):
    """In float64: the loss and its derivative by each policy log-prob; a token of weight 0 has no part."""
    total = sum(float(w) for row in weights for w in row)
    loss, gradient = 0.0, np.zeros(np.shape(policy))
    for b, row in enumerate(weights):
        for t, weight in enumerate(row):
            if not weight:
                continue
            now, then, advantage = float(policy[b][t]), float(sampled[b][t]), float(advantages[b][t])
            base, importance = then, 1.0
            if cap is not None:
                base = now
                importance = min(math.exp(base - then), cap)
            share = importance * float(weight) / total
            ratio = math.exp(now - base)
            clipped = min(max(ratio, 1 - CLIP_EPSILON), 1 + high)
            loss -= share * min(ratio * advantage, clipped * advantage)
            if ratio * advantage <= clipped * advantage:
                gradient[b][t] = -share * ratio * advantage
    return loss, gradient


@pytest.fixture(scope="module")
def ragged():
    """Rows of 11, 3 and 7 tokens among 12 columns; ratios on both sides of both clips; garbage where nothing counts."""
    rng = np.random.default_rng(0)
    mask = np.zeros((3, 12), np.float32)
    for row, (first, stop) in enumerate([(2, 11), (1, 3), (4, 7)]):
        mask[row, first:stop] = 1
    mask[0, 5] = 0
    sampled = np.where(mask, rng.uniform(-4, -1, mask.shape), 0).astype(np.float32)
    log_ratios = np.resize([0.5, 0.1, -0.4, -0.1, -0.5, 0.3, 0.05], mask.shape)
    policy = (sampled + log_ratios).astype(np.float32)
    advantages = (mask * np.array([1.3, -0.4, -1.1])[:, None]).astype(np.float32)
    advantages[0, 8:] *= -1
    return policy, sampled, advantages, mask


def masked_mean(policy, sampled, advantages, mask, **variant):
    losses = grpo_token_losses(policy, sampled, advantages, clip_epsilon=CLIP_EPSILON, **variant)
    return (losses * mask).sum() / mask.sum()


def test_the_loss_and_its_gradient_equal_the_reference(ragged):
    loss, gradient = jax.value_and_grad(masked_mean)(*map(jnp.asarray, ragged))
    expected_loss, expected_gradient = reference_loss_and_gradient(*ragged)
    assert float(loss) == pytest.approx(expected_loss, rel=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=2e-6, atol=1e-9)
    policy, sampled, advantages, mask = ragged
    ratio, active = np.exp(policy - sampled), mask > 0
    for side in (ratio > 1 + CLIP_EPSILON, ratio < 1 - CLIP_EPSILON):  # the batch reaches all four corners
        for sign in (advantages > 0, advantages < 0):
            assert (active & side & sign).any()


def test_every_example_and_its_gradient_equal_the_reference(ragged):
    """Rows of 8, 2 and 3 sampled tokens, rewards of a group that vary by 0.25."""
    policy, sampled, advantages, mask = ragged
    lengths = mask.sum(1, keepdims=True)
    std, of_episodes = 0.25 * mask, (mask.sum() / 3 / lengths) * mask
    cases = {
        dapo: (advantages, mask, {"high": 0.28}),
        dr_grpo: (advantages * std, mask, {}),
        first_grpo: (advantages, mask / lengths, {}),
        importance_weighted: (advantages, mask, {"cap": 2.0}),
    }
    for function, (of_reference, weights, variant) in cases.items():
        objective = Objective(TEMPERATURE, CLIP_EPSILON, 16, function)
        given = {"advantages_BT": advantages, "reward_std_BT": std, "episode_weights_BT": of_episodes}

        def mean_of(policy_BT, objective=objective, given=given):
            given = given | {"sampled_logprobs_BT": jnp.asarray(sampled)}
            return (objective.losses(policy_BT, given) * mask).sum() / mask.sum()

        loss, gradient = jax.value_and_grad(mean_of)(jnp.asarray(policy))
        expected_loss, expected_gradient = reference_loss_and_gradient(
            policy, sampled, of_reference, weights, **variant
        )
        assert float(loss) == pytest.approx(expected_loss, rel=1e-6), function
        np.testing.assert_allclose(gradient, expected_gradient, rtol=2e-6, atol=1e-9, err_msg=str(function))


def test_an_objective_that_sums_its_losses_is_refused_in_one_line(ragged):
    def summed(policy_logprobs_BT):
        return policy_logprobs_BT.sum()

    objective = Objective(TEMPERATURE, CLIP_EPSILON, 16, summed)
    with pytest.raises(ConfigError, match=r"an array of shape \(\) for tokens of shape \(3, 12\); return one loss for"):
        objective.losses(ragged[0], {})


def batch_of(model, ragged) -> RLBatch:
    _, sampled, advantages, mask = ragged
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, model.vocab_size, (3, 13))
    segment_ids = (np.arange(12) < np.array([[11], [3], [7]])).astype(np.int32)
    positions = np.broadcast_to(np.arange(12, dtype=np.int32), (3, 12))
    arrays = (tokens[:, :-1], tokens[:, 1:], mask, segment_ids, positions, sampled, advantages)
    return RLBatch(*map(jnp.asarray, arrays))


@pytest.fixture(scope="module")
def loss_and_gradients(untrained):
    """Jitted once: loss, policy log-probs and parameter gradients of `rl_loss`."""

    loss = functools.partial(rl_loss, model_config=untrained.model_config, objective=OBJECTIVE)
    compute = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def computed(batch, params=untrained.params):
        (value, logprobs_BT), gradients = compute(params, batch)
        return value, logprobs_BT, gradients

    return computed


@pytest.fixture(scope="module")
def near_policy(untrained, ragged, loss_and_gradients):
    """The ragged batch with sampled log-probs near those of the model, so that every clip is met."""
    batch = batch_of(untrained.model_config, ragged)
    _, logprobs_BT, _ = loss_and_gradients(batch)
    policy, sampled, *_ = ragged
    return batch._replace(sampled_logprobs_BT=(logprobs_BT - (policy - sampled)) * batch.loss_mask_BT)


def logprobs_and_pullback(untrained, batch):
    """Log-probs at the sampling temperature, and the map from d loss / d log-prob to parameter gradients."""

    def logprobs(params):
        qwen3 = bind(untrained.model_config, params)
        positions_BT = jnp.broadcast_to(jnp.arange(12), batch.tokens_BT.shape)
        hidden_BTD = qwen3(batch.tokens_BT, positions_BT, batch.segment_ids_BT) / TEMPERATURE
        return token_logprobs(hidden_BTD, qwen3.output_embedding, batch.targets_BT, chunk_tokens=16)

    return jax.vjp(jax.jit(logprobs), untrained.params)


def test_the_whole_loss_and_every_parameter_gradient_equal_the_reference(untrained, near_policy, loss_and_gradients):
    batch = near_policy
    loss, logprobs_BT, gradients = loss_and_gradients(batch)
    expected_logprobs_BT, pullback = logprobs_and_pullback(untrained, batch)
    np.testing.assert_allclose(logprobs_BT, expected_logprobs_BT * batch.loss_mask_BT, rtol=1e-5, atol=1e-5)
    expected_loss, cotangent_BT = reference_loss_and_gradient(
        logprobs_BT, batch.sampled_logprobs_BT, batch.advantages_BT, batch.loss_mask_BT
    )
    assert float(loss) == pytest.approx(expected_loss, rel=1e-5)
    (expected,) = pullback(jnp.asarray(cotangent_BT, jnp.float32))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * largest), gradients, expected)


def test_the_policy_logprobs_are_those_at_the_sampling_temperature(untrained, near_policy, loss_and_gradients):
    """Against float64 log-softmax of whole logits divided by the temperature."""
    batch = near_policy
    _, logprobs_BT, _ = loss_and_gradients(batch)
    qwen3 = bind(untrained.model_config, untrained.params)
    positions_BT = jnp.broadcast_to(jnp.arange(12), batch.tokens_BT.shape)
    logits_BTV = np.asarray(qwen3.logits(qwen3(batch.tokens_BT, positions_BT, batch.segment_ids_BT)), np.float64)
    for row, column in np.argwhere(np.asarray(batch.loss_mask_BT)):
        logits_V = logits_BTV[row, column] / TEMPERATURE
        expected = logits_V[batch.targets_BT[row, column]] - np.log(np.exp(logits_V).sum())
        assert float(logprobs_BT[row, column]) == pytest.approx(expected, abs=2e-5)


def test_padding_and_tokens_without_loss_change_nothing(near_policy, loss_and_gradients):
    batch = near_policy
    elsewhere = batch.loss_mask_BT == 0
    garbled = batch._replace(
        targets_BT=jnp.where(elsewhere, 7, batch.targets_BT),
        sampled_logprobs_BT=jnp.where(elsewhere, -3.0, batch.sampled_logprobs_BT),
        advantages_BT=jnp.where(elsewhere, 5.0, batch.advantages_BT),
        tokens_BT=jnp.where(batch.segment_ids_BT == 0, 7, batch.tokens_BT),
    )
    loss, _, gradients = loss_and_gradients(batch)
    other_loss, _, other_gradients = loss_and_gradients(garbled)
    assert float(other_loss) == pytest.approx(float(loss), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), gradients, other_gradients)
