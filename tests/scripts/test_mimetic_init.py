"""Mimetic initial weights: attention that matches like with like and copies the match, and an induction head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model.qwen3 import bind, init_params
from astra_jax.testing import tiny_model_config
from scripts.tiny_base.pretrain import mimetic_init

CONFIG = tiny_model_config(vocab_size=64)


@pytest.fixture(scope="module")
def params():
    return mimetic_init(CONFIG, seed=5)


def test_the_same_seed_gives_the_same_finite_weights_and_another_seed_others(params):
    jax.tree.map(np.testing.assert_array_equal, params, mimetic_init(CONFIG, seed=5))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    other = mimetic_init(CONFIG, seed=6)
    assert not np.array_equal(params["layers"]["q_proj"], other["layers"]["q_proj"])


def test_the_successor_of_a_repeated_token_is_foretold():
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
        """Share of places where the next token is among the ten that the model finds likeliest, of 512."""
        qwen3 = bind(config, params)
        hidden_BTD = qwen3(jnp.asarray(tokens_BT), jnp.asarray(positions_BT), jnp.ones(tokens_BT.shape, jnp.int32))
        likeliest_BT10 = np.argsort(-qwen3.logits(hidden_BTD), axis=-1)[..., :10]
        return float(np.mean((likeliest_BT10[:, 64:-1] == tokens_BT[:, 65:, None]).any(axis=-1)))

    assert share_foretold(mimetic_init(config, seed=0)) > 0.6
    assert share_foretold(init_params(config, seed=0)) < 0.1
