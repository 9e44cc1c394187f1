"""The GRPO loss and its gradients equal a naive float64 computation, loop by loop, over a padded batch.

So does every variant of it: a clip of its own above 1, importance weights, episodes that weigh the same, mini-batches.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from astra_jax.checkpoints.checkpoint import TrainState
from astra_jax.config import ConfigError, parse_config
from astra_jax.mesh.placement import place_batch
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import Params, bind
from astra_jax.model.sharding import MeshConfig, make_mesh, param_shardings
from astra_jax.rl.batch import RLBatch
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective, grpo_token_losses
from astra_jax.rl.train import objective_of, rl_loss, rl_step, rl_updates, start_logprobs
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer, updates_applied
from astra_jax.training.parts import Parts
from tests.astra_jax.rl.configs import tiny_rl_config

CLIP_EPSILON, TEMPERATURE = 0.2, 0.7


def reference_loss_and_gradient(policy, sampled, advantages, weights, *, high=CLIP_EPSILON, cap=None, start=None):
    """In float64: the loss, and what it gains per unit of each policy log-prob; a token of weight 0 has no part."""
    total = sum(float(w) for row in weights for w in row)
    loss, gradient = 0.0, np.zeros(np.shape(policy))
    for b, row in enumerate(weights):
        for t, weight in enumerate(row):
            if not weight:
                continue
            now, then, advantage = float(policy[b][t]), float(sampled[b][t]), float(advantages[b][t])
            base, importance = then, 1.0
            if cap is not None:
                base = now if start is None else float(start[b][t])
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


@pytest.mark.parametrize("high", [CLIP_EPSILON, 0.28])
@pytest.mark.parametrize("cap", [None, 1.05, 5.0])
@pytest.mark.parametrize("later", [False, True], ids=["first update", "later update"])
def test_every_variant_and_its_gradient_equal_the_reference(ragged, high, cap, later):
    """The policy that the step began with lies between the sampler's and the present one, on either side of the cap."""
    policy, sampled, _advantages, mask = ragged
    start = (sampled + 0.3 * (policy - sampled) + 0.05).astype(np.float32) if later else None
    variant = {"clip_epsilon_high": high, "importance_cap": cap, "start_logprobs_BT": start}
    loss, gradient = jax.value_and_grad(functools.partial(masked_mean, **variant))(*map(jnp.asarray, ragged))
    expected_loss, expected_gradient = reference_loss_and_gradient(*ragged, high=high, cap=cap, start=start)
    assert float(loss) == pytest.approx(expected_loss, rel=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=2e-6, atol=1e-9)
    if cap == 1.05:
        weights = np.exp((policy if start is None else start) - sampled)[mask > 0]
        assert (weights > cap).any()
        assert (weights < cap).any()


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "loss", "gradient"),
    [
        (0.5, 1.0, -1.2, 0.0),
        (-0.5, 1.0, -math.exp(-0.5), -math.exp(-0.5)),
        (0.5, -1.0, math.exp(0.5), math.exp(0.5)),
        (-0.5, -1.0, 0.8, 0.0),
    ],
)
def test_the_clip_only_ever_takes_gain_away(log_ratio, advantage, loss, gradient):
    def token_loss(x):
        return grpo_token_losses(x, jnp.zeros(()), jnp.asarray(advantage), clip_epsilon=0.2)

    found = jax.value_and_grad(token_loss)(jnp.asarray(log_ratio))
    np.testing.assert_allclose(found, (loss, gradient), rtol=1e-6)


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

    @jax.jit
    def compute(batch):
        def loss(params):
            objective = Objective(TEMPERATURE, CLIP_EPSILON, chunk_tokens=16)
            return rl_loss(params, batch, model_config=untrained.model_config, objective=objective)

        (value, logprobs_BT), gradients = jax.value_and_grad(loss, has_aux=True)(untrained.params)
        return value, logprobs_BT, gradients

    return compute


@pytest.fixture(scope="module")
def near_policy(untrained, ragged):
    """The ragged batch with sampled log-probs near those of the model, so that every clip is met."""
    batch = batch_of(untrained.model_config, ragged)
    logprobs_BT, _ = logprobs_and_pullback(untrained, batch)
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


def test_where_tokens_were_truncated_the_loss_and_its_gradients_are_those_of_the_distribution_over_the_kept_ids(
    untrained, near_policy
):
    """Against whole logits, all but the kept ones of which are masked out; of given tokens nothing was kept."""
    rng, vocabulary = np.random.default_rng(4), untrained.model_config.vocab_size
    others = rng.integers(0, vocabulary, (*near_policy.targets_BT.shape, 7))
    kept_BTK = np.concatenate([np.asarray(near_policy.targets_BT)[..., None], others], axis=-1)
    num_kept_BT = rng.integers(1, 9, near_policy.targets_BT.shape) * np.asarray(near_policy.loss_mask_BT, int)
    # No id twice, and the target not always first.
    is_new_BTK = np.array(
        [[[k not in of_token[:i] for i, k in enumerate(of_token)] for of_token in row] for row in kept_BTK]
    )
    kept_BTK = np.where(is_new_BTK & (np.arange(8) < num_kept_BT[..., None]), kept_BTK, -1)
    kept_BTK = np.sort(kept_BTK)[..., ::-1]
    batch = near_policy._replace(kept_BTK=kept_BTK)
    objective = Objective(TEMPERATURE, CLIP_EPSILON, chunk_tokens=16)

    def dense_loss(params):
        qwen3 = bind(untrained.model_config, params)
        logits_BTV = qwen3.logits(qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)) / TEMPERATURE
        is_kept_BTV = (kept_BTK[..., None] == np.arange(vocabulary)).any(-2) | (batch.loss_mask_BT == 0)[..., None]
        logprobs_BTV = jax.nn.log_softmax(jnp.where(is_kept_BTV, logits_BTV, -jnp.inf))
        logprobs_BT = jnp.take_along_axis(logprobs_BTV, batch.targets_BT[..., None], -1)[..., 0]
        losses_BT = grpo_token_losses(
            logprobs_BT, batch.sampled_logprobs_BT, batch.advantages_BT, clip_epsilon=CLIP_EPSILON
        )
        return (losses_BT * batch.loss_mask_BT).sum() / batch.loss_mask_BT.sum(), logprobs_BT

    def loss(params):
        return rl_loss(params, batch, model_config=untrained.model_config, objective=objective)

    (value, logprobs_BT), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(untrained.params)
    (expected, expected_BT), wanted = jax.jit(jax.value_and_grad(dense_loss, has_aux=True))(untrained.params)
    is_sampled = np.asarray(batch.loss_mask_BT) > 0
    np.testing.assert_allclose(np.asarray(logprobs_BT)[is_sampled], np.asarray(expected_BT)[is_sampled], atol=1e-5)
    assert not np.asarray(logprobs_BT)[~is_sampled].any()
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(wanted))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * largest), gradients, wanted)


def test_every_token_of_the_batch_weighs_the_same(ragged):
    """Not every row: one long row and one short one, whose mean of means would be another number."""
    policy = sampled = np.zeros((2, 4), np.float32)
    mask = np.array([[1, 1, 1, 1], [1, 0, 0, 0]], np.float32)
    advantages = mask * np.array([[1.0], [-1.0]], np.float32)
    assert float(masked_mean(policy, sampled, advantages, mask)) == pytest.approx(-3 / 5)


def test_the_loss_is_the_same_where_sequences_are_split_over_devices(untrained, near_policy, loss_and_gradients):
    """Positions travel with the tokens: two context shards hold the pieces 0 and 3, 1 and 2 of every sequence."""
    expected, _, expected_gradients = loss_and_gradients(near_policy)
    mesh = make_mesh(MeshConfig(context=2), jax.devices()[:2])
    placed = place_batch(near_policy, 3, mesh)
    params = jax.device_put(untrained.params, param_shardings(untrained.params, mesh))
    objective = Objective(TEMPERATURE, CLIP_EPSILON, chunk_tokens=16)
    loss_of = functools.partial(rl_loss, model_config=untrained.model_config, objective=objective)
    with jax.set_mesh(mesh):
        (loss, _), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params, batch=placed)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for found, wanted in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("sequence_mean", [False, True], ids=["token mean", "sequence mean"])
def test_the_parts_of_a_batch_make_the_update_of_the_whole(untrained, near_policy, sequence_mean):
    """Three parts of one row each, of 11, 3 and 7 tokens: Adam's first moments are the clipped gradients."""
    batch = near_policy
    if sequence_mean:
        batch = batch._replace(loss_weights_BT=batch.loss_mask_BT / batch.loss_mask_BT.sum(1, keepdims=True))

    def update(accumulation):
        optimizer = OptimizerConfig(learning_rate=1e-3)
        params = jax.tree.map(jnp.copy, untrained.params)  # given away
        return rl_step(
            params,
            make_optimizer(optimizer, 1).init(params),
            batch,
            model_config=untrained.model_config,
            optimizer_config=optimizer,
            steps=1,
            objective=Objective(TEMPERATURE, CLIP_EPSILON, chunk_tokens=16),
            accumulation=accumulation,
        )

    (_, whole_state, whole), (_, state, found) = update(1), update(3)
    assert whole.keys() == found.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    moments, expected = (optax.tree.get(tree, "mu") for tree in (state, whole_state))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6 * largest), moments, expected)


def test_where_episodes_weigh_the_same_the_loss_and_its_gradients_equal_the_reference(untrained, near_policy):
    """Rows of 8, 2 and 3 sampled tokens: weights of 1/8, 1/2 and 1/3, over a mesh too."""
    batch = near_policy._replace(
        loss_weights_BT=near_policy.loss_mask_BT / near_policy.loss_mask_BT.sum(1, keepdims=True)
    )
    objective = Objective(TEMPERATURE, CLIP_EPSILON, chunk_tokens=16)
    loss_of = functools.partial(rl_loss, model_config=untrained.model_config, objective=objective)
    (loss, logprobs_BT), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(untrained.params, batch=batch)
    expected_loss, cotangent_BT = reference_loss_and_gradient(
        logprobs_BT, batch.sampled_logprobs_BT, batch.advantages_BT, batch.loss_weights_BT
    )
    assert float(loss) == pytest.approx(expected_loss, rel=1e-5)
    _, pullback = logprobs_and_pullback(untrained, batch)
    (expected,) = pullback(jnp.asarray(cotangent_BT, jnp.float32))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * largest), gradients, expected)
    mesh = make_mesh(MeshConfig(context=2), jax.devices()[:2])
    with jax.set_mesh(mesh):
        params = jax.device_put(untrained.params, param_shardings(untrained.params, mesh))
        found, _ = jax.jit(loss_of)(params, batch=place_batch(batch, 3, mesh))
    np.testing.assert_allclose(found, loss, rtol=1e-5)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_log_probs_that_a_step_begins_with_are_those_of_its_loss(
    untrained, near_policy, loss_and_gradients, accumulation
):
    objective = Objective(TEMPERATURE, CLIP_EPSILON, chunk_tokens=16)
    found_BT = start_logprobs(
        untrained.params,
        near_policy,
        model_config=untrained.model_config,
        objective=objective,
        accumulation=accumulation,
    )
    _, expected_BT, _ = loss_and_gradients(near_policy)
    np.testing.assert_allclose(found_BT, expected_BT, atol=1e-5)


@pytest.mark.parametrize("cap", [None, 2.0], ids=["ratio to the sampler", "importance weights"])
def test_mini_batches_are_updates_one_after_the_other(untrained, near_policy, tmp_path, cap):
    """Three of one row each, against `rl_step` called by hand: the second and third learn from a policy that moved."""
    config = tiny_rl_config(
        tmp_path,
        untrained,
        steps=2,
        groups_per_step=3,
        mini_batches=3,
        importance_cap=cap,
        rollout={"max_prompt_tokens": 8, "max_response_tokens": 8, "max_turns": 2, "temperature": TEMPERATURE},
        optimizer={"learning_rate": 1e-3, "schedule": "cosine"},
        logprob_chunk_tokens=16,
    )
    optimizer = make_optimizer(config.optimizer, config.num_updates)

    def begun() -> tuple[Params, optax.OptState]:
        """Both told where they lie, as a run's are: arrays that are not would be another program."""
        params = jax.tree.map(jnp.copy, untrained.params)
        return jax.device_put((params, optimizer.init(params)), jax.devices()[0])

    parts = Parts(None, untrained.model_config, untrained.tokenizer)
    found, _, metrics = rl_updates(config, parts, TrainState(0, *begun(), {}), near_policy)
    static = {"model_config": untrained.model_config, "objective": objective_of(config)}
    loss_of = jax.jit(functools.partial(rl_loss, **static))
    (first, _), (params, state), expected_metrics = begun(), begun(), []
    for row in range(3):
        mini = jax.tree.map(lambda x_BT, row=row: x_BT[row : row + 1], near_policy)
        if cap is not None:
            mini = mini._replace(start_logprobs_BT=loss_of(first, mini)[1])
        params, state, of_update = rl_step(
            params, state, mini, optimizer_config=config.optimizer, steps=6, accumulation=1, **static
        )
        expected_metrics.append(of_update)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, params)
    assert metrics.pop("updates_applied") == 3
    for name, value in metrics.items():
        np.testing.assert_allclose(value, np.mean([float(each[name]) for each in expected_metrics]), rtol=1e-4)
    if cap is None:  # weights of infinity would be capped
        without_ratio_BT = np.where(np.arange(3)[:, None] == 1, -np.inf, near_policy.sampled_logprobs_BT)
        broken = near_policy._replace(sampled_logprobs_BT=without_ratio_BT.astype(np.float32))
        _, state, metrics = rl_updates(config, parts, TrainState(0, *begun(), {}), broken)
        assert (int(metrics["updates_applied"]), bool(metrics["applied"]), updates_applied(state)) == (2, False, 2)
        assert np.isfinite([metrics["loss"], metrics["grad_norm"]]).all()


def test_mini_batches_that_do_not_divide_the_groups_are_refused_in_one_line(untrained, tmp_path):
    config = tiny_rl_config(tmp_path, untrained, steps=1, groups_per_step=4)
    with pytest.raises(ConfigError, match=r"^[^\n]*expected mini_batches that divide groups_per_step = 4, found 3.*$"):
        parse_config(RLConfig, {**config.model_dump(), "mini_batches": 3}, where="rl.toml")
