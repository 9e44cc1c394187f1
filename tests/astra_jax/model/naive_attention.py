"""A naive attention in float64, forward and backward, and rows of segments to try attentions on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def segments_of(*rows, tokens):
    """Ids of segments and of their prefixes; a row is a list of groups, a group the lengths of prompt and responses."""
    ids_BT, prefix_ids_BT = np.zeros((2, len(rows), tokens), np.int32)
    for row, groups in enumerate(rows):
        start, segment = 0, 0
        for prompt, *responses in groups:
            prefix = segment + 1
            for length in (prompt, *responses):
                segment += 1
                ids_BT[row, start : start + length], prefix_ids_BT[row, start : start + length] = segment, prefix
                start += length
    return ids_BT, prefix_ids_BT


@functools.cache
def inputs(batch=2, tokens=304, heads=4, kv_heads=2, head_dim=8):
    """Queries, keys, values, and weights of the outputs."""
    rng = np.random.default_rng(tokens)
    q, weights = rng.normal(size=(2, batch, tokens, heads, head_dim)).astype(np.float32)
    k, v = rng.normal(size=(2, batch, tokens, kv_heads, head_dim)).astype(np.float32)
    return q, k, v, weights


def out_and_gradients(attend, segment_ids_BT, q, k, v, weights):
    """The output and three gradients; padding counts as 0."""
    is_real_BT11 = (jnp.asarray(segment_ids_BT) > 0)[..., None, None]
    out, pull = jax.vjp(lambda *qkv: attend(*qkv) * is_real_BT11, q, k, v)
    return out, *pull(weights * is_real_BT11)


def expected_of(segment_ids_BT, prefix_ids_BT, *arrays):
    """The same by the naive formula, differentiated by JAX."""
    with jax.enable_x64(True):
        return _naive(segment_ids_BT, prefix_ids_BT, *(jnp.asarray(x, jnp.float64) for x in arrays))


@jax.jit
def _naive(segment_ids_BT, prefix_ids_BT, *arrays):
    def attend(q, k, v):
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
        reaches = (segment_ids_BT[:, :, None] == segment_ids_BT[:, None]) | (
            prefix_ids_BT[:, :, None] == segment_ids_BT[:, None]
        )
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(jnp.tril(reaches)[:, None], scores, -1e30))
        return jnp.einsum("bnts,bsnh->btnh", weights, v)

    return out_and_gradients(attend, segment_ids_BT, *arrays)


def assert_equal(found, expected):
    """Compare arrays by their norms."""
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert np.linalg.norm(ours - theirs) <= 1e-6 * max(np.linalg.norm(theirs), 1)  # of one token they are 0
