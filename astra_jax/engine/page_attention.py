"""Attention of rows to pages: on a CPU by copies, which is the specification, on a GPU by a kernel.

A computation over new tokens of some rows goes layer by layer: `begin` it, `put` each new token's keys and values,
`attend`, and `end` it, which returns the pages.

    WindowRows   CPU and GPU: new tokens are kept beside the pages, and written to them once, at the end
    KernelRows   TPU (`ragged_pages`): each token is written to its page at once, where the kernel finds it

`WindowRows` attends in one of three ways:

    sampling, plain    pages are copied side by side once per call; new tokens are added step by step
    sampling, kernel   a GPU reads pages where they lie (`triton_pages`)
    reading            many new tokens at once, behind pages of any number, block by block

Dimensions as in `kv_pages`; Q queries of a row · T new tokens · Y queries × heads that share a key head.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from astra_jax.engine.kv_pages import KV, PAGES_AXES, ROWS_AXES, Pages, window, write
from astra_jax.engine.ragged_pages import KernelRows, Rows, on_each_shard
from astra_jax.engine.triton_pages import has_kernel, softmax_over_pages
from astra_jax.model.chunked_attention import MASKED
from astra_jax.model.config import DType
from astra_jax.model.sharding import constrain, platform

_QUERIES_AT_ONCE: Final = 64
_SCORES_AT_ONCE: Final = 2**20
"""Number of scores of a block on a CPU: a smaller one is not shared among cores, a larger one leaves their caches."""
_SCORES_AT_ONCE_ELSEWHERE: Final = 2**26
"""Number of scores of a block on other platforms, where a block costs more than its scores."""


class LayerRows(Protocol):
    """Rows of one layer to which new tokens are added, several at once or one after the other."""

    def begin(self, num_tokens: int) -> Any: ...
    def put(self, kv: Any, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> Any: ...
    def attend(self, kv: Any, q_RQNH: jax.Array, step: jax.Array, counts_R: Rows | None = None) -> jax.Array: ...
    def end(self, kv: Any, counts_DR: Rows, attended: jax.Array | None = None) -> Any: ...


def rows_of(pages: Pages, tables_DRn: Rows, starts_DR: Rows, dtype: DType, *, one_by_one: bool) -> list[LayerRows]:
    """Return the rows of each layer, for computing in `dtype`.

    `tables` name all pages of a row, and `starts` the tokens that lie there. New tokens come `one_by_one` or at once.
    """

    def of_windows(of_layer: KV) -> WindowRows:
        page_tokens, head_dim = of_layer.values.shape[3:]
        copied = None
        if one_by_one and not has_kernel(dtype, head_dim, page_tokens):
            kv = window(of_layer, tables_DRn)
            is_behind_RS = jnp.arange(kv.values.shape[2]) < jnp.reshape(starts_DR, (-1, 1))
            copied = Part(kv, is_behind_RS[:, None])
        return WindowRows(of_layer, tables_DRn, starts_DR, copied, one_by_one)

    return [
        of_windows(of_layer) if isinstance(of_layer, KV) else KernelRows(of_layer, tables_DRn, starts_DR)
        for of_layer in pages
    ]


class Part(NamedTuple):
    """Keys and values that rows attend to, and the ones that each query sees."""

    kv: KV
    """Rows: [R, K, H, S] and [R, K, S, H]."""
    seen: jax.Array
    """Mask [R, 1, S] for all queries alike, or [R, Q, S]; one row may stand for all."""


class WindowRows(NamedTuple):
    """Rows of one layer; a loop over their new tokens carries the keys and values of these."""

    pages: KV
    tables_DRn: Rows
    starts_DR: Rows
    copied: Part | None
    """Keys of the pages, laid out once for all steps; None if `attend` reads the pages."""
    one_by_one: bool

    def begin(self, num_tokens: int) -> KV:
        """Return rows of [K, H, T] and [K, T, H], which a loop over `num_tokens` new tokens carries."""
        shape, dtype = (self.starts_DR.size, self.pages.keys.shape[2]), self.pages.keys.dtype
        head_dim = self.pages.values.shape[4]
        kv = KV(jnp.zeros((*shape, head_dim, num_tokens), dtype), jnp.zeros((*shape, num_tokens, head_dim), dtype))
        return jax.tree.map(lambda x: constrain(x, *ROWS_AXES), kv)

    def put(self, kv: KV, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> KV:
        """Add new tokens at column `step`; those that do not count are never seen, and never written to a page."""
        # All rows stand at the same column, so it is one slice.
        keys = jax.lax.dynamic_update_slice_in_dim(kv.keys, k_RTKH.transpose(0, 2, 3, 1), step, 3)
        return KV(keys, jax.lax.dynamic_update_slice_in_dim(kv.values, v_RTKH.swapaxes(1, 2), step, 2))

    def attend(self, kv: KV, q_RQNH: jax.Array, step: jax.Array, counts_R: Rows | None = None) -> jax.Array:
        """Attend from the tokens just put to all tokens before each and itself: [R, Q, N, H].

        The first `counts` queries of a row count, or all; the output of others means nothing.
        """
        queries_Q = step + jnp.arange(q_RQNH.shape[1])
        fresh = Part(kv, (jnp.arange(kv.values.shape[2]) <= queries_Q[:, None])[None])
        if not self.one_by_one:
            return _attend_blocks(q_RQNH, self.pages, self.tables_DRn, self.starts_DR, fresh, counts_R)
        kv_heads = kv.keys.shape[1]
        q_RKYH = _of_key_heads(q_RQNH, kv_heads)
        if self.copied is not None:
            softmax = _with_keys(_over_nothing(q_RKYH), q_RKYH, self.copied)
        else:
            # Axes behind those that are named are whole on every device.
            over_pages = on_each_shard(
                _over_pages, (ROWS_AXES, PAGES_AXES[:3], PAGES_AXES[:2], PAGES_AXES[:2]), ROWS_AXES[:2]
            )
            softmax = over_pages(q_RKYH, self.pages, self.tables_DRn, self.starts_DR)
        seen_RYT = jnp.repeat(fresh.seen, q_RQNH.shape[2] // kv_heads, axis=1)
        return _attended(_with_keys(softmax, q_RKYH, fresh._replace(seen=seen_RYT)), q_RQNH)

    def end(self, kv: KV, counts_DR: Rows, attended: jax.Array | None = None) -> KV:
        """Return the pages with `counts_DR` new tokens of each row; `attended` is read before a page is written."""
        if attended is not None:
            counts_DR = _after(counts_DR, attended, most=kv.values.shape[2])
        return write(self.pages, kv, self.tables_DRn, self.starts_DR, counts_DR)


def _after(counts_DR: Rows, attended: jax.Array, most: int) -> jax.Array:
    """Return the same counts, at most `most`, as values that depend on the rows' attention.

    Without this dependence XLA does not know that pages are read before they are written, and copies all of them: on a
    CPU that took ten times as long as the rest of a turn.
    """
    of_row_R = attended[:, *(0,) * (attended.ndim - 1)]
    # Neither number limits a count, but the compiler cannot tell.
    return jnp.minimum(counts_DR, jnp.where(jnp.isnan(of_row_R), most + 1, most).reshape(counts_DR.shape))


class _Softmax(NamedTuple):
    """A softmax over some of its keys; those over others can be joined to it."""

    max_RKY: jax.Array
    sum_RKY: jax.Array
    """Sum of exponentials, relative to the maximum."""
    out_RKYH: jax.Array
    """Sum of values, each times its exponential."""


def _over_pages(q_RKYH: jax.Array, pages: KV, tables_1Rn: Rows, counts_1R: Rows) -> _Softmax:
    """Attend on one shard to the first `counts` tokens of each of its rows."""
    return _Softmax(*softmax_over_pages(q_RKYH, pages.keys[0], pages.values[0], tables_1Rn[0], counts_1R[0]))


def _attend_blocks(
    q_RQNH: jax.Array, pages: KV, tables_DRn: Rows, starts_DR: Rows, fresh: Part, counts_R: Rows | None
) -> jax.Array:
    """Return one softmax over the first `starts` tokens of each row's pages and those of `fresh`: [R, Q, N, H].

    Every query must see a key of `fresh`. A block of pages is laid side by side at a time, so small that its scores
    stay in a cache. Nothing is computed behind the longest row or the last query that counts, so a call costs the
    tokens that are there.
    """
    rows, num_queries, heads, _ = q_RQNH.shape
    kv_heads, page_tokens = pages.keys.shape[2], pages.values.shape[3]
    shared = heads // kv_heads
    queries = num_queries if num_queries % _QUERIES_AT_ONCE else _QUERIES_AT_ONCE
    most = jnp.max(jnp.full(1, num_queries) if counts_R is None else counts_R)
    num_chunks = 1 if queries == num_queries else -(-most // queries)
    scores_at_once = _SCORES_AT_ONCE if platform() == "cpu" else _SCORES_AT_ONCE_ELSEWHERE
    # A quarter of the longest sequence at most: less than that is computed in vain behind the longest row.
    most_pages = -(-tables_DRn.shape[2] // 4)
    block_pages = min(max(1, scores_at_once // (rows * heads * queries * page_tokens)), most_pages)
    tables_DRn = jnp.pad(jnp.asarray(tables_DRn), ((0, 0), (0, 0), (0, -tables_DRn.shape[2] % block_pages)))
    q_RKYH = _of_key_heads(q_RQNH, kv_heads)

    def over_queries(softmax: _Softmax, keys: Part) -> _Softmax:
        # A loop of the program, not of Python, so that the program does not grow with the queries.
        def chunk(number: jax.Array, softmax: _Softmax) -> _Softmax:
            def own(x: jax.Array, of_each: int, axis: int) -> jax.Array:
                return jax.lax.dynamic_slice_in_dim(x, number * queries * of_each, queries * of_each, axis)

            seen = keys.seen if keys.seen.shape[1] == 1 else jnp.repeat(own(keys.seen, 1, 1), shared, axis=1)
            so_far = jax.tree.map(lambda x: own(x, shared, 2), softmax)
            return jax.tree.map(
                lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, number * queries * shared, 2),
                softmax,
                _with_keys(so_far, own(q_RKYH, shared, 2), keys._replace(seen=seen)),
            )

        return jax.lax.fori_loop(0, num_chunks, chunk, softmax)

    def block(number: jax.Array, softmax: _Softmax) -> _Softmax:
        tables = jax.lax.dynamic_slice_in_dim(tables_DRn, number * block_pages, block_pages, 2)
        kv = window(pages, tables)
        place_S = number * block_pages * page_tokens + jnp.arange(block_pages * page_tokens)
        return over_queries(softmax, Part(kv, (place_S < jnp.reshape(starts_DR, (-1, 1)))[:, None]))

    num_blocks = -(-jnp.max(jnp.asarray(starts_DR)) // (block_pages * page_tokens))
    softmax = over_queries(jax.lax.fori_loop(0, num_blocks, block, _over_nothing(q_RKYH)), fresh)
    return _attended(softmax, q_RQNH)


def _of_key_heads(q_RQNH: jax.Array, kv_heads: int) -> jax.Array:
    """Scale queries; queries of all heads that share a key head become rows of one product: [R, K, Y, H]."""
    rows, num_queries, heads, head_dim = q_RQNH.shape
    return (
        (q_RQNH * head_dim**-0.5)
        .reshape(rows, num_queries, kv_heads, heads // kv_heads, head_dim)
        .transpose(0, 2, 1, 3, 4)
        .reshape(rows, kv_heads, -1, head_dim)
    )


def _over_nothing(q_RKYH: jax.Array) -> _Softmax:
    nothing_RKY = jnp.zeros(q_RKYH.shape[:3], jnp.float32)
    return _Softmax(nothing_RKY + MASKED, nothing_RKY, jnp.zeros(q_RKYH.shape, jnp.float32))


def _attended(softmax: _Softmax, q_RQNH: jax.Array) -> jax.Array:
    """Return the attention of the queries, [R, Q, N, H], from a softmax over all keys that they see."""
    rows, num_queries, _, head_dim = q_RQNH.shape
    # The largest exponential of a query is 1: only for padding the sum is less.
    out_RKYH = (softmax.out_RKYH / jnp.maximum(softmax.sum_RKY, 1)[..., None]).astype(q_RQNH.dtype)
    out_RKQXH = out_RKYH.reshape(rows, out_RKYH.shape[1], num_queries, -1, head_dim)
    return out_RKQXH.swapaxes(1, 2).reshape(q_RQNH.shape)


def _with_keys(softmax: _Softmax, q_RKYH: jax.Array, keys: Part) -> _Softmax:
    """Join the softmax over more keys to one over others."""
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores_RKYS = jnp.where(keys.seen[:, None], einsum("rkyh,rkhs->rkys", q_RKYH, keys.kv.keys), MASKED)
    max_RKY = jnp.maximum(softmax.max_RKY, scores_RKYS.max(-1))
    # Keys that no query sees, before the first that one sees, have exponentials of 1; the next step multiplies by 0.
    before_RKY, p_RKYS = jnp.exp(softmax.max_RKY - max_RKY), jnp.exp(scores_RKYS - max_RKY[..., None])
    values = keys.kv.values
    added_RKYH = einsum("rkys,rksh->rkyh", p_RKYS.astype(values.dtype), values)
    return _Softmax(
        max_RKY,
        softmax.sum_RKY * before_RKY + p_RKYS.sum(-1),
        softmax.out_RKYH * before_RKY[..., None] + added_RKYH,
    )
