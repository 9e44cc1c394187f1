"""Chunked log-probabilities against a naive float64 softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model.logprobs import token_logprobs

CHUNK_TOKENS = 8
"""Of 18 tokens: 1217 rows are then three slices of 512, the last of which overlaps the second."""


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    hidden_BTD = rng.normal(size=(2, 9, 16)).astype(np.float32) * 3
    unembedding_VD = rng.normal(size=(1217, 16)).astype(np.float32)
    return hidden_BTD, unembedding_VD, rng.integers(0, 1217, (2, 9))


def naive_log_softmax(hidden_BTD, unembedding_VD):
    logits = np.asarray(hidden_BTD, np.float64) @ np.asarray(unembedding_VD, np.float64).T
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_sliced_logprobs_equal_the_naive_log_softmax(arrays):
    hidden_BTD, unembedding_VD, targets_BT = arrays
    expected_BTV = naive_log_softmax(hidden_BTD, unembedding_VD)
    ours_BT = token_logprobs(hidden_BTD, unembedding_VD, targets_BT, chunk_tokens=CHUNK_TOKENS)
    np.testing.assert_allclose(ours_BT, np.take_along_axis(expected_BTV, targets_BT[..., None], -1)[..., 0], atol=1e-5)


def test_gradients_of_sliced_logprobs_equal_onehot_minus_probabilities(arrays):
    hidden_BTD, unembedding_VD, targets_BT = arrays
    weights_BT = np.random.default_rng(1).normal(size=targets_BT.shape).astype(np.float32)

    def loss(hidden_BTD, unembedding_VD):
        return (token_logprobs(hidden_BTD, unembedding_VD, targets_BT, chunk_tokens=CHUNK_TOKENS) * weights_BT).sum()

    dhidden_BTD, dunembedding_VD = jax.grad(loss, argnums=(0, 1))(hidden_BTD, unembedding_VD)
    dlogits_BTV = np.eye(1217)[targets_BT] - np.exp(naive_log_softmax(hidden_BTD, unembedding_VD))
    dlogits_BTV *= weights_BT[..., None]
    np.testing.assert_allclose(dhidden_BTD, dlogits_BTV @ unembedding_VD, atol=1e-4)
    np.testing.assert_allclose(dunembedding_VD, np.einsum("btv,btd->vd", dlogits_BTV, hidden_BTD), atol=1e-4)


def test_no_array_holds_the_logits_of_all_tokens():
    hidden_BTD = jax.ShapeDtypeStruct((4, 512, 8), jnp.float32)
    unembedding_VD = jax.ShapeDtypeStruct((8192, 8), jnp.float32)
    targets_BT = jax.ShapeDtypeStruct((4, 512), jnp.int32)

    def loss(hidden_BTD, unembedding_VD, targets_BT):
        return token_logprobs(hidden_BTD, unembedding_VD, targets_BT, chunk_tokens=128).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(hidden_BTD, unembedding_VD, targets_BT).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2048 * 8192 * 4 / 4
