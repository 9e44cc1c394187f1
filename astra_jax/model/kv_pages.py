"""Keys and values in pages: fixed pieces of memory that sequences of any length are made of, and may share.

Dimensions: D shards of the batch · N pages of a shard, of B tokens each · R rows (shard by shard) · M rows of keys,
each read by R / M rows that follow each other · Q queries a row · S keys · others as in `qwen3`.

Token p of a sequence lies in page `table[p // B]`, at place p % B. A computation over several tokens first lays the
pages of its rows side by side (`window`), reads those, and writes its own keys and values when it ends (`write`): so
the pages are read and written once, and what is computed on is contiguous.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from astra_jax.model.chunked_attention import MASKED
from astra_jax.model.config import ModelConfig
from astra_jax.model.sharding import constrain, spec

_PAGES_AXES = ("batch", "slots", "kv_heads", "head_dim", "head_dim")
_QUERIES_AT_ONCE = 128  # the scores of so many exist at once


Rows = jax.Array | np.ndarray
"""Of the host where a program is called, traced inside."""


class KV(NamedTuple):
    """Keys and values of one layer, each laid out so that attention reads it in place, without a transpose."""

    keys: jax.Array
    """Pages: [D, N, K, H, B]; rows: [M, K, H, S]."""
    values: jax.Array
    """Pages: [D, N, K, B, H]; rows: [M, K, S, H]."""


class Part(NamedTuple):
    """Some of the keys that rows attend, and which of them each query sees."""

    kv: KV
    """Rows: [M, K, H, S] and [M, K, S, H]."""
    seen: jax.Array
    """[M, 1, S] for all queries alike, or [M, Q, S]; one row may stand for all."""


def empty_pages(config: ModelConfig, num_shards: int, num_pages: int, page_tokens: int) -> tuple[KV, ...]:
    """Return the pages of every layer; what lies in a page that nobody has written is never read."""
    shape = (num_shards, num_pages, config.num_kv_heads)
    keys_shape, values_shape = (*shape, config.head_dim, page_tokens), (*shape, page_tokens, config.head_dim)
    return tuple(
        _pinned(KV(jnp.zeros(keys_shape, config.dtype), jnp.zeros(values_shape, config.dtype)))
        for _ in range(config.num_layers)
    )


def pages_shardings(pages: tuple[KV, ...], mesh: Mesh) -> Any:
    """Return the sharding of each array of the pages (arrays or their shapes), as a tree of the same form."""
    return jax.tree.map(lambda _: NamedSharding(mesh, spec(*_PAGES_AXES)), pages)


def window(pages: KV, table_Drn: Rows) -> KV:
    """Lay the pages of each row side by side: [D·r, K, H, n·B] and [D·r, K, n·B, H]; a page beyond the last is any."""
    keys, values = (jax.vmap(lambda x, table: x.at[table].get(mode="clip"))(x, table_Drn) for x in pages)
    num_shards, rows, num_pages, heads, head_dim, page_tokens = keys.shape
    shape = (num_shards * rows, heads)
    return KV(
        keys.transpose(0, 1, 3, 4, 2, 5).reshape(*shape, head_dim, num_pages * page_tokens),
        values.transpose(0, 1, 3, 2, 4, 5).reshape(*shape, num_pages * page_tokens, head_dim),
    )


def copy_pages(pages: tuple[KV, ...], from_Dr: Rows, to_Dr: Rows) -> tuple[KV, ...]:
    """Copy pages, each before any is written to; one that goes beyond the last page is not copied."""

    def copied(x: jax.Array, start: Rows, end: Rows) -> jax.Array:
        return x.at[end].set(x.at[start].get(mode="clip"), mode="drop")

    return jax.tree.map(lambda x: jax.vmap(copied)(x, from_Dr, to_Dr), pages)


def write(pages: KV, fresh: KV, table_Drn: Rows, starts_Dr: Rows, counts_Dr: Rows) -> KV:
    """Write the first so many new tokens of rows, [D·r, K, H, T] and [D·r, K, T, H], from a place of each row's on.

    What follows the last of them in its page is overwritten as well: nothing lies there yet.
    """
    num_shards, rows, most = table_Drn.shape
    page_tokens, num_tokens = pages.values.shape[3], fresh.values.shape[2]
    # As many whole pages as they may touch: a call writes few pages faster than many tokens.
    touched = -(-(page_tokens - 1 + num_tokens) // page_tokens)
    numbers_Drm = starts_Dr[..., None] // page_tokens + jnp.arange(touched)
    page_Drm = jnp.take_along_axis(table_Drn, jnp.minimum(numbers_Drm, most - 1), axis=2)
    is_written_Drm = numbers_Drm * page_tokens < (starts_Dr + counts_Dr)[..., None]
    page_Drm = jnp.where(is_written_Drm & (counts_Dr > 0)[..., None], page_Drm, pages.keys.shape[1])
    places_R = (starts_Dr % page_tokens).reshape(-1)
    before = window(pages, page_Drm)
    zero = jnp.int32(0)

    def put(x: jax.Array, new: jax.Array, place: Rows, axis: int) -> jax.Array:
        start = tuple(place if i == axis else zero for i in range(x.ndim))
        return jax.lax.dynamic_update_slice(x, new, start)

    after = KV(
        jax.vmap(functools.partial(put, axis=2))(before.keys, fresh.keys, places_R),
        jax.vmap(functools.partial(put, axis=1))(before.values, fresh.values, places_R),
    )
    heads, head_dim = after.keys.shape[1:3]
    shape = (num_shards, rows, heads)
    paged = KV(
        after.keys.reshape(*shape, head_dim, touched, page_tokens).transpose(0, 1, 4, 2, 3, 5),
        after.values.reshape(*shape, touched, page_tokens, head_dim).transpose(0, 1, 3, 2, 4, 5),
    )
    written = jax.vmap(lambda x, page, new: x.at[page].set(new, mode="drop"))
    return _pinned(KV(*(written(x, page_Drm, new) for x, new in zip(pages, paged, strict=True))))


def attend(q_RQNH: jax.Array, parts: Sequence[Part]) -> jax.Array:
    """Return one softmax over the keys of all parts: [R, Q, N, H]. Every query must see a key of some part."""
    num_queries = q_RQNH.shape[1]
    if num_queries <= _QUERIES_AT_ONCE or num_queries % _QUERIES_AT_ONCE:
        return _attend(q_RQNH, parts)

    # A scan, not a loop of Python: the program must not grow with the queries.
    def chunk(first: jax.Array) -> jax.Array:
        def own(x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(x, first, _QUERIES_AT_ONCE, 1)

        of_chunk = [part._replace(seen=part.seen if part.seen.shape[1] == 1 else own(part.seen)) for part in parts]
        return _attend(own(q_RQNH), of_chunk)

    chunks = jax.lax.map(chunk, jnp.arange(0, num_queries, _QUERIES_AT_ONCE))
    return chunks.swapaxes(0, 1).reshape(q_RQNH.shape)


def _attend(q_RQNH: jax.Array, parts: Sequence[Part]) -> jax.Array:
    rows, num_queries, heads, head_dim = q_RQNH.shape
    kv_heads = parts[0].kv.keys.shape[1]
    shared = heads // kv_heads
    # The queries of all heads that share a key head are rows of one product with it.
    q_RKXH = (
        (q_RQNH * head_dim**-0.5)
        .reshape(rows, num_queries, kv_heads, shared, head_dim)
        .transpose(0, 2, 3, 1, 4)
        .reshape(rows, kv_heads, shared * num_queries, head_dim)
    )
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = []
    for kv, seen_MQS in parts:
        s_MKYS = einsum("mkyh,mkhs->mkys", _together(q_RKXH, len(kv.keys)), kv.keys)
        if seen_MQS.shape[1] > 1:
            seen_MQS = jnp.tile(seen_MQS, (1, shared, 1))
        scores.append(jnp.where(seen_MQS[:, None], s_MKYS, MASKED))
    # One maximum for all parts, so that their exponentials add up to one softmax.
    max_RKX = functools.reduce(jnp.maximum, (_apart(s_MKYS.max(-1), rows) for s_MKYS in scores))
    sum_RKX, out_RKXH = jnp.zeros_like(max_RKX), jnp.zeros((*max_RKX.shape, head_dim), jnp.float32)
    for part, s_MKYS in zip(parts, scores, strict=True):
        p_MKYS = jnp.exp(s_MKYS - _together(max_RKX, len(s_MKYS))[..., None])
        sum_RKX += _apart(p_MKYS.sum(-1), rows)
        values = part.kv.values
        out_RKXH += _apart(einsum("mkys,mksh->mkyh", p_MKYS.astype(values.dtype), values), rows)
    out_RKXH = (out_RKXH / sum_RKX[..., None]).astype(q_RQNH.dtype)
    return (
        out_RKXH.reshape(rows, kv_heads, shared, num_queries, head_dim).transpose(0, 3, 1, 2, 4).reshape(q_RQNH.shape)
    )


def _together(x_RKX: jax.Array, rows: int) -> jax.Array:
    """Put the queries of all rows that read the same keys into one row: [R, K, X, …] → [M, K, (R / M) · X, …]."""
    split = x_RKX.reshape(rows, -1, *x_RKX.shape[1:]).swapaxes(1, 2)
    return split.reshape(rows, x_RKX.shape[1], -1, *x_RKX.shape[3:])


def _apart(x_MKY: jax.Array, rows: int) -> jax.Array:
    """Undo `_together`."""
    sharing = rows // len(x_MKY)
    split = x_MKY.reshape(*x_MKY.shape[:2], sharing, -1, *x_MKY.shape[3:]).swapaxes(1, 2)
    return split.reshape(rows, x_MKY.shape[1], -1, *x_MKY.shape[3:])


def _pinned(pages: KV) -> KV:
    return KV(*(constrain(x, *_PAGES_AXES) for x in pages))
