"""Causal, segment-aware, grouped-query attention in chunks of queries: the scores of a sequence never exist whole.

A query attends a key when both lie in the same segment and the key does not come later in the sequence. Padding is a
segment of its own, so no row is ever empty and nothing real attends padding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

MASKED = -1e30
"""The score of a key that must not be attended: finite, so that a masked row is not NaN, and zero after exp."""

_CHUNK_TOKENS = 128
# Chunks of one band of queries are a loop over the same keys, those before the band's end. More bands waste fewer
# products on keys that come later (8 bands: 1/16 of all), and take longer to compile.
_BANDS = 8


def attention(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
    """softmax(q kᵀ / √H) v over the earlier keys of the same segment; returns [B, T, N, H] in the dtype of q.

    N is a multiple of K: query heads n·N/K … (n+1)·N/K − 1 share key head n, whose keys are read in place. The softmax
    is float32. T is any length; memory grows with chunk × T.
    """
    batch, tokens, heads, head_dim = q_BTNH.shape
    kv_heads = k_BTKH.shape[2]
    chunk = min(_CHUNK_TOKENS, tokens)
    padding = -tokens % chunk
    if padding:  # at the end, where causality hides it
        q_BTNH, k_BTKH, v_BTKH = (jnp.pad(x, [(0, 0), (0, padding), (0, 0), (0, 0)]) for x in (q_BTNH, k_BTKH, v_BTKH))
        segment_ids_BT = jnp.pad(segment_ids_BT, [(0, 0), (0, padding)])
    chunks = (tokens + padding) // chunk
    grouped = (batch, chunks, chunk, kv_heads, heads // kv_heads, head_dim)
    q_XBKQH = (
        (q_BTNH * head_dim**-0.5)
        .reshape(grouped)
        .transpose(1, 0, 3, 4, 2, 5)
        .reshape(chunks, batch, kv_heads, -1, head_dim)
    )
    out_XBKQH = _chunked(q_XBKQH, k_BTKH.swapaxes(1, 2), v_BTKH.swapaxes(1, 2), segment_ids_BT)
    out_XBKGCH = out_XBKQH.reshape(chunks, batch, kv_heads, heads // kv_heads, chunk, head_dim)
    return out_XBKGCH.transpose(1, 0, 4, 2, 3, 5).reshape(q_BTNH.shape)[:, :tokens]


# X chunks of C queries; Q = C · N/K rows of one key head in one chunk, head-major.


def _bands(chunks: int) -> Iterator[slice]:
    size = -(-chunks // _BANDS)
    return (slice(start, min(start + size, chunks)) for start in range(0, chunks, size))


def _masked_scores(q_BKQH: jax.Array, k_BKSH: jax.Array, segment_ids_BT: jax.Array, chunk: jax.Array) -> jax.Array:
    """Float32 scores of one chunk of queries against the first S keys."""
    keys = k_BKSH.shape[2]
    size = min(_CHUNK_TOKENS, segment_ids_BT.shape[1])
    start = chunk * size
    segment_ids_BC = jax.lax.dynamic_slice_in_dim(segment_ids_BT, start, size, axis=1)
    causal_CS = start + jnp.arange(size)[:, None] >= jnp.arange(keys)
    mask_BCS = causal_CS & (segment_ids_BC[:, :, None] == segment_ids_BT[:, None, :keys])
    mask_BQS = jnp.tile(mask_BCS, (1, q_BKQH.shape[2] // size, 1))
    s_BKQS = jnp.einsum("bkqh,bksh->bkqs", q_BKQH, k_BKSH, preferred_element_type=jnp.float32)
    return jnp.where(mask_BQS[:, None], s_BKQS, MASKED)


@jax.custom_vjp
def _chunked(q_XBKQH: jax.Array, k_BKTH: jax.Array, v_BKTH: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
    return _chunked_forward(q_XBKQH, k_BKTH, v_BKTH, segment_ids_BT)[0]


def _chunked_forward(
    q_XBKQH: jax.Array, k_BKTH: jax.Array, v_BKTH: jax.Array, segment_ids_BT: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    chunks, tokens = len(q_XBKQH), k_BKTH.shape[2]

    def attend(keys: int, xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        chunk, q_BKQH = xs
        s_BKQS = _masked_scores(q_BKQH, k_BKTH[:, :, :keys], segment_ids_BT, chunk)
        max_BKQ = s_BKQS.max(-1)
        p_BKQS = jnp.exp(s_BKQS - max_BKQ[..., None])
        sum_BKQ = p_BKQS.sum(-1)
        out_BKQH = jnp.einsum("bkqs,bksh->bkqh", p_BKQS.astype(v_BKTH.dtype), v_BKTH[:, :, :keys])
        return out_BKQH / sum_BKQ[..., None].astype(out_BKQH.dtype), max_BKQ + jnp.log(sum_BKQ)

    parts = [
        jax.lax.map(functools.partial(attend, band.stop * tokens // chunks), (jnp.arange(chunks)[band], q_XBKQH[band]))
        for band in _bands(chunks)
    ]
    out_XBKQH, lse_XBKQ = (jnp.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return out_XBKQH, (q_XBKQH, k_BKTH, v_BKTH, segment_ids_BT, out_XBKQH, lse_XBKQ)


def _chunked_backward(
    residuals: tuple[jax.Array, ...], dout_XBKQH: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q_XBKQH, k_BKTH, v_BKTH, segment_ids_BT, out_XBKQH, lse_XBKQ = residuals
    chunks, tokens = len(q_XBKQH), k_BKTH.shape[2]
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    delta_XBKQ = (dout_XBKQH.astype(jnp.float32) * out_XBKQH).sum(-1)

    def pull(
        grads: tuple[jax.Array, jax.Array], xs: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        dk_BKSH, dv_BKSH = grads
        chunk, q_BKQH, dout_BKQH, lse_BKQ, delta_BKQ = xs
        keys = dk_BKSH.shape[2]
        k_BKSH, v_BKSH = k_BKTH[:, :, :keys], v_BKTH[:, :, :keys]
        p_BKQS = jnp.exp(_masked_scores(q_BKQH, k_BKSH, segment_ids_BT, chunk) - lse_BKQ[..., None])
        dp_BKQS = einsum("bkqh,bksh->bkqs", dout_BKQH, v_BKSH)
        ds_BKQS = (p_BKQS * (dp_BKQS - delta_BKQ[..., None])).astype(k_BKTH.dtype)
        dk_BKSH = dk_BKSH + einsum("bkqs,bkqh->bksh", ds_BKQS, q_BKQH)
        dv_BKSH = dv_BKSH + einsum("bkqs,bkqh->bksh", p_BKQS.astype(v_BKTH.dtype), dout_BKQH)
        return (dk_BKSH, dv_BKSH), einsum("bkqs,bksh->bkqh", ds_BKQS, k_BKSH).astype(q_XBKQH.dtype)

    dk_BKTH, dv_BKTH = (jnp.zeros(x.shape, jnp.float32) for x in (k_BKTH, v_BKTH))
    dqs = []
    for band in _bands(chunks):
        keys = band.stop * tokens // chunks
        xs = (jnp.arange(chunks)[band], q_XBKQH[band], dout_XBKQH[band], lse_XBKQ[band], delta_XBKQ[band])
        (dk_BKSH, dv_BKSH), dq_XBKQH = jax.lax.scan(pull, (dk_BKTH[:, :, :keys], dv_BKTH[:, :, :keys]), xs)
        dk_BKTH, dv_BKTH = dk_BKTH.at[:, :, :keys].set(dk_BKSH), dv_BKTH.at[:, :, :keys].set(dv_BKSH)
        dqs.append(dq_XBKQH)
    return jnp.concatenate(dqs), dk_BKTH.astype(k_BKTH.dtype), dv_BKTH.astype(v_BKTH.dtype), None


_chunked.defvjp(_chunked_forward, _chunked_backward)
