"""Keys and values in pages: fixed pieces of memory that sequences of any length are made of, and may share.

Dimensions: D shards of the batch · N pages of a shard, of B tokens each · R rows (shard by shard) · M rows of keys,
each read by R / M rows that follow each other · Q queries a row · S keys · others as in `qwen3`.

Token p of a sequence lies in page `table[p // B]`, at place p % B. A computation over new tokens of some rows goes
layer by layer (`rows_of`): `begin` it, `put` each new token's keys and values, `attend`, and `end` it, which returns
the pages.

    WindowRows   on CPU and GPU: the pages of the rows are laid side by side once, when it begins, and the new tokens
                 written once, when it ends: what is computed on is contiguous
    KernelRows   on TPU (`ragged_pages`): a kernel reads the pages where they lie, so that nothing is there twice
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from astra_jax.model.chunked_attention import MASKED
from astra_jax.model.config import ModelConfig
from astra_jax.model.ragged_pages import PAGES_AXES as RAGGED_AXES
from astra_jax.model.ragged_pages import KernelRows, Rows, copy_layer, empty_layer, touched_pages
from astra_jax.model.sharding import TPU_LANES, constrain, platform, spec

_PAGES_AXES = ("batch", "slots", "kv_heads", "head_dim", "head_dim")
_QUERIES_AT_ONCE = 128  # the scores of so many exist at once


class KV(NamedTuple):
    """Keys and values of one layer, each laid out so that attention reads it in place, without a transpose."""

    keys: jax.Array
    """Pages: [D, N, K, H, B]; rows: [M, K, H, S]."""
    values: jax.Array
    """Pages: [D, N, K, B, H]; rows: [M, K, S, H]."""


Pages: TypeAlias = tuple[KV | jax.Array, ...]
"""One per layer; as `ragged_pages` has them on TPU."""


class Histories(NamedTuple):
    """Where the tokens lie that rows go on from. A prefix is whole pages; the row's own pages follow them."""

    prefix_tables_DPn: Rows
    prefix_pages_DP: Rows
    """How many of them there are."""
    own_tables_DRn: Rows
    own_counts_DR: Rows
    """How many tokens lie there already."""

    @property
    def rows_per_prefix(self) -> int:
        """How many rows in turn read a prefix."""
        return int(self.own_counts_DR.shape[1] // self.prefix_pages_DP.shape[1])

    @property
    def tables_DRn(self) -> jax.Array:
        """All pages of each row: those of its prefix, then its own."""
        prefix_DRn = jnp.repeat(self.prefix_tables_DPn, self.rows_per_prefix, axis=1)
        both_DRn = jnp.concatenate([prefix_DRn, self.own_tables_DRn], axis=2)
        count_DR1 = jnp.repeat(self.prefix_pages_DP, self.rows_per_prefix, axis=1)[..., None]
        number_n = jnp.arange(both_DRn.shape[2])
        # The places of a prefix that are not used are left out; what then lacks at the end is any page.
        place_DRn = jnp.where(number_n < count_DR1, number_n, number_n - count_DR1 + prefix_DRn.shape[2])
        return jnp.take_along_axis(both_DRn, place_DRn, axis=2, mode="clip")

    def starts_DR(self, page_tokens: int) -> jax.Array:
        """How many tokens of each row lie in its pages."""
        return jnp.repeat(self.prefix_pages_DP, self.rows_per_prefix, axis=1) * page_tokens + self.own_counts_DR


class Part(NamedTuple):
    """Some of the keys that rows attend, and which of them each query sees."""

    kv: KV
    """Rows: [M, K, H, S] and [M, K, S, H]."""
    seen: jax.Array
    """[M, 1, S] for all queries alike, or [M, Q, S]; one row may stand for all."""


def empty_pages(config: ModelConfig, num_shards: int, num_pages: int, page_tokens: int) -> Pages:
    """Return the pages of every layer; what lies in a page that nobody has written is never read.

    Here alone is decided how they are laid out: whatever is done with them follows from that.
    """
    if platform() == "tpu" and config.head_dim % TPU_LANES == 0:  # the kernel knows no narrower heads
        return tuple(empty_layer(config, num_shards, num_pages, page_tokens) for _ in range(config.num_layers))
    shape = (num_shards, num_pages, config.num_kv_heads)
    keys_shape, values_shape = (*shape, config.head_dim, page_tokens), (*shape, page_tokens, config.head_dim)
    return tuple(
        _pinned(KV(jnp.zeros(keys_shape, config.dtype), jnp.zeros(values_shape, config.dtype)))
        for _ in range(config.num_layers)
    )


def pages_shardings(pages: Pages, mesh: Mesh) -> Any:
    """Return the sharding of each array of the pages (arrays or their shapes), as a tree of the same form."""
    axes = _PAGES_AXES if isinstance(pages[0], KV) else RAGGED_AXES
    return jax.tree.map(lambda _: NamedSharding(mesh, spec(*axes)), pages)


def page_tokens(pages: Pages) -> int:
    """Return how many tokens a page holds."""
    of_layer = pages[0]
    return int(of_layer.values.shape[3] if isinstance(of_layer, KV) else of_layer.shape[2])


class LayerRows(Protocol):
    """Rows of one layer to which new tokens are added, several at once or one after the other."""

    def begin(self, num_tokens: int) -> Any:
        """Return what a loop over so many new tokens carries."""
        ...

    def put(self, kv: Any, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> Any:
        """Add new tokens, which come `step` tokens after the row's start; of each row the first so many count."""
        ...

    def attend(self, kv: Any, q_RQNH: jax.Array, step: jax.Array) -> jax.Array:
        """Return what the queries of the tokens just put attend to, those before each and itself: [R, Q, N, H]."""
        ...

    def end(self, kv: Any, counts_DR: Rows) -> Any:
        """Return the pages with so many new tokens of each row."""
        ...


def rows_of(pages: Pages, tables_DRn: Rows, starts_DR: Rows, histories: Histories | None) -> list[LayerRows]:
    """Return the rows of each layer that begin, or go on from `histories`.

    `tables` name all pages of a row, and `starts` how many tokens lie there.
    """
    return [
        WindowRows(of_layer, tables_DRn, starts_DR, _parts(of_layer, histories))
        if isinstance(of_layer, KV)
        else KernelRows(of_layer, tables_DRn, starts_DR)
        for of_layer in pages
    ]


class WindowRows(NamedTuple):
    """Rows of one layer; a loop over their new tokens carries the keys and values of these."""

    pages: KV
    tables_DRn: Rows
    starts_DR: Rows
    behind: list[Part]
    """What they go on from."""

    def begin(self, num_tokens: int) -> KV:
        """Return what a loop over so many new tokens carries: rows of [K, H, T] and [K, T, H]."""
        _, _, heads, head_dim, _ = self.pages.keys.shape
        num_rows = self.starts_DR.size
        keys = jnp.zeros((num_rows, heads, head_dim, num_tokens), self.pages.keys.dtype)
        values = jnp.zeros((num_rows, heads, num_tokens, head_dim), self.pages.values.dtype)
        return KV(
            constrain(keys, "batch", "kv_heads", "head_dim", "slots"),
            constrain(values, "batch", "kv_heads", "slots", "head_dim"),
        )

    def put(self, kv: KV, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> KV:
        """Add new tokens at column `step`, those that do not count as well: nobody reads them, and none is written."""
        # All rows stand at the same column, so it is one slice.
        return KV(
            jax.lax.dynamic_update_slice_in_dim(kv.keys, k_RTKH.transpose(0, 2, 3, 1), step, 3),
            jax.lax.dynamic_update_slice_in_dim(kv.values, v_RTKH.swapaxes(1, 2), step, 2),
        )

    def attend(self, kv: KV, q_RQNH: jax.Array, step: jax.Array) -> jax.Array:
        """Return what the queries of the tokens just put attend to, those before each and itself: [R, Q, N, H]."""
        queries_Q = step + jnp.arange(q_RQNH.shape[1])
        seen_1QT = (jnp.arange(kv.values.shape[2]) <= queries_Q[:, None])[None]
        return attend(q_RQNH, [*self.behind, Part(kv, seen_1QT)])

    def end(self, kv: KV, counts_DR: Rows) -> KV:
        """Return the pages with so many new tokens of each row."""
        return write(self.pages, kv, self.tables_DRn, self.starts_DR, counts_DR)


def _parts(pages: KV, histories: Histories | None) -> list[Part]:
    """Return what the rows of one layer have behind them: a prefix that several read, and what is each row's own."""
    if histories is None:
        return []
    prefix, own = window(pages, histories.prefix_tables_DPn), window(pages, histories.own_tables_DRn)
    prefix_counts_M = jnp.asarray(histories.prefix_pages_DP).reshape(-1) * pages.values.shape[3]
    own_counts_M = jnp.asarray(histories.own_counts_DR).reshape(-1)
    return [
        Part(prefix, (jnp.arange(prefix.keys.shape[3]) < prefix_counts_M[:, None])[:, None]),
        Part(own, (jnp.arange(own.keys.shape[3]) < own_counts_M[:, None])[:, None]),
    ]


def window(pages: KV, table_Drn: Rows) -> KV:
    """Lay the pages of each row side by side: [D·r, K, H, n·B] and [D·r, K, n·B, H]; a page beyond the last is any."""
    keys, values = (jax.vmap(lambda x, table: x.at[table].get(mode="clip"))(x, table_Drn) for x in pages)
    num_shards, rows, num_pages, heads, head_dim, page_tokens = keys.shape
    shape = (num_shards * rows, heads)
    return KV(
        keys.transpose(0, 1, 3, 4, 2, 5).reshape(*shape, head_dim, num_pages * page_tokens),
        values.transpose(0, 1, 3, 2, 4, 5).reshape(*shape, num_pages * page_tokens, head_dim),
    )


def copy_pages(pages: Pages, from_Dr: Rows, to_Dr: Rows) -> Pages:
    """Copy pages, each before any is written to; one that goes beyond the last page is not copied."""

    def copied(x: jax.Array, start: Rows, end: Rows) -> jax.Array:
        return x.at[end].set(x.at[start].get(mode="clip"), mode="drop")

    return tuple(
        KV(*(jax.vmap(copied)(x, from_Dr, to_Dr) for x in of_layer))
        if isinstance(of_layer, KV)
        else copy_layer(of_layer, from_Dr, to_Dr)
        for of_layer in pages
    )


def write(pages: KV, fresh: KV, table_Drn: Rows, starts_Dr: Rows, counts_Dr: Rows) -> KV:
    """Write the first so many new tokens of rows, [D·r, K, H, T] and [D·r, K, T, H], from a place of each row's on.

    What follows the last of them in its page is overwritten as well: nothing lies there yet.
    """
    num_shards, rows, _ = table_Drn.shape
    num_pages, page_tokens, num_tokens = pages.keys.shape[1], pages.values.shape[3], fresh.values.shape[2]
    # Whole pages: a call writes few pages faster than many tokens.
    page_Drm = touched_pages(table_Drn, starts_Dr, counts_Dr, num_tokens, page_tokens, num_pages)
    touched = page_Drm.shape[2]
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
