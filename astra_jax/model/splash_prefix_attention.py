"""Attention on TPU over rows in which responses share a prompt: splash's kernel, told block by block what to visit.

The kernel compares one id of each query and key. Here it is that of the prompt, which all responses share: of these the
blocks of others must not be visited at all. So every segment begins with a block, at a multiple of `TPU_PREFIX_BLOCK`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as kernel_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask_info as mask_info_lib,
)
from jax.sharding import AbstractMesh

from astra_jax.model.context_parallel import to_natural_order
from astra_jax.model.remat import ATTENTION_RESIDUALS
from astra_jax.model.sharding import TPU_PREFIX_BLOCK, platform, spec
from astra_jax.model.splash_attention import BalancedCausalMask, block_sizes, block_tokens, products_per_block
from astra_jax.model.visible_blocks import visible_blocks


def _sizes(tokens: int, shards: int) -> tuple[int, int]:
    return block_tokens(tokens, shards, most=TPU_PREFIX_BLOCK)


def visited_prefix_blocks(segment_ids_T: np.ndarray, prefix_ids_T: np.ndarray, shards: int) -> np.ndarray:
    """Count the blocks that each context shard's kernel computes, for one head of one row, given in its own order.

    >>> alone = np.ones(16_384, np.int32)
    >>> visited_prefix_blocks(alone, alone, 2).tolist()
    [264, 264]
    """
    queries, keys = _sizes(len(segment_ids_T), shards)
    order = BalancedCausalMask(len(segment_ids_T), shards).q_sequence
    visits_XY = visible_blocks(
        segment_ids_T[order], prefix_ids_T[order], order, segment_ids_T, queries=queries, keys=keys
    )
    return visits_XY.sum(axis=1).reshape(shards, -1).sum(axis=1)


def prefix_kernel_flops(
    kernel_name: str, segment_ids_T: np.ndarray, prefix_ids_T: np.ndarray, shards: int, heads: int, head_dim: int
) -> float:
    """Return the FLOPs of one kernel call for one row, on the busiest shard, of `heads` query heads."""
    block_flops = products_per_block(kernel_name) * 2 * math.prod(_sizes(len(segment_ids_T), shards)) * head_dim
    return float(block_flops * heads * visited_prefix_blocks(segment_ids_T, prefix_ids_T, shards).max())


def splash_prefix_attention(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    segment_ids_BT: jax.Array,
    prefix_ids_BT: jax.Array,
    mesh: AbstractMesh,
) -> jax.Array:
    """Attend as `attention` does where there are prefixes, on a mesh of TPUs."""
    context, tokens = mesh.shape["context"], q_BTNH.shape[1]
    queries, keys = _sizes(tokens, context)

    # The kernel knows the places of queries; of the keys it expects the sequence's own order.
    def of_all_shards(x_BT: jax.Array) -> jax.Array:
        if context == 1:
            return x_BT
        return to_natural_order(jax.lax.all_gather(x_BT, "context", axis=1, tiled=True), context)

    def shard(
        places_T: jax.Array,
        q_BTNH: jax.Array,
        k_BTKH: jax.Array,
        v_BTKH: jax.Array,
        segment_ids_BT: jax.Array,
        prefix_ids_BT: jax.Array,
    ) -> jax.Array:
        def of_row(row: tuple[jax.Array, ...]) -> jax.Array:
            q_NTH, k_KSH, v_KSH, ids_T, prefix_ids_T, ids_S, prefix_ids_S = row
            visits_XY = visible_blocks(ids_T, prefix_ids_T, places_T, ids_S, queries=queries, keys=keys)
            kernel = _kernel(places_T, visits_XY, block_sizes(queries, keys))
            out_NTH = kernel(q_NTH, k_KSH, v_KSH, kernel_lib.SegmentIds(prefix_ids_T, prefix_ids_S))
            return out_NTH  # type: ignore[return-value]  # residuals come only when asked for

        q_BTNH *= q_BTNH.shape[-1] ** -0.5
        qkv = (x.swapaxes(1, 2) for x in (q_BTNH, of_all_shards(k_BTKH), of_all_shards(v_BTKH)))
        ids = (segment_ids_BT, prefix_ids_BT)
        return jax.lax.map(of_row, (*qkv, *ids, *map(of_all_shards, ids))).swapaxes(1, 2)

    heads, kv_heads = (spec("batch", "sequence", axis, "head_dim") for axis in ("heads", "kv_heads"))
    per_token = spec("batch", "sequence")
    sharded = jax.shard_map(
        shard,
        in_specs=(spec("sequence"), heads, kv_heads, kv_heads, per_token, per_token),
        out_specs=heads,
        check_vma=False,
    )
    places_T = jnp.asarray(BalancedCausalMask(tokens, context).q_sequence)
    return sharded(places_T, q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT)


def _kernel(
    places_T: jax.Array, visits_XY: jax.Array, sizes: kernel_lib.BlockSizes
) -> kernel_lib.SplashAttentionKernel:
    """The kernel of one shard and one row."""

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
        blocks(_next_visited(visits_XY.T).T),  # that of keys goes through the blocks of queries
        block_sizes=sizes,
        is_mqa=False,
        save_residuals=False,
        mask_value=kernel_lib.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=ATTENTION_RESIDUALS,
        mask_function=BalancedCausalMask.mask_function,
        interpret=platform() == "cpu",  # how the tests run it
    )


def _next_visited(visits_XY: jax.Array) -> jax.Array:
    """The block that is visited at each place of a row, or next after it; after the last one, that one again."""
    blocks_Y = jnp.arange(visits_XY.shape[1])
    last_X1 = jnp.where(visits_XY, blocks_Y, 0).max(axis=1, keepdims=True)
    return jax.lax.cummin(jnp.where(visits_XY, blocks_Y, last_X1), axis=1, reverse=True)
