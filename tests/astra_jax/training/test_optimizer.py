"""AdamW as configured: which parameters decay, and the exact size of a first update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.training.optimizer import OptimizerConfig, make_optimizer, update_if_finite

PARAMS = {"final_norm": jnp.ones(4), "layers": {name: jnp.ones((2, 4)) for name in ("q_norm", "q_bias")}}
PARAMS["layers"]["q_proj"] = jnp.ones((2, 4, 4))


def first_update(config: OptimizerConfig):
    optimizer = make_optimizer(config, steps=10)
    gradients = jax.tree.map(lambda leaf: 1e-3 * jnp.ones_like(leaf), PARAMS)
    updates, _ = optimizer.update(gradients, optimizer.init(PARAMS), PARAMS)
    return updates


def test_every_parameter_moves_by_the_learning_rate_at_first():
    """Adam's first update is the learning rate against the gradient's sign."""
    for leaf in jax.tree.leaves(first_update(OptimizerConfig(learning_rate=1e-4))):
        np.testing.assert_allclose(leaf, -1e-4, rtol=1e-4)


def test_weight_decay_pulls_at_matrices_and_leaves_norms_and_biases_alone():
    updates = first_update(OptimizerConfig(learning_rate=1e-4, weight_decay=10.0))
    np.testing.assert_allclose(updates["layers"]["q_proj"], -1.1e-3, rtol=1e-4)
    for leaf in (updates["layers"]["q_norm"], updates["layers"]["q_bias"], updates["final_norm"]):
        np.testing.assert_allclose(leaf, -1e-4, rtol=1e-4)


def test_gradients_beyond_the_norm_are_scaled_down_to_it():
    """With an ε this large Adam's first update is as large as the gradient."""
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1.0, eps=1e3, max_grad_norm=0.5), steps=10)
    size = sum(leaf.size for leaf in jax.tree.leaves(PARAMS))
    for scale in (1e-3, 1.0, 100.0):
        gradients = jax.tree.map(lambda leaf, scale=scale: scale * jnp.ones_like(leaf), PARAMS)
        updates, _ = optimizer.update(gradients, optimizer.init(PARAMS), PARAMS)
        kept = min(scale, 0.5 / size**0.5)
        for leaf in jax.tree.leaves(updates):
            np.testing.assert_allclose(leaf, -kept / (1e3 + kept), rtol=1e-3)


@pytest.mark.parametrize(("loss", "gradient"), [(np.nan, 1.0), (1.0, np.inf), (1.0, np.nan), (1.0, 1.0)])
def test_an_update_is_made_where_loss_and_gradient_are_finite_and_no_bit_changes_where_one_is_not(loss, gradient):
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-4), steps=10)
    gradients = jax.tree.map(lambda leaf: jnp.ones_like(leaf).at[0].set(gradient), PARAMS)
    state = optimizer.init(PARAMS)
    params, new_state, figures = update_if_finite(optimizer, jnp.asarray(loss), gradients, PARAMS, state)
    is_finite = bool(np.isfinite(loss) and np.isfinite(gradient))
    assert bool(figures["applied"]) == is_finite
    for before, after in ((PARAMS, params), (state, new_state)):
        equal = [np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
        assert not any(equal) if is_finite else all(equal)
