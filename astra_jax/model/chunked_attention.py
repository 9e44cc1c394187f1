"""Attention in plain XLA, a chunk of queries at a time, with the flash backward pass (arXiv 2205.14135, appendix B).

Each pair P of a batch row and a key head is attended on its own. As many pairs go together as keep a chunk's scores
few: on a CPU, few enough for its cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from astra_jax.model.remat import ATTENTION_RESIDUALS
from astra_jax.model.sharding import platform

MASKED = -1e30
"""The score of a key that must not be attended: finite, so that a masked row is not NaN, and zero after exp."""

_CHUNK_TOKENS = 128
# Chunks of one band of queries are a loop over the same keys, those before the band's end. More bands waste fewer
# products on keys that come later (8 bands: 1/16 of all), and take longer to compile.
_MAX_BANDS = 8
# Scores held at once: 1 MiB of float32, for a CPU core's cache; 256 MiB, to keep an accelerator busy.
_MAX_SCORES_ON_CPU, _MAX_SCORES = 2**18, 2**26


class Band(NamedTuple):
    """A run of chunks of queries, and how many of the first keys they can see."""

    start: int
    stop: int
    keys: int


class Queries(NamedTuple):
    """Of each pair X chunks of C queries. Q = C · N/K rows of the pair's key head in one chunk, head-major."""

    rows_PXQH: jax.Array
    segment_ids_PXC: jax.Array


class Keys(NamedTuple):
    """Of each pair all keys and values, in sequence order."""

    keys_PSH: jax.Array
    values_PSH: jax.Array
    segment_ids_PS: jax.Array


def chunked_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    q_segment_ids_BT: jax.Array,
    kv_segment_ids_BS: jax.Array,
    places_T: jax.Array | None = None,
) -> jax.Array:
    """Attend with queries that stand at `places_T` of the keys' sequence (None: both are the same sequence).

    Returns [B, T, N, H]; the keys are in sequence order.
    """
    batch, tokens, heads, head_dim = q_BTNH.shape
    keys, kv_heads = k_BSKH.shape[1:3]
    pairs, shared = batch * kv_heads, heads // kv_heads
    size = min(_CHUNK_TOKENS, tokens)
    padding = -tokens % size
    count = (tokens + padding) // size
    # Where the places are known only on the device, no band of keys can be left out beforehand.
    bands = _all_keys(count, keys) if places_T is not None else _bands(count, size, tokens)
    places_T = jnp.arange(tokens) if places_T is None else places_T
    # Padding queries may see no key at all; then their rows are a finite mean of everything, and are cut off below.
    padded = [(0, 0), (0, padding)]
    rows = jnp.pad(q_BTNH * head_dim**-0.5, [*padded, (0, 0), (0, 0)])
    # The query heads of one key head become rows of one product, so that no key is repeated for them.
    rows = rows.reshape(batch, count, size, kv_heads, shared, head_dim).transpose(0, 3, 1, 4, 2, 5)
    of_pairs = functools.partial(jnp.repeat, repeats=kv_heads, axis=0)
    out_PXQH = _attend(
        bands,
        Queries(
            rows.reshape(pairs, count, shared * size, head_dim),
            of_pairs(jnp.pad(q_segment_ids_BT, padded)).reshape(pairs, count, size),
        ),
        Keys(
            k_BSKH.swapaxes(1, 2).reshape(pairs, keys, head_dim),
            v_BSKH.swapaxes(1, 2).reshape(pairs, keys, head_dim),
            of_pairs(kv_segment_ids_BS),
        ),
        jnp.pad(places_T, (0, padding)).reshape(count, size),
    )
    out = out_PXQH.reshape(batch, kv_heads, count, shared, size, head_dim).transpose(0, 2, 4, 1, 3, 5)
    return out.reshape(batch, count * size, heads, head_dim)[:, :tokens]


class _Attended(NamedTuple):
    """The forward pass as its gradient needs it."""

    queries: Queries
    keys: Keys
    places_XC: jax.Array
    out_PXQH: jax.Array
    lse_PXQ: jax.Array
    """Log-sum-exp of each query's scores, from which its probabilities are made again."""


class _PulledChunk(NamedTuple):
    """One chunk of queries on the way back."""

    rows_QH: jax.Array
    segment_ids_C: jax.Array
    places_C: jax.Array
    dout_QH: jax.Array
    lse_Q: jax.Array
    delta_Q: jax.Array
    """Row sums of probability times its gradient."""


def _all_keys(count: int, keys: int) -> tuple[Band, ...]:
    return (Band(0, count, keys),)


def _bands(count: int, size: int, keys: int) -> tuple[Band, ...]:
    """Bands over chunks that stand in sequence order."""
    step = -(-count // _MAX_BANDS)
    stops = [min(start + step, count) for start in range(0, count, step)]
    starts = [0, *stops[:-1]]
    return tuple(Band(start, stop, min(stop * size, keys)) for start, stop in zip(starts, stops, strict=True))


def _for_each_pair(of_pair: Callable[..., Any], queries: Queries, keys: Keys, *more_P: jax.Array) -> Any:
    """`of_pair` for every pair, as many at once as the limit on scores allows.

    They are a divisor of all, so that no second program is compiled for a remainder.
    """
    pairs, _, rows, _ = queries.rows_PXQH.shape
    most = (_MAX_SCORES_ON_CPU if platform() == "cpu" else _MAX_SCORES) // (rows * keys.keys_PSH.shape[1])
    at_once = next(n for n in range(min(max(most, 1), pairs), 0, -1) if pairs % n == 0)
    return jax.lax.map(lambda arrays: of_pair(*arrays), (queries, keys, *more_P), batch_size=at_once)


def _masked_scores(rows_QH: jax.Array, segment_ids_C: jax.Array, places_C: jax.Array, keys: Keys) -> jax.Array:
    """Float32 scores [Q, S] of one chunk of queries."""
    keys_SH, _, segment_ids_S = keys
    mask_CS = (places_C[:, None] >= jnp.arange(len(keys_SH))) & (segment_ids_C[:, None] == segment_ids_S)
    mask_QS = jnp.tile(mask_CS, (len(rows_QH) // len(places_C), 1))
    return jnp.where(mask_QS, _einsum("qh,sh->qs", rows_QH, keys_SH), MASKED)


_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(bands: tuple[Band, ...], queries: Queries, keys: Keys, places_XC: jax.Array) -> jax.Array:
    return _attend_forward(bands, queries, keys, places_XC)[0]


def _attend_forward(
    bands: tuple[Band, ...], queries: Queries, keys: Keys, places_XC: jax.Array
) -> tuple[jax.Array, _Attended]:
    def of_chunk(keys: Keys, chunk: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        s_QS = _masked_scores(*chunk, keys)
        max_Q = s_QS.max(-1)
        p_QS = jnp.exp(s_QS - max_Q[:, None])
        sum_Q = p_QS.sum(-1)
        dtype = keys.values_PSH.dtype
        # The division waits until after the product, where there are H numbers a row, not S.
        out_QH = p_QS.astype(dtype) @ keys.values_PSH
        return out_QH / sum_Q[:, None].astype(dtype), max_Q + jnp.log(sum_Q)

    def of_pair(queries: Queries, keys: Keys) -> tuple[jax.Array, ...]:
        parts = [
            jax.lax.map(
                functools.partial(of_chunk, Keys(*(x[: band.keys] for x in keys))),
                tuple(x[band.start : band.stop] for x in (*queries, places_XC)),
            )
            for band in bands
        ]
        return tuple(jnp.concatenate(arrays) for arrays in zip(*parts, strict=True))

    out_PXQH, lse_PXQ = (checkpoint_name(x, ATTENTION_RESIDUALS) for x in _for_each_pair(of_pair, queries, keys))
    return out_PXQH, _Attended(queries, keys, places_XC, out_PXQH, lse_PXQ)


def _attend_backward(bands: tuple[Band, ...], attended: _Attended, dout_PXQH: jax.Array) -> tuple[Queries, Keys, None]:
    queries, keys, places_XC = attended.queries, attended.keys, attended.places_XC
    dtype = keys.keys_PSH.dtype
    # rowsum(p · dp) of the softmax's gradient, without p: it equals rowsum(dO · O).
    delta_PXQ = (dout_PXQH.astype(jnp.float32) * attended.out_PXQH).sum(-1)

    def pull(
        keys: Keys, grads: tuple[jax.Array, jax.Array], chunk: _PulledChunk
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        dk_HS, dv_HS = grads
        # The probabilities once more, from the scores and the log-sum-exp that was kept: they were never stored.
        s_QS = _masked_scores(chunk.rows_QH, chunk.segment_ids_C, chunk.places_C, keys)
        p_QS = jnp.exp(s_QS - chunk.lse_Q[:, None])
        dp_QS = _einsum("qh,sh->qs", chunk.dout_QH, keys.values_PSH)
        ds_QS = (p_QS * (dp_QS - chunk.delta_Q[:, None])).astype(dtype)
        # The other way round XLA's CPU backend would copy the scores transposed.
        dk_HS += _einsum("qh,qs->hs", chunk.rows_QH, ds_QS)
        dv_HS += _einsum("qh,qs->hs", chunk.dout_QH, p_QS.astype(dtype))
        return (dk_HS, dv_HS), _einsum("qs,sh->qh", ds_QS, keys.keys_PSH).astype(dtype)

    def of_pair(
        queries: Queries, keys: Keys, dout_XQH: jax.Array, lse_XQ: jax.Array, delta_XQ: jax.Array
    ) -> tuple[jax.Array, ...]:
        # Float32, and cast at the end: every chunk of queries adds to them.
        dk_HS, dv_HS = (jnp.zeros(x.T.shape, jnp.float32) for x in keys[:2])
        dqs = []
        for band in bands:
            seen = (dk_HS[:, : band.keys], dv_HS[:, : band.keys])
            of_queries = (*queries, places_XC, dout_XQH, lse_XQ, delta_XQ)
            chunks = _PulledChunk(*(x[band.start : band.stop] for x in of_queries))
            pull_band = functools.partial(pull, Keys(*(x[: band.keys] for x in keys)))
            (seen_dk, seen_dv), dq_XQH = jax.lax.scan(pull_band, seen, chunks)
            dk_HS = dk_HS.at[:, : band.keys].set(seen_dk)
            dv_HS = dv_HS.at[:, : band.keys].set(seen_dv)
            dqs.append(dq_XQH)
        return jnp.concatenate(dqs), dk_HS.T.astype(dtype), dv_HS.T.astype(dtype)

    dq_PXQH, dk_PSH, dv_PSH = _for_each_pair(of_pair, queries, keys, dout_PXQH, attended.lse_PXQ, delta_PXQ)
    return Queries(dq_PXQH, None), Keys(dk_PSH, dv_PSH, None), None  # type: ignore[arg-type]


_attend.defvjp(_attend_forward, _attend_backward)
