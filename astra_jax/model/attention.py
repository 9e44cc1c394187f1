"""Causal, segment-aware, grouped-query attention in chunks of queries: the scores of a sequence never exist whole.

A query attends a key when both lie in the same segment and the key does not come later in the sequence. Padding is a
segment of its own, so no row is ever empty and nothing real attends padding.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

MASKED = -1e30
"""The score of a key that must not be attended: finite, so that a masked row is not NaN, and zero after exp."""

_CHUNK_TOKENS = 128


def attention(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
    """softmax(q kᵀ / √H) v over the earlier keys of the same segment; returns [B, T, N, H] in the dtype of q.

    N is a multiple of K: query heads n·N/K … (n+1)·N/K − 1 share key head n, whose keys are read in place. The softmax
    is float32. T is any length; memory grows with chunk × T.
    """
    batch, tokens, heads, head_dim = q_BTNH.shape
    kv_heads = k_BTKH.shape[2]
    scale = head_dim**-0.5
    q_BKGTH = (q_BTNH * scale).reshape(batch, tokens, kv_heads, heads // kv_heads, head_dim).transpose(0, 2, 3, 1, 4)
    k_BKTH, v_BKTH = (x.transpose(0, 2, 1, 3) for x in (k_BTKH, v_BTKH))
    out_BKGTH = _chunked(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT)
    return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(q_BTNH.shape)


def _chunk_ends(tokens: int) -> list[tuple[int, int]]:
    return [(start, min(start + _CHUNK_TOKENS, tokens)) for start in range(0, tokens, _CHUNK_TOKENS)]


def _scores(q_BKGCH: jax.Array, k_BKSH: jax.Array, segment_ids_BT: jax.Array, start: int, end: int) -> jax.Array:
    """Masked float32 scores of queries start … end−1 against the keys before `end`."""
    s_BKGCS = jnp.einsum("bkgch,bksh->bkgcs", q_BKGCH, k_BKSH, preferred_element_type=jnp.float32)
    causal_CS = jnp.arange(start, end)[:, None] >= jnp.arange(end)[None, :]
    mask_BCS = causal_CS & (segment_ids_BT[:, start:end, None] == segment_ids_BT[:, None, :end])
    return jnp.where(mask_BCS[:, None, None], s_BKGCS, MASKED)


@jax.custom_vjp
def _chunked(q_BKGTH: jax.Array, k_BKTH: jax.Array, v_BKTH: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
    return _chunked_forward(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT)[0]


def _chunked_forward(
    q_BKGTH: jax.Array, k_BKTH: jax.Array, v_BKTH: jax.Array, segment_ids_BT: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    outs, lses = [], []
    for start, end in _chunk_ends(q_BKGTH.shape[3]):
        s_BKGCS = _scores(q_BKGTH[:, :, :, start:end], k_BKTH[:, :, :end], segment_ids_BT, start, end)
        max_BKGC = s_BKGCS.max(-1)
        p_BKGCS = jnp.exp(s_BKGCS - max_BKGC[..., None])
        sum_BKGC = p_BKGCS.sum(-1)
        out_BKGCH = jnp.einsum("bkgcs,bksh->bkgch", p_BKGCS.astype(v_BKTH.dtype), v_BKTH[:, :, :end])
        outs.append(out_BKGCH / sum_BKGC[..., None].astype(v_BKTH.dtype))
        lses.append(max_BKGC + jnp.log(sum_BKGC))
    out_BKGTH, lse_BKGT = jnp.concatenate(outs, axis=3), jnp.concatenate(lses, axis=3)
    return out_BKGTH, (q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, out_BKGTH, lse_BKGT)


def _chunked_backward(
    residuals: tuple[jax.Array, ...], dout_BKGTH: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, out_BKGTH, lse_BKGT = residuals
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    delta_BKGT = (dout_BKGTH.astype(jnp.float32) * out_BKGTH).sum(-1)
    dk_BKTH, dv_BKTH = (jnp.zeros(x.shape, jnp.float32) for x in (k_BKTH, v_BKTH))
    dqs = []
    for start, end in _chunk_ends(q_BKGTH.shape[3]):
        q_BKGCH, dout_BKGCH = q_BKGTH[:, :, :, start:end], dout_BKGTH[:, :, :, start:end]
        k_BKSH, v_BKSH = k_BKTH[:, :, :end], v_BKTH[:, :, :end]
        s_BKGCS = _scores(q_BKGCH, k_BKSH, segment_ids_BT, start, end)
        p_BKGCS = jnp.exp(s_BKGCS - lse_BKGT[:, :, :, start:end, None])
        dp_BKGCS = einsum("bkgch,bksh->bkgcs", dout_BKGCH, v_BKSH)
        ds_BKGCS = (p_BKGCS * (dp_BKGCS - delta_BKGT[:, :, :, start:end, None])).astype(k_BKTH.dtype)
        dqs.append(einsum("bkgcs,bksh->bkgch", ds_BKGCS, k_BKSH))
        dk_BKTH = dk_BKTH.at[:, :, :end].add(einsum("bkgcs,bkgch->bksh", ds_BKGCS, q_BKGCH))
        dv_BKTH = dv_BKTH.at[:, :, :end].add(einsum("bkgcs,bkgch->bksh", p_BKGCS.astype(v_BKTH.dtype), dout_BKGCH))
    dq_BKGTH = jnp.concatenate(dqs, axis=3)
    return dq_BKGTH.astype(q_BKGTH.dtype), dk_BKTH.astype(k_BKTH.dtype), dv_BKTH.astype(v_BKTH.dtype), None


_chunked.defvjp(_chunked_forward, _chunked_backward)
