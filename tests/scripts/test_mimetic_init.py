"""Mimetic initial weights: attention that matches like with like and copies what it finds, and an induction head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model.qwen3 import bind, init_params
from astra_jax.testing import tiny_model_config
from scripts.tiny_base.pretrain import mimetic_init

CONFIG = tiny_model_config(vocab_size=64)
ONE_LAYER = CONFIG.model_copy(update={"num_layers": 1, "hidden_size": 256})


@pytest.fixture(scope="module")
def params():
    return mimetic_init(CONFIG, seed=5)


@pytest.fixture(scope="module")
def one_layer():
    """The mimicry alone: an induction head takes two layers."""
    return mimetic_init(ONE_LAYER, seed=5)


def test_the_same_seed_gives_the_same_finite_weights_and_another_seed_others(params):
    jax.tree.map(np.testing.assert_array_equal, params, mimetic_init(CONFIG, seed=5))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    other = mimetic_init(CONFIG, seed=6)
    assert not np.array_equal(params["layers"]["q_proj"], other["layers"]["q_proj"])


def correlation(a, b) -> float:
    return float(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1])


def test_keys_resemble_the_first_query_head_of_their_group_alone(one_layer):
    q_LDNH, k_LDKH = one_layer["layers"]["q_proj"], one_layer["layers"]["k_proj"]
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


def test_what_came_after_a_token_is_foretold_where_it_stands_again():
    """Untrained, of the quickstart's size: of random pieces that are repeated; plain weights foretell none."""
    config = tiny_model_config(vocab_size=512).model_copy(
        update={"hidden_size": 128, "num_layers": 3, "num_heads": 2, "num_kv_heads": 1, "head_dim": 128}
    )
    rng = np.random.default_rng(0)
    passage_BT = np.stack([rng.choice(np.arange(8, 512), 64, replace=False) for _ in range(4)])
    start = 20
    tokens_BT = np.concatenate([passage_BT, passage_BT[:, start : start + 24]], axis=1)
    positions_BT = np.broadcast_to(np.arange(tokens_BT.shape[1]), tokens_BT.shape)

    def share_foretold(params) -> float:
        """How often the token that comes is among the ten likeliest of 512; that which stands there is one of them."""
        qwen3 = bind(config, params)
        hidden_BTD = qwen3(jnp.asarray(tokens_BT), jnp.asarray(positions_BT), jnp.ones(tokens_BT.shape, jnp.int32))
        likeliest_BT10 = np.argsort(-qwen3.logits(hidden_BTD), axis=-1)[..., :10]
        return float(np.mean((likeliest_BT10[:, 64:-1] == tokens_BT[:, 65:, None]).any(axis=-1)))

    assert share_foretold(mimetic_init(config, seed=0)) > 0.6
    assert share_foretold(init_params(config, seed=0)) < 0.1
