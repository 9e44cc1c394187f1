"""Chunked log-probabilities against a naive float64 softmax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model.logprobs import kept_logprobs, token_logprobs
from astra_jax.model.sharding import MeshConfig, make_mesh, spec

CHUNK_TOKENS = 8
"""For 300 tokens and a vocabulary of 257: three slices of 128 rows, the last of which overlaps the second."""


def naive_log_softmax(hidden_BTD, unembedding_VD):
    logits = np.asarray(hidden_BTD, np.float64) @ np.asarray(unembedding_VD, np.float64).T
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("num_active", [0, 1, 128, 150, 300])
def test_only_active_tokens_are_computed_and_no_number_of_them_compiles_anew(num_active, masked):
    """300 tokens are three chunks of 128; an inactive token is not read."""
    hidden_BTD, unembedding_VD, targets_BT, logprobs_and_gradients = masked
    rng = np.random.default_rng(num_active)
    active_BT = (rng.permutation(300) < num_active).reshape(2, 150)
    weights_BT = rng.normal(size=(2, 150)).astype(np.float32)
    ours = logprobs_and_gradients(np.where(active_BT[..., None], hidden_BTD, np.nan), active_BT, weights_BT)
    log_softmax_BTV = naive_log_softmax(hidden_BTD, unembedding_VD)
    dlogits_BTV = (np.eye(257)[targets_BT] - np.exp(log_softmax_BTV)) * (weights_BT * active_BT)[..., None]
    expected = (
        np.take_along_axis(log_softmax_BTV, targets_BT[..., None], -1)[..., 0] * active_BT,
        dlogits_BTV @ unembedding_VD,
        np.einsum("btv,btd->vd", dlogits_BTV, hidden_BTD),
    )
    for found, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6 * max(1, np.abs(wanted).max()))
    assert logprobs_and_gradients._cache_size() == 1


@pytest.fixture(scope="module")
def masked():
    rng = np.random.default_rng(3)
    hidden_BTD = rng.normal(size=(2, 150, 16)).astype(np.float32)
    unembedding_VD = rng.normal(size=(257, 16)).astype(np.float32)
    targets_BT = rng.integers(0, 257, (2, 150))

    @jax.jit
    def logprobs_and_gradients(hidden_BTD, active_BT, weights_BT):
        logprobs_BT, pull = jax.vjp(
            lambda *x: token_logprobs(*x, targets_BT, active_BT, chunk_tokens=CHUNK_TOKENS), hidden_BTD, unembedding_VD
        )
        return logprobs_BT, *pull(weights_BT)

    return hidden_BTD, unembedding_VD, targets_BT, logprobs_and_gradients


def test_no_array_holds_the_logits_of_all_tokens():
    hidden_BTD = jax.ShapeDtypeStruct((4, 512, 8), jnp.float32)
    unembedding_VD = jax.ShapeDtypeStruct((8192, 8), jnp.float32)
    targets_BT = jax.ShapeDtypeStruct((4, 512), jnp.int32)

    def loss(hidden_BTD, unembedding_VD, targets_BT):
        return token_logprobs(hidden_BTD, unembedding_VD, targets_BT, chunk_tokens=128).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(hidden_BTD, unembedding_VD, targets_BT).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2048 * 8192 * 4 / 4


@pytest.fixture(scope="module")
def kept():
    """Hidden states, unembedding, targets, and for each token up to five ids, the target among them; for some none."""
    rng = np.random.default_rng(2)
    hidden_BTD = rng.normal(size=(2, 9, 16)).astype(np.float32) * 3
    unembedding_VD = rng.normal(size=(1217, 16)).astype(np.float32)
    kept_BTK, targets_BT = np.full((2, 9, 5), -1), np.zeros((2, 9), int)
    for place in np.ndindex(2, 9):
        count = rng.integers(0, 6)
        kept_BTK[place][:count] = rng.choice(len(unembedding_VD), count, replace=False)
        targets_BT[place] = rng.choice(kept_BTK[place][:count]) if count else 7
    assert {0, 1, 5} <= set((kept_BTK >= 0).sum(-1).ravel().tolist())
    return hidden_BTD, unembedding_VD, targets_BT, kept_BTK


def naive_kept_logprobs(hidden_BTD, unembedding_VD, targets_BT, kept_BTK, weights_BT):
    """In float64, token by token: log-probs, and the gradients of their weighted sum."""
    hidden_BTD, unembedding_VD = np.float64(hidden_BTD), np.float64(unembedding_VD)
    logprobs_BT, dhidden_BTD, dtable_VD = np.zeros(targets_BT.shape), 0 * hidden_BTD, 0 * unembedding_VD
    for place in np.ndindex(targets_BT.shape):
        ids = kept_BTK[place][kept_BTK[place] >= 0]
        if not len(ids):
            continue
        logits = unembedding_VD[ids] @ hidden_BTD[place]
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        is_target = ids == targets_BT[place]
        logprobs_BT[place] = np.log(p[is_target][0])
        dlogits = (is_target - p) * weights_BT[place]
        dhidden_BTD[place] = dlogits @ unembedding_VD[ids]
        dtable_VD[ids] += dlogits[:, None] * hidden_BTD[place]
    return logprobs_BT, dhidden_BTD, dtable_VD


@functools.partial(jax.jit, static_argnames="chunk_tokens")
def kept_logprobs_and_gradients(hidden_BTD, unembedding_VD, targets_BT, kept_BTK, weights_BT, chunk_tokens):
    def weighted_sum(hidden_BTD, unembedding_VD):
        logprobs_BT = kept_logprobs(hidden_BTD, unembedding_VD, targets_BT, kept_BTK, chunk_tokens=chunk_tokens)
        return (logprobs_BT * weights_BT).sum(), logprobs_BT

    (_, logprobs_BT), gradients = jax.value_and_grad(weighted_sum, argnums=(0, 1), has_aux=True)(
        hidden_BTD, unembedding_VD
    )
    return logprobs_BT, *gradients


@pytest.mark.parametrize("chunk_tokens", [4, 64])
def test_logprobs_among_kept_ids_and_their_gradients_are_those_of_a_softmax_over_these_alone(kept, chunk_tokens):
    """Chunks of 4 do not divide 18 tokens."""
    weights_BT = np.random.default_rng(1).normal(size=(2, 9)).astype(np.float32)
    found = kept_logprobs_and_gradients(*kept, weights_BT, chunk_tokens=chunk_tokens)
    for ours, expected in zip(found, naive_kept_logprobs(*kept, weights_BT), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("mesh", [MeshConfig(fsdp=2, context=2, tensor=2), MeshConfig(data=2, context=2, tensor=2)])
def test_logprobs_among_kept_ids_are_the_same_over_a_mesh(kept, mesh):
    """Two rows of eight tokens, and a table that can be split."""
    hidden_BTD, unembedding_VD, targets_BT, kept_BTK = kept
    hidden_BTD, unembedding_VD, targets_BT, kept_BTK = (
        *(hidden_BTD[:, :8], unembedding_VD[:1216]),
        *(targets_BT[:, :8], np.where((kept_BTK < 1216).all(-1, keepdims=True), kept_BTK, -1)[:, :8]),
    )
    weights_BT = np.random.default_rng(1).normal(size=(2, 8)).astype(np.float32)
    expected = naive_kept_logprobs(hidden_BTD, unembedding_VD, targets_BT, kept_BTK, weights_BT)
    with jax.set_mesh(make_mesh(mesh, jax.devices()[:8])):
        tokens, table = spec("batch", "sequence"), spec("vocab", "embed")
        arrays = (hidden_BTD, unembedding_VD, targets_BT, kept_BTK, weights_BT)
        placed = jax.device_put(arrays, (tokens, table, tokens, tokens, tokens))
        found = kept_logprobs_and_gradients(*placed, chunk_tokens=3)
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-4, rtol=1e-5)


def test_no_array_holds_the_rows_that_all_tokens_have_kept():
    shapes = {
        "hidden": ((4, 512, 64), jnp.float32),
        "table": ((8192, 64), jnp.float32),
        "targets": ((4, 512), jnp.int32),
    }
    arrays = [jax.ShapeDtypeStruct(*shape) for shape in (*shapes.values(), ((4, 512, 20), jnp.int32))]
    arrays.append(jax.ShapeDtypeStruct((4, 512), jnp.float32))
    compiled = kept_logprobs_and_gradients.lower(*arrays, chunk_tokens=128).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2048 * 20 * 64 * 4 / 2
