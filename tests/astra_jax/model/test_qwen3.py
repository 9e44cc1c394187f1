"""Properties of the forward pass that no reference implementation is needed for."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import bind, init_params

CONFIG = ModelConfig(
    vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48
)


@pytest.fixture(scope="module")
def params():
    return init_params(CONFIG, seed=0)


def test_bfloat16_compute_keeps_float32_parameters_and_gradients(params):
    config = CONFIG.model_copy(update={"dtype": "bfloat16"})

    def total(params):
        hidden_BTD = bind(config, params)(jnp.ones((1, 16), jnp.int32), jnp.arange(16)[None], jnp.ones((1, 16), int))
        assert hidden_BTD.dtype == jnp.bfloat16
        return hidden_BTD.astype(jnp.float32).sum()

    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(jax.grad(total), params))} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_offload_keeps_the_activations_of_a_layer_in_the_hosts_memory(params):
    tokens_BT = np.random.default_rng(0).integers(0, 61, (2, 16))
    positions_BT, ones_BT = np.broadcast_to(np.arange(16), (2, 16)), np.ones((2, 16), np.int32)

    def traced(remat):
        config = CONFIG.model_copy(update={"remat": remat, "dtype": "bfloat16"})
        return jax.jit(jax.grad(lambda p: (bind(config, p)(tokens_BT, positions_BT, ones_BT) ** 2).sum())).trace(params)

    kept, offloaded = traced("attention"), traced("offload")
    sent = re.findall(r"bf16<host>\[[\d,]+\] = device_put", str(offloaded.jaxpr))
    assert len(sent) == 3  # the layer's input, the attention output of its heads, the input of its MLP
    assert "<host>" not in str(kept.jaxpr)
    expected = kept.lower().compile()(params)
    found = offloaded.lower().compile()(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.02, atol=0.02), found, expected)


@pytest.mark.slow
def test_every_remat_policy_gives_the_same_gradients(params):
    tokens_BT = np.random.default_rng(0).integers(0, 61, (2, 16))
    positions_BT, ones_BT = np.broadcast_to(np.arange(16), (2, 16)), np.ones((2, 16), np.int32)

    def gradients(remat):
        config = CONFIG.model_copy(update={"remat": remat})
        return jax.jit(jax.grad(lambda p: (bind(config, p)(tokens_BT, positions_BT, ones_BT) ** 2).sum()))(params)

    expected = gradients("none")
    for policy in ("full", "attention", "offload"):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), gradients(policy), expected)
