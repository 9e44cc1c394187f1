"""Attention to pages on a CPU and a GPU; its plain path is the specification.

The plain path is the specification, and a CPU takes it: pages are copied side by side. On a GPU a kernel reads them
where they lie (`triton_pages`). Either way a softmax over some keys is joined with the softmax over others.

    attend        sampling: keys behind all rows are copied once per call, new ones are added step by step
    attend_pages  reading: many new tokens at once, behind histories of any length, block by block

Dimensions as in `kv_pages`; Q queries of a row · T new tokens · Y queries × heads that share a key head.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from astra_jax.engine.kv_pages import KV, PAGES_AXES, ROWS_AXES, Histories, window
from astra_jax.engine.ragged_pages import Rows, on_each_shard
from astra_jax.engine.triton_pages import has_kernel, softmax_over_pages
from astra_jax.model.chunked_attention import MASKED
from astra_jax.model.config import DType
from astra_jax.model.sharding import platform

_QUERIES_AT_ONCE: Final = 64
_SCORES_AT_ONCE: Final = 2**20
"""Number of scores of a block on a CPU: a smaller one is not shared among cores, a larger one leaves their caches."""
_SCORES_AT_ONCE_ELSEWHERE: Final = 2**26
"""Number of scores of a block on other platforms, where a block costs more than its scores."""


def copies_pages(dtype: DType, head_dim: int, page_tokens: int) -> bool:
    """Say whether tokens are sampled behind copies of pages, so that a call with longer tables costs more."""
    return not has_kernel(dtype, head_dim, page_tokens)


class Part(NamedTuple):
    """Keys and values that rows attend to, and the ones that each query sees."""

    kv: KV
    """Rows: [M, K, H, S] and [M, K, S, H]."""
    seen: jax.Array
    """Mask [M, 1, S] for all queries alike, or [M, Q, S]; one row may stand for all."""


class InPlace(NamedTuple):
    """The first `counts` tokens in the pages of sequences, for a kernel that reads them where they lie."""

    pages: KV
    tables_DMn: Rows
    counts_DM: Rows


def behind(pages: KV, histories: Histories, dtype: DType) -> list[Part] | list[InPlace]:
    """Return the keys behind the rows of one layer: prefixes that several rows read, and each row's own pages."""
    page_tokens, head_dim = pages.values.shape[3:]
    found = [
        InPlace(pages, histories.prefix_tables_DPn, histories.prefix_pages_DP * page_tokens),
        InPlace(pages, histories.own_tables_DRn, histories.own_counts_DR),
    ]
    return [_copied(sequences) for sequences in found] if copies_pages(dtype, head_dim, page_tokens) else found


def _copied(sequences: InPlace) -> Part:
    kv = window(sequences.pages, sequences.tables_DMn)
    return Part(kv, (jnp.arange(kv.values.shape[2]) < jnp.reshape(sequences.counts_DM, (-1, 1)))[:, None])


class _Softmax(NamedTuple):
    """A softmax over some of its keys; those over others can be joined to it."""

    max_RKY: jax.Array
    sum_RKY: jax.Array
    """Sum of exponentials, relative to the maximum."""
    out_RKYH: jax.Array
    """Sum of values, each times its exponential."""


def attend(q_RQNH: jax.Array, behind: list[Part] | list[InPlace], fresh: Part) -> jax.Array:
    """Return one softmax over all keys behind a row and those of `fresh`: [R, Q, N, H].

    Every query must see a key of `fresh`.
    """
    rows, kv_heads = len(q_RQNH), fresh.kv.keys.shape[1]
    q_RKYH = _of_key_heads(q_RQNH, kv_heads)
    seen_RYT = jnp.repeat(fresh.seen, q_RQNH.shape[2] // kv_heads, axis=1)
    softmax = _with_keys(_over_nothing(q_RKYH), q_RKYH, fresh._replace(seen=seen_RYT))
    for sequences in behind:
        num_sequences = sequences.counts_DM.size if isinstance(sequences, InPlace) else len(sequences.seen)
        q_MKYH = _together(q_RKYH, num_sequences)
        if isinstance(sequences, InPlace):
            # Axes behind those that are named are whole on every device.
            over_pages = on_each_shard(
                _over_pages, (ROWS_AXES, PAGES_AXES[:3], PAGES_AXES[:2], PAGES_AXES[:2]), ROWS_AXES[:2]
            )
            of_sequences = over_pages(q_MKYH, *sequences)
        else:
            of_sequences = _with_keys(_over_nothing(q_MKYH), q_MKYH, sequences)
        softmax = _of_both(softmax, _Softmax(*(_apart(x, rows) for x in of_sequences)))
    return _attended(softmax, q_RQNH)


def _over_pages(q_MKYH: jax.Array, pages: KV, tables_1Mn: Rows, counts_1M: Rows) -> _Softmax:
    """Attend on one shard to the first `counts` tokens of each of its sequences."""
    return _Softmax(*softmax_over_pages(q_MKYH, pages.keys[0], pages.values[0], tables_1Mn[0], counts_1M[0]))


def attend_pages(
    q_RQNH: jax.Array, pages: KV, tables_DRn: Rows, starts_DR: Rows, fresh: Part, counts_R: Rows | None = None
) -> jax.Array:
    """Return one softmax over the first `starts` tokens of each row's pages and those of `fresh`: [R, Q, N, H].

    Every query must see a key of `fresh`. The first `counts` queries of a row count, or all; the output of others means
    nothing. A block of pages is laid side by side at a time, so small that its scores stay in a cache. Nothing is
    computed behind the longest row or the last query that counts, so a call costs the tokens that are there.
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


def _of_both(one: _Softmax, other: _Softmax) -> _Softmax:
    """Return the softmax over the keys of either."""
    max_RKY = jnp.maximum(one.max_RKY, other.max_RKY)
    of_one_RKY, of_other_RKY = (jnp.exp(x.max_RKY - max_RKY) for x in (one, other))
    return _Softmax(
        max_RKY,
        one.sum_RKY * of_one_RKY + other.sum_RKY * of_other_RKY,
        one.out_RKYH * of_one_RKY[..., None] + other.out_RKYH * of_other_RKY[..., None],
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
