"""Attention on a TPU: JAX's splash kernel, with or without shared prompts.

The kernel is told block by block which keys to visit. Without prefixes the mask is causal and known beforehand. With
prefixes the data says which blocks are visited (`visible_blocks`): the kernel compares one id of each query and key,
here that of the prompt, which all its responses share, so blocks of other responses must not be visited at all. Every
segment therefore begins with a block, at a multiple of `TPU_PREFIX_BLOCK`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel_lib
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask_lib
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as mask_info_lib
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from astra_jax.model.context_parallel import balanced_order, to_natural_order
from astra_jax.model.remat import ATTENTION_RESIDUALS
from astra_jax.model.sharding import LOGICAL_TO_MESH, TPU_LANES, TPU_PREFIX_BLOCK, platform, spec
from astra_jax.model.visible_blocks import visible_blocks


class BalancedCausalMask(mask_lib.Mask):
    """Query row i, which stands at `order[i]` of the sequence, sees the keys up to there; never materialised.

    The kernel computes the mask of the blocks on the diagonal from `q_sequence` and `mask_function`. Blocks that are
    asked for here only tell it which ones are empty and which are full.
    """

    def __init__(self, tokens: int, shards: int) -> None:
        self._key = (tokens, shards)
        self.q_sequence = balanced_order(tokens, shards) if shards > 1 else np.arange(tokens, dtype=np.int32)

    @property
    def shape(self) -> tuple[int, int]:
        return self._key[0], self._key[0]

    @staticmethod
    def mask_function(q_places: jax.Array, kv_places: jax.Array) -> jax.Array:
        return q_places >= kv_places

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        rows, columns = index
        places = self.q_sequence[rows]
        start, stop, _ = columns.indices(self._key[0])
        block = (len(places), stop - start)
        if places.min() >= stop - 1:
            return np.broadcast_to(np.True_, block)
        if places.max() < start:
            return np.broadcast_to(np.False_, block)
        return places[:, None] >= np.arange(start, stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BalancedCausalMask) and self._key == other._key

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key))


def block_tokens(tokens: int, shards: int, *, has_prefixes: bool = False) -> tuple[int, int]:
    """Return queries and keys per kernel block: at least 128, no block of queries across two pieces.

    Raises:
        ValueError: a piece of the sequence is not a multiple of 128 tokens.

    >>> block_tokens(81_920, 16), block_tokens(4_096, 1)
    ((512, 1024), (1024, 1024))
    """
    most, pieces = TPU_PREFIX_BLOCK if has_prefixes else 1024, 2 * shards if shards > 1 else 1
    queries = math.gcd(tokens // pieces, most)
    if tokens % pieces or queries < TPU_LANES:
        needed = pieces * TPU_LANES
        raise ValueError(f"attention over {shards} context shards needs a multiple of {needed} tokens, found {tokens}")
    return queries, math.gcd(tokens, most)


Segments = tuple[np.ndarray, np.ndarray]
"""Segment ids and prefix ids of one row, [T] each, in the row's own order."""


def visited_blocks(tokens: int, shards: int, segments: Segments | None = None) -> np.ndarray:
    """Count the blocks that each context shard's kernel computes, for one head of one row.

    >>> visited_blocks(16_384, 2).tolist()
    [68, 68]
    >>> visited_blocks(16_384, 2, (np.ones(16_384, np.int32),) * 2).tolist()  # the blocks are smaller
    [264, 264]
    """
    order = BalancedCausalMask(tokens, shards).q_sequence
    queries, keys = block_tokens(tokens, shards, has_prefixes=segments is not None)
    if segments is None:
        visits_X = order.reshape(-1, queries).max(axis=1) // keys + 1
    else:
        ids_T, prefix_ids_T = segments
        visits_XY = visible_blocks(ids_T[order], prefix_ids_T[order], order, ids_T, queries=queries, keys=keys)
        visits_X = visits_XY.sum(axis=1)
    return visits_X.reshape(shards, -1).sum(axis=1)


def kernel_flops(
    kernel_name: str, tokens: int, shards: int, heads: int, head_dim: int, segments: Segments | None = None
) -> float:
    """Return the FLOPs of one kernel call for one row, on the busiest shard, of `heads` query heads."""
    # Forward: q·k, p·v. dq: q·k, dO·v, ds·k. dk and dv: q·k, dO·v, ds·q, p·dO.
    products = {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}
    products_per_block = next(count for prefix, count in products.items() if kernel_name.startswith(prefix))
    pairs_per_block = math.prod(block_tokens(tokens, shards, has_prefixes=segments is not None))
    blocks = visited_blocks(tokens, shards, segments).max()
    return float(products_per_block * 2 * pairs_per_block * head_dim * heads * blocks)


def splash_attention(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    segment_ids_BT: jax.Array,
    prefix_ids_BT: jax.Array | None,
    mesh: AbstractMesh,
) -> jax.Array:
    """Attend as `attention` does, on a mesh of TPUs."""
    context, (_, tokens, heads, head_dim) = mesh.shape["context"], q_BTNH.shape
    queries, keys = block_tokens(tokens, context, has_prefixes=prefix_ids_BT is not None)

    def of_all_shards(x_BT: jax.Array) -> jax.Array:
        # The kernel knows the balanced order of the queries; of the keys it expects the sequence's own.
        if context == 1:
            return x_BT
        return to_natural_order(jax.lax.all_gather(x_BT, "context", axis=1, tiled=True), context)

    def heads_first(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array) -> tuple[jax.Array, ...]:
        scaled_BTNH = q_BTNH * head_dim**-0.5
        return tuple(x.swapaxes(1, 2) for x in (scaled_BTNH, of_all_shards(k_BTKH), of_all_shards(v_BTKH)))

    def in_segments(kernel: kernel_lib.SplashAttentionKernel, *arrays: jax.Array) -> jax.Array:
        *qkv, segment_ids_BT = arrays
        segments = kernel_lib.SegmentIds(segment_ids_BT, of_all_shards(segment_ids_BT))
        out_BNTH = jax.vmap(kernel)(*heads_first(*qkv), segments)
        return out_BNTH.swapaxes(1, 2)  # type: ignore[union-attr]  # residuals come only when asked for

    def with_prefixes(places_T: jax.Array, *arrays: jax.Array) -> jax.Array:
        *qkv, segment_ids_BT, prefix_ids_BT = arrays

        def of_row(row: tuple[jax.Array, ...]) -> jax.Array:
            q_NTH, k_KSH, v_KSH, ids_T, prefix_ids_T, ids_S, prefix_ids_S = row
            visits_XY = visible_blocks(ids_T, prefix_ids_T, places_T, ids_S, queries=queries, keys=keys)
            kernel = _visiting_kernel(places_T, visits_XY, queries, keys)
            out_NTH = kernel(q_NTH, k_KSH, v_KSH, kernel_lib.SegmentIds(prefix_ids_T, prefix_ids_S))
            return out_NTH  # type: ignore[return-value]  # residuals come only when asked for

        ids = (segment_ids_BT, prefix_ids_BT)
        return jax.lax.map(of_row, (*heads_first(*qkv), *ids, *map(of_all_shards, ids))).swapaxes(1, 2)

    q_spec, kv_spec = (spec("batch", "sequence", axis, "head_dim") for axis in ("heads", "kv_heads"))

    def on_mesh(compute: Callable[..., jax.Array], first: Any, spec_of_first: Any, *ids: jax.Array) -> jax.Array:
        in_specs = (spec_of_first, q_spec, kv_spec, kv_spec, *[spec("batch", "sequence")] * len(ids))
        sharded = jax.shard_map(compute, in_specs=in_specs, out_specs=q_spec, check_vma=False)
        return sharded(first, q_BTNH, k_BTKH, v_BTKH, *ids)

    if prefix_ids_BT is None:
        kernel = _causal_kernel(tokens, heads, context, mesh.shape["tensor"], queries, keys)
        mask_sharding = NamedSharding(mesh, PartitionSpec(LOGICAL_TO_MESH["heads"], LOGICAL_TO_MESH["sequence"]))
        return on_mesh(in_segments, kernel, kernel.manual_sharding_spec(mask_sharding), segment_ids_BT)
    places_T = jnp.asarray(BalancedCausalMask(tokens, context).q_sequence)
    return on_mesh(with_prefixes, places_T, spec("sequence"), segment_ids_BT, prefix_ids_BT)


def _block_sizes(queries: int, keys: int) -> kernel_lib.BlockSizes:
    """Return the sizes of all blocks of the kernel and of those of its gradients."""
    return kernel_lib.BlockSizes(
        block_q=queries,
        block_kv=keys,
        block_kv_compute=min(keys, 512),
        block_q_dkv=queries,
        block_kv_dkv=keys,
        block_kv_dkv_compute=min(keys, 512),
        # Two backward kernels, not the fused one, whose dq is as large as the number of key blocks times q.
        block_q_dq=queries,
        block_kv_dq=keys,
    )


def _causal_kernel(
    tokens: int, heads: int, context: int, tensor: int, queries: int, keys: int
) -> kernel_lib.SplashAttentionKernel:
    mask = mask_lib.MultiHeadMask([BalancedCausalMask(tokens, context)] * heads)
    return kernel_lib.make_splash_mha(  # the library caches the blocks of the mask
        mask,
        block_sizes=_block_sizes(queries, keys),
        head_shards=tensor,
        q_seq_shards=context,
        residual_checkpoint_name=ATTENTION_RESIDUALS,
        interpret=platform() == "cpu",  # how the tests run it
    )


def _visiting_kernel(
    places_T: jax.Array, visits_XY: jax.Array, queries: int, keys: int
) -> kernel_lib.SplashAttentionKernel:
    """Return the kernel of one shard and one row, which visits the given blocks."""

    def blocks(next_XY: jax.Array) -> mask_info_lib.MaskInfo:
        return mask_info_lib.MaskInfo(
            data_next=next_XY[None].astype(jnp.int16),
            mask_next=None,
            block_mask=visits_XY[None].astype(jnp.int8),
            partial_mask_blocks=None,
            q_sequence=places_T,  # type: ignore[arg-type]  # its own partitions are arrays of devices, too
        )

    of_queries = blocks(_next_visited(visits_XY))
    return kernel_lib.SplashAttentionKernel(
        of_queries,
        of_queries,
        blocks(_next_visited(visits_XY.T).T),  # the kernel of keys goes through the blocks of queries
        block_sizes=_block_sizes(queries, keys),
        is_mqa=False,
        save_residuals=False,
        mask_value=kernel_lib.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=ATTENTION_RESIDUALS,
        mask_function=BalancedCausalMask.mask_function,
        interpret=platform() == "cpu",  # how the tests run it
    )


def _next_visited(visits_XY: jax.Array) -> jax.Array:
    """Return the block that is visited at each place of a row, or next after it; after the last one, that one again."""
    blocks_Y = jnp.arange(visits_XY.shape[1])
    last_X1 = jnp.where(visits_XY, blocks_Y, 0).max(axis=1, keepdims=True)
    return jax.lax.cummin(jnp.where(visits_XY, blocks_Y, last_X1), axis=1, reverse=True)
