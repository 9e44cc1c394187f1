"""AdamW as configured: which parameters decay, which have a rate of their own, and the exact size of a first update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

PARAMS = {"final_norm": jnp.ones(4), "layers": {"q_norm": jnp.ones((2, 4)), "q_proj": jnp.ones((2, 4, 4))}}


def first_update(config: OptimizerConfig):
    optimizer = make_optimizer(config, steps=10)
    gradients = jax.tree.map(lambda leaf: 1e-3 * jnp.ones_like(leaf), PARAMS)
    updates, _ = optimizer.update(gradients, optimizer.init(PARAMS), PARAMS)
    return updates


def test_the_final_norm_moves_at_its_own_rate_and_nothing_else_does():
    """Adam's first update is the learning rate against the gradient's sign."""
    updates = first_update(OptimizerConfig(learning_rate=1e-4, final_norm_learning_rate=3e-2))
    np.testing.assert_allclose(updates["final_norm"], -3e-2, rtol=1e-4)
    np.testing.assert_allclose(updates["layers"]["q_norm"], -1e-4, rtol=1e-4)
    np.testing.assert_allclose(updates["layers"]["q_proj"], -1e-4, rtol=1e-4)


def test_without_a_rate_of_its_own_the_final_norm_moves_like_the_others():
    updates = first_update(OptimizerConfig(learning_rate=1e-4))
    np.testing.assert_allclose(updates["final_norm"], -1e-4, rtol=1e-4)


def test_weight_decay_pulls_at_matrices_and_leaves_norms_alone():
    updates = first_update(OptimizerConfig(learning_rate=1e-4, weight_decay=10.0))
    np.testing.assert_allclose(updates["layers"]["q_proj"], -1.1e-3, rtol=1e-4)
    np.testing.assert_allclose(updates["layers"]["q_norm"], -1e-4, rtol=1e-4)
    np.testing.assert_allclose(updates["final_norm"], -1e-4, rtol=1e-4)


def test_a_rate_of_zero_is_refused():
    with pytest.raises(ValueError, match="final_norm_learning_rate"):
        OptimizerConfig(learning_rate=1e-4, final_norm_learning_rate=0.0)
