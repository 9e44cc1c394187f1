"""Attention against a naive float64 reference, forward and backward."""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model import chunked_attention
from astra_jax.model.attention import attention


def naive_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT):
    q, k, v = (np.asarray(x, np.float64) for x in (q_BTNH, k_BTKH, v_BTKH))
    shared = q.shape[2] // k.shape[2]
    scores = np.einsum("btnh,bsnh->bnts", q, k.repeat(shared, axis=2)) / np.sqrt(q.shape[-1])
    tokens = q.shape[1]
    mask = np.tril(np.ones((tokens, tokens), bool)) & (segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :])
    scores = np.where(mask[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bnts,bsnh->btnh", weights, v.repeat(shared, axis=2))


def inputs(tokens, heads=4, kv_heads=2, batch=2, head_dim=8):
    rng = np.random.default_rng(tokens)
    q = rng.normal(size=(batch, tokens, heads, head_dim)).astype(np.float32)
    k, v = rng.normal(size=(2, batch, tokens, kv_heads, head_dim)).astype(np.float32)
    segment_ids_BT = np.sort(rng.integers(1, 4, (batch, tokens)), axis=1)
    segment_ids_BT[0, -tokens // 5 :] = 0  # padding
    return q, k, v, segment_ids_BT


@pytest.mark.parametrize("tokens", [1, 7, 128, 300, 2200])
def test_chunked_attention_equals_the_naive_formula(tokens):
    q, k, v, segment_ids_BT = inputs(tokens, batch=1 if tokens > 1000 else 2)
    out = jax.jit(attention)(q, k, v, segment_ids_BT)
    np.testing.assert_allclose(out, naive_attention(q, k, v, segment_ids_BT), atol=2e-6)


def test_gradients_equal_those_of_the_naive_formula():
    q, k, v, segment_ids_BT = inputs(300)
    weights = np.random.default_rng(5).normal(size=q.shape).astype(np.float32)

    def naive(q, k, v):  # the same formula in JAX, differentiated by JAX
        k, v = (jnp.repeat(x, 2, axis=2) for x in (k, v))
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
        mask = np.tril(np.ones((300, 300), bool)) & (segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :])
        return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30)), v)

    ours = jax.jit(jax.grad(lambda *x: (attention(*x, segment_ids_BT) * weights).sum(), argnums=(0, 1, 2)))(q, k, v)
    reference = jax.jit(jax.grad(lambda *x: (naive(*x) * weights).sum(), argnums=(0, 1, 2)))(q, k, v)
    for mine, theirs in zip(ours, reference, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("limit", [1, 2 * 128 * 300 * 2, 2**30])
def test_however_many_rows_and_heads_go_together_the_result_is_the_same(monkeypatch, limit):
    """One pair of a row and a key head at a time, two, all six."""
    q, k, v, segment_ids_BT = inputs(300, batch=3)

    def out_and_gradients(q, k, v):
        out, pull = jax.vjp(lambda *qkv: attention(*qkv, segment_ids_BT), q, k, v)
        return out, *pull(q)

    expected = out_and_gradients(q, k, v)
    monkeypatch.setattr(chunked_attention, "_MAX_SCORES_ON_CPU", limit)
    for ours, theirs in zip(jax.jit(out_and_gradients)(q, k, v), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_no_array_is_as_large_as_the_scores_of_a_long_sequence():
    shape = jax.ShapeDtypeStruct((1, 8192, 4, 8), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, 8192), jnp.int32)

    def largest(jaxpr):
        sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "size")]
        inner = [largest(sub) for eqn in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(eqn.params)]
        return max(sizes + inner)

    def loss(q, k, v, s):
        return attention(q, k, v, s).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(shape, shape, shape, ids)
    assert largest(jaxpr.jaxpr) < 8192 * 8192 / 8
