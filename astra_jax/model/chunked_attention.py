"""Attention in plain XLA, a chunk of queries at a time, with the flash backward pass (arXiv 2205.14135, appendix B)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from astra_jax.model.remat import ATTENTION_RESIDUALS

MASKED = -1e30
"""The score of a key that must not be attended: finite, so that a masked row is not NaN, and zero after exp."""

_CHUNK_TOKENS = 128
# Chunks of one band of queries are a loop over the same keys, those before the band's end. More bands waste fewer
# products on keys that come later (8 bands: 1/16 of all), and take longer to compile.
_MAX_BANDS = 8


class Band(NamedTuple):
    """A run of chunks of queries, and how many of the first keys they can see."""

    start: int
    stop: int
    keys: int


class Queries(NamedTuple):
    """X chunks of C queries. Q = C · N/K rows of one key head in one chunk, head-major."""

    rows_XBKQH: jax.Array
    segment_ids_XBC: jax.Array
    places_XC: jax.Array
    """Where in the sequence each query stands."""


class Keys(NamedTuple):
    """All keys and values, in sequence order."""

    keys_BKSH: jax.Array
    values_BKSH: jax.Array
    segment_ids_BS: jax.Array


def chunked_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    q_segment_ids_BT: jax.Array,
    kv_segment_ids_BS: jax.Array,
    places_T: jax.Array | None = None,
) -> jax.Array:
    """Attention of queries that stand at `places_T` of the keys' sequence (None: both are the same sequence)."""
    batch, tokens, heads, head_dim = q_BTNH.shape
    kv_heads = k_BSKH.shape[2]
    size = min(_CHUNK_TOKENS, tokens)
    padding = -tokens % size
    count = (tokens + padding) // size
    bands = _all_keys(count, k_BSKH.shape[1]) if places_T is not None else _bands(count, size, tokens)
    places_T = jnp.arange(tokens) if places_T is None else places_T
    padded = [(0, 0), (0, padding)]
    rows = jnp.pad(q_BTNH * head_dim**-0.5, [*padded, (0, 0), (0, 0)])
    rows = rows.reshape(batch, count, size, kv_heads, heads // kv_heads, head_dim).transpose(1, 0, 3, 4, 2, 5)
    queries = Queries(
        rows.reshape(count, batch, kv_heads, -1, head_dim),
        jnp.pad(q_segment_ids_BT, padded).reshape(batch, count, size).swapaxes(0, 1),
        jnp.pad(places_T, (0, padding)).reshape(count, size),
    )
    out_XBKQH = _attend(bands, queries, Keys(k_BSKH.swapaxes(1, 2), v_BSKH.swapaxes(1, 2), kv_segment_ids_BS))
    out = out_XBKQH.reshape(count, batch, kv_heads, heads // kv_heads, size, head_dim).transpose(1, 0, 4, 2, 3, 5)
    return out.reshape(batch, count * size, heads, head_dim)[:, :tokens]


def _all_keys(count: int, keys: int) -> tuple[Band, ...]:
    return (Band(0, count, keys),)


def _bands(count: int, size: int, keys: int) -> tuple[Band, ...]:
    """Bands over chunks that stand in sequence order."""
    step = -(-count // _MAX_BANDS)
    stops = [min(start + step, count) for start in range(0, count, step)]
    starts = [0, *stops[:-1]]
    return tuple(Band(start, stop, min(stop * size, keys)) for start, stop in zip(starts, stops, strict=True))


def _masked_scores(chunk: Queries, keys: Keys) -> jax.Array:
    """Float32 scores [B, K, Q, S] of one chunk of queries."""
    causal_CS = chunk.places_XC[:, None] >= jnp.arange(keys.keys_BKSH.shape[2])
    mask_BCS = causal_CS & (chunk.segment_ids_XBC[:, :, None] == keys.segment_ids_BS[:, None])
    mask_BQS = jnp.tile(mask_BCS, (1, chunk.rows_XBKQH.shape[2] // causal_CS.shape[0], 1))
    s_BKQS = _einsum("bkqh,bksh->bkqs", chunk.rows_XBKQH, keys.keys_BKSH)
    return jnp.where(mask_BQS[:, None], s_BKQS, MASKED)


_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _first(keys: Keys, count: int) -> Keys:
    return Keys(keys.keys_BKSH[:, :, :count], keys.values_BKSH[:, :, :count], keys.segment_ids_BS[:, :count])


def _of_band(band: Band, queries: Queries) -> Queries:
    return Queries(*(array[band.start : band.stop] for array in queries))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(bands: tuple[Band, ...], queries: Queries, keys: Keys) -> jax.Array:
    return _attend_forward(bands, queries, keys)[0]


def _attend_forward(bands: tuple[Band, ...], queries: Queries, keys: Keys) -> tuple[jax.Array, tuple[object, ...]]:
    def attend(keys: Keys, chunk: Queries) -> tuple[jax.Array, jax.Array]:
        s_BKQS = _masked_scores(chunk, keys)
        max_BKQ = s_BKQS.max(-1)
        p_BKQS = jnp.exp(s_BKQS - max_BKQ[..., None])
        sum_BKQ = p_BKQS.sum(-1)
        dtype = keys.values_BKSH.dtype
        out_BKQH = jnp.einsum("bkqs,bksh->bkqh", p_BKQS.astype(dtype), keys.values_BKSH)
        return out_BKQH / sum_BKQ[..., None].astype(dtype), max_BKQ + jnp.log(sum_BKQ)

    parts = [jax.lax.map(functools.partial(attend, _first(keys, band.keys)), _of_band(band, queries)) for band in bands]
    out_XBKQH, lse_XBKQ = (
        checkpoint_name(jnp.concatenate(arrays), ATTENTION_RESIDUALS) for arrays in zip(*parts, strict=True)
    )
    return out_XBKQH, (queries, keys, out_XBKQH, lse_XBKQ)


def _attend_backward(
    bands: tuple[Band, ...],
    residuals: tuple[Queries, Keys, jax.Array, jax.Array],
    dout_XBKQH: jax.Array,
) -> tuple[Queries, Keys]:
    queries, keys, out_XBKQH, lse_XBKQ = residuals
    dtype = keys.keys_BKSH.dtype
    delta_XBKQ = (dout_XBKQH.astype(jnp.float32) * out_XBKQH).sum(-1)

    def pull(
        keys: Keys, grads: tuple[jax.Array, jax.Array], xs: tuple[Queries, jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        dk_BKSH, dv_BKSH = grads
        chunk, dout_BKQH, lse_BKQ, delta_BKQ = xs
        p_BKQS = jnp.exp(_masked_scores(chunk, keys) - lse_BKQ[..., None])
        dp_BKQS = _einsum("bkqh,bksh->bkqs", dout_BKQH, keys.values_BKSH)
        ds_BKQS = (p_BKQS * (dp_BKQS - delta_BKQ[..., None])).astype(dtype)
        dk_BKSH += _einsum("bkqs,bkqh->bksh", ds_BKQS, chunk.rows_XBKQH)
        dv_BKSH += _einsum("bkqs,bkqh->bksh", p_BKQS.astype(dtype), dout_BKQH)
        return (dk_BKSH, dv_BKSH), _einsum("bkqs,bksh->bkqh", ds_BKQS, keys.keys_BKSH).astype(dtype)

    dk_BKSH, dv_BKSH = (jnp.zeros(x.shape, jnp.float32) for x in keys[:2])
    dqs = []
    for band in bands:
        seen = (dk_BKSH[:, :, : band.keys], dv_BKSH[:, :, : band.keys])
        xs = (_of_band(band, queries), *(x[band.start : band.stop] for x in (dout_XBKQH, lse_XBKQ, delta_XBKQ)))
        (seen_dk, seen_dv), dq_XBKQH = jax.lax.scan(functools.partial(pull, _first(keys, band.keys)), seen, xs)
        dk_BKSH = dk_BKSH.at[:, :, : band.keys].set(seen_dk)
        dv_BKSH = dv_BKSH.at[:, :, : band.keys].set(seen_dv)
        dqs.append(dq_XBKQH)
    dqueries = Queries(jnp.concatenate(dqs), None, None)  # type: ignore[arg-type]
    return dqueries, Keys(dk_BKSH.astype(dtype), dv_BKSH.astype(dtype), None)  # type: ignore[arg-type]


_attend.defvjp(_attend_forward, _attend_backward)
