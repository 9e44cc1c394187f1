"""Attention in plain XLA over blocks of queries and keys (arXiv 2205.14135, appendix B).

A block of queries visits the blocks of keys that one of its queries sees, and no others (`visible_blocks`): the number
of visits is data, not a shape. No array holds the scores of more than one block.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from astra_jax.model.remat import ATTENTION_RESIDUALS
from astra_jax.model.sharding import platform
from astra_jax.model.visible_blocks import visible_blocks

MASKED = -1e30
"""The score of a key that a query must not attend to: finite, so that a masked row is not NaN, and zero after exp."""

_BLOCK_TOKENS = (256, 192, 128)
# Scores at once: 1 MiB of float32, which a CPU core's cache holds; 256 MiB, which keep an accelerator busy.
_MAX_SCORES_ON_CPU, _MAX_SCORES = 2**18, 2**26


class Heads(NamedTuple):
    """Queries and keys of each group P of K key heads in one row: X chunks of queries and Y blocks of S keys.

    A chunk of C queries has Q = C · N/K rows for each key head, head-major.
    """

    queries_PXKQH: jax.Array
    keys_PYKSH: jax.Array
    values_PYKSH: jax.Array


class Visits(NamedTuple):
    """The keys that the queries of each group see."""

    segment_ids_PXC: jax.Array
    prefix_ids_PXC: jax.Array
    places_PXC: jax.Array
    kv_segment_ids_PYS: jax.Array
    blocks_PXY: jax.Array
    """Numbers of the blocks of keys; the ones that a chunk visits come first."""
    counts_PX: jax.Array
    """Blocks that a chunk visits."""


def chunked_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    segment_ids_BT: jax.Array,
    prefix_ids_BT: jax.Array,
    kv_segment_ids_BS: jax.Array,
    places_T: jax.Array,
) -> jax.Array:
    """Return the attention of each query to its prefix and to the earlier keys of its own segment: [B, T, N, H].

    Queries stand at `places_T` of the keys' sequence; keys are in sequence order. A query of padding sees padding.
    """
    batch, tokens, heads, head_dim = q_BTNH.shape
    kv_heads = k_BSKH.shape[2]
    shared = heads // kv_heads
    queries, keys = block_tokens(tokens), block_tokens(k_BSKH.shape[1])
    most = (_MAX_SCORES_ON_CPU if platform() == "cpu" else _MAX_SCORES) // (queries * shared * keys)
    at_once = next(n for n in range(min(max(most, 1), kv_heads), 0, -1) if kv_heads % n == 0)
    groups = kv_heads // at_once

    def blocks_of_heads(x_BSKH: jax.Array) -> jax.Array:
        x_BYSKH = _cut(x_BSKH, keys)
        x = x_BYSKH.reshape(*x_BYSKH.shape[:3], groups, at_once, head_dim).transpose(0, 3, 1, 4, 2, 5)
        return x.reshape(batch * groups, *x.shape[2:])

    # The query heads of one key head become rows of one product, so that no key is repeated for them.
    rows_BXCNH = _cut(q_BTNH * head_dim**-0.5, queries)
    rows = rows_BXCNH.reshape(*rows_BXCNH.shape[:3], groups, at_once, shared, head_dim).transpose(0, 3, 1, 4, 5, 2, 6)
    heads_P = Heads(
        rows.reshape(batch * groups, -1, at_once, shared * queries, head_dim),
        blocks_of_heads(k_BSKH),
        blocks_of_heads(v_BSKH),
    )
    ids_BXC, prefixes_BXC = _cut(segment_ids_BT, queries), _cut(prefix_ids_BT, queries)
    places_BXC = jnp.broadcast_to(_cut(places_T[None], queries), ids_BXC.shape)
    # Keys that fill up the last block belong to no segment.
    kv_ids_BYS = _cut(kv_segment_ids_BS, keys, nothing=-1)
    is_visited_BXY = jax.vmap(functools.partial(visible_blocks, queries=queries, keys=keys))(
        *(x.reshape(batch, -1) for x in (ids_BXC, prefixes_BXC, places_BXC, kv_ids_BYS))
    )
    blocks_BXY = jnp.argsort(~is_visited_BXY, axis=-1, stable=True)
    visits = Visits(ids_BXC, prefixes_BXC, places_BXC, kv_ids_BYS, blocks_BXY, is_visited_BXY.sum(-1))
    out_PXKQH = _attend(heads_P, jax.tree.map(lambda x_B: jnp.repeat(x_B, groups, axis=0), visits))
    out = out_PXKQH.reshape(batch, groups, -1, at_once, shared, queries, head_dim).transpose(0, 2, 5, 1, 3, 4, 6)
    return out.reshape(batch, -1, heads, head_dim)[:, :tokens]


def block_tokens(tokens: int) -> int:
    """Return the tokens of a block: the largest size that divides the sequence, else 256 or the whole sequence.

    >>> block_tokens(1_280), block_tokens(1_152), block_tokens(640), block_tokens(300), block_tokens(64)
    (256, 192, 128, 256, 64)
    """
    return next((size for size in _BLOCK_TOKENS if tokens % size == 0), min(_BLOCK_TOKENS[0], tokens))


def _cut(x_BT: jax.Array, size: int, *, nothing: int = 0) -> jax.Array:
    """Cut [B, T, …] into pieces [B, T / size, size, …], and fill up the last one."""
    padding = [(0, 0), (0, -x_BT.shape[1] % size), *[(0, 0)] * (x_BT.ndim - 2)]
    return jnp.pad(x_BT, padding, constant_values=nothing).reshape(len(x_BT), -1, size, *x_BT.shape[2:])


_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _masked_scores(
    rows_KQH: jax.Array, keys_KSH: jax.Array, of_chunk: Visits, kv_segment_ids_S: jax.Array, block: jax.Array
) -> jax.Array:
    """Return the float32 scores [K, Q, S] of one chunk of queries and one block of keys."""
    places_S = block * len(kv_segment_ids_S) + jnp.arange(len(kv_segment_ids_S))
    is_reachable_CS = (of_chunk.segment_ids_PXC[:, None] == kv_segment_ids_S) | (
        of_chunk.prefix_ids_PXC[:, None] == kv_segment_ids_S
    )
    mask_CS = is_reachable_CS & (of_chunk.places_PXC[:, None] >= places_S)
    mask_QS = jnp.tile(mask_CS, (rows_KQH.shape[1] // len(mask_CS), 1))
    return jnp.where(mask_QS, _einsum("kqh,ksh->kqs", rows_KQH, keys_KSH), MASKED)


def _by_chunk(visits: Visits) -> Visits:
    """Return a group's visits without its keys' ids: all arrays then begin with X, over which a loop goes."""
    return visits._replace(kv_segment_ids_PYS=None)  # type: ignore[arg-type]


@jax.custom_vjp
def _attend(heads: Heads, visits: Visits) -> jax.Array:
    return _attend_forward(heads, visits)[0]


def _attend_forward(heads: Heads, visits: Visits) -> tuple[jax.Array, tuple]:
    """Return the output; beside its arguments, the backward pass gets it and each query's log-sum-exp of scores."""

    def of_group(group: tuple[Heads, Visits]) -> tuple[jax.Array, jax.Array]:
        (queries_XKQH, keys_YKSH, values_YKSH), visits = group

        def of_chunk(chunk: tuple[jax.Array, Visits]) -> tuple[jax.Array, jax.Array]:
            rows_KQH, of_chunk = chunk

            def visit(i: jax.Array, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                max_KQ, sum_KQ, out_KQH = so_far
                y = of_chunk.blocks_PXY[i]
                s_KQS = _masked_scores(rows_KQH, keys_YKSH[y], of_chunk, visits.kv_segment_ids_PYS[y], y)
                # Sums under the old maximum are rescaled to the new one.
                new_max_KQ = jnp.maximum(max_KQ, s_KQS.max(-1))
                rescale_KQ = jnp.exp(max_KQ - new_max_KQ)
                p_KQS = jnp.exp(s_KQS - new_max_KQ[..., None])
                out_KQH *= rescale_KQ[..., None]
                out_KQH += _einsum("kqs,ksh->kqh", p_KQS.astype(values_YKSH.dtype), values_YKSH[y])
                return new_max_KQ, sum_KQ * rescale_KQ + p_KQS.sum(-1), out_KQH

            zeros_KQ = jnp.zeros(rows_KQH.shape[:2], jnp.float32)
            nothing = (zeros_KQ + MASKED, zeros_KQ, jnp.zeros(rows_KQH.shape, jnp.float32))
            max_KQ, sum_KQ, out_KQH = jax.lax.fori_loop(0, of_chunk.counts_PX, visit, nothing)
            return (out_KQH / sum_KQ[..., None]).astype(rows_KQH.dtype), max_KQ + jnp.log(sum_KQ)

        return jax.lax.map(of_chunk, (queries_XKQH, _by_chunk(visits)))

    out_PXKQH, lse_PXKQ = (checkpoint_name(x, ATTENTION_RESIDUALS) for x in jax.lax.map(of_group, (heads, visits)))
    return out_PXKQH, (heads, visits, out_PXKQH, lse_PXKQ)


def _attend_backward(attended: tuple, dout_PXKQH: jax.Array) -> tuple[Heads, None]:
    heads, visits, out_PXKQH, lse_PXKQ = attended
    dtype = heads.keys_PYKSH.dtype
    # rowsum(p · dp) of the softmax's gradient, without p: it equals rowsum(dO · O).
    delta_PXKQ = (dout_PXKQH.astype(jnp.float32) * out_PXKQH).sum(-1)

    def of_group(group: tuple) -> Heads:
        (queries_XKQH, keys_YKSH, values_YKSH), visits, *of_chunks = group

        def of_chunk(grads: Any, chunk: tuple) -> tuple[Any, jax.Array]:
            rows_KQH, of_chunk, dout_KQH, lse_KQ, delta_KQ = chunk

            def visit(i: jax.Array, grads: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                dq_KQH, dk_YKHS, dv_YKHS = grads
                y = of_chunk.blocks_PXY[i]
                # The probabilities once more, from the scores and the log-sum-exp: they were never stored.
                s_KQS = _masked_scores(rows_KQH, keys_YKSH[y], of_chunk, visits.kv_segment_ids_PYS[y], y)
                p_KQS = jnp.exp(s_KQS - lse_KQ[..., None])
                dp_KQS = _einsum("kqh,ksh->kqs", dout_KQH, values_YKSH[y])
                ds_KQS = (p_KQS * (dp_KQS - delta_KQ[..., None])).astype(dtype)
                dq_KQH += _einsum("kqs,ksh->kqh", ds_KQS, keys_YKSH[y])
                # The other way round XLA's CPU backend would copy the scores transposed.
                dk_YKHS = dk_YKHS.at[y].add(_einsum("kqh,kqs->khs", rows_KQH, ds_KQS))
                return dq_KQH, dk_YKHS, dv_YKHS.at[y].add(_einsum("kqh,kqs->khs", dout_KQH, p_KQS.astype(dtype)))

            zeros_KQH = jnp.zeros(rows_KQH.shape, jnp.float32)
            dq_KQH, *grads = jax.lax.fori_loop(0, of_chunk.counts_PX, visit, (zeros_KQH, *grads))
            return tuple(grads), dq_KQH.astype(dtype)

        # Float32, and cast at the end: every chunk of queries adds to them.
        zeros_YKHS = jnp.zeros(keys_YKSH.swapaxes(-1, -2).shape, jnp.float32)
        grads, dq_XKQH = jax.lax.scan(of_chunk, (zeros_YKHS, zeros_YKHS), (queries_XKQH, _by_chunk(visits), *of_chunks))
        return Heads(dq_XKQH, *(x_YKHS.swapaxes(-1, -2).astype(dtype) for x_YKHS in grads))

    return jax.lax.map(of_group, (heads, visits, dout_PXKQH, lse_PXKQ, delta_PXKQ)), None


_attend.defvjp(_attend_forward, _attend_backward)
