"""Mimetic initial weights: attention that matches like with like, and copies what it finds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model.mimetic_init import mimetic_init
from astra_jax.model.qwen3 import bind, init_params
from astra_jax.testing import tiny_model_config

CONFIG = tiny_model_config(vocab_size=64)


@pytest.fixture(scope="module")
def params():
    return mimetic_init(CONFIG, seed=5)


def test_the_same_seed_gives_the_same_finite_weights_and_another_seed_others(params):
    jax.tree.map(np.testing.assert_array_equal, params, mimetic_init(CONFIG, seed=5))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    other = mimetic_init(CONFIG, seed=6)
    assert not np.array_equal(params["layers"]["q_proj"], other["layers"]["q_proj"])


def test_only_keys_and_outputs_differ_from_the_plain_initial_weights(params):
    plain = init_params(CONFIG, seed=5)
    same = jax.tree.map(np.array_equal, params, plain)
    changed = {name for name, equal in same["layers"].items() if not equal}
    assert changed == {"k_proj", "o_proj"}
    assert all(equal for name, equal in same.items() if name != "layers")
    dtypes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params)
    assert dtypes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), plain)


def correlation(a, b) -> float:
    return float(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1])


def test_keys_resemble_the_first_query_head_of_their_group_alone(params):
    q_LDNH, k_LDKH = params["layers"]["q_proj"], params["layers"]["k_proj"]
    assert correlation(q_LDNH[:, :, ::2], k_LDKH) == pytest.approx(0.5**0.5, abs=0.05)
    assert correlation(q_LDNH[:, :, 1::2], k_LDKH) == pytest.approx(0.0, abs=0.05)
    assert float(jnp.std(k_LDKH)) == pytest.approx(float(jnp.std(q_LDNH)), rel=0.1)


def test_what_is_attended_to_is_copied(params):
    """The product of value and output maps has a positive trace; without the mimicry it is near 0."""
    config = CONFIG

    def copying(params) -> float:
        layers, shared = params["layers"], config.num_heads // config.num_kv_heads
        v_LDNH = jnp.repeat(layers["v_proj"], shared, axis=2)
        return float(jnp.einsum("ldnh,lnhd->", v_LDNH, layers["o_proj"])) / (config.num_layers * config.hidden_size)

    assert copying(params) > 0.2
    assert abs(copying(init_params(config, seed=5))) < 0.1


def test_the_first_logits_are_finite(params):
    tokens_BT = jnp.arange(24).reshape(2, 12)
    positions_BT = jnp.broadcast_to(jnp.arange(12), tokens_BT.shape)
    qwen3 = bind(CONFIG, params)
    assert np.isfinite(qwen3.logits(qwen3(tokens_BT, positions_BT, jnp.ones_like(tokens_BT)))).all()
