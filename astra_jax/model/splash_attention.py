"""Attention on TPU: jax's splash attention kernel (Pallas) over a sequence in balanced order."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as kernel_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as mask_lib,
)
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from astra_jax.model.context_parallel import balanced_order, to_natural_order
from astra_jax.model.remat import ATTENTION_RESIDUALS
from astra_jax.model.sharding import LOGICAL_TO_MESH, TPU_LANES, platform, spec


class BalancedCausalMask(mask_lib.Mask):
    """Query row i, which stands at `order[i]` of the sequence, sees the keys up to there; never materialised.

    The kernel computes the mask of the blocks on the diagonal from `q_sequence` and `mask_function`; the blocks that
    are asked for here only tell it which are empty, which are full.
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


def block_tokens(tokens: int, shards: int, *, most: int = 1024) -> tuple[int, int]:
    """Return queries and keys per kernel block: at most `most`, at least 128, no block of queries across two pieces.

    Raises:
        ValueError: a piece of the sequence is not a multiple of 128 tokens.

    >>> block_tokens(81_920, 16), block_tokens(4_096, 1)
    ((512, 1024), (1024, 1024))
    """
    pieces = 2 * shards if shards > 1 else 1
    queries = math.gcd(tokens // pieces, most)
    if tokens % pieces or queries < TPU_LANES:
        needed = pieces * TPU_LANES
        raise ValueError(f"attention over {shards} context shards needs a multiple of {needed} tokens, found {tokens}")
    return queries, math.gcd(tokens, most)


def visited_blocks(tokens: int, shards: int) -> np.ndarray:
    """Count the blocks that each context shard's kernel computes, for one head of one sequence: the mask has no others.

    >>> visited_blocks(16_384, 2).tolist()
    [68, 68]
    """
    queries, keys = block_tokens(tokens, shards)
    last_seen = BalancedCausalMask(tokens, shards).q_sequence.reshape(-1, queries).max(axis=1)
    return (last_seen // keys + 1).reshape(shards, -1).sum(axis=1)


def kernel_flops(kernel_name: str, tokens: int, shards: int, heads: int, head_dim: int) -> float:
    """Return the FLOPs of one splash kernel call for one sequence, on the busiest shard, of `heads` query heads."""
    block_flops = products_per_block(kernel_name) * 2 * math.prod(block_tokens(tokens, shards)) * head_dim
    return float(block_flops * heads * visited_blocks(tokens, shards).max())


def products_per_block(kernel_name: str) -> int:
    """Return how many products of queries, keys and head width a kernel makes of one block."""
    # Forward: q·k, p·v. dq: q·k, dO·v, ds·k. dk and dv: q·k, dO·v, ds·q, p·dO.
    products = {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}
    return next(count for prefix, count in products.items() if kernel_name.startswith(prefix))


def block_sizes(queries: int, keys: int) -> kernel_lib.BlockSizes:
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


def _kernel(tokens: int, heads: int, context: int, tensor: int) -> kernel_lib.SplashAttentionKernel:
    mask = mask_lib.MultiHeadMask([BalancedCausalMask(tokens, context)] * heads)
    return kernel_lib.make_splash_mha(  # the library caches what it works out about the mask
        mask,
        block_sizes=block_sizes(*block_tokens(tokens, context)),
        head_shards=tensor,
        q_seq_shards=context,
        residual_checkpoint_name=ATTENTION_RESIDUALS,
        interpret=platform() == "cpu",  # how the tests run it
    )


def splash_attention(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array, mesh: AbstractMesh
) -> jax.Array:
    """Attend as `attention` does, on a mesh of TPUs."""
    context = mesh.shape["context"]
    kernel = _kernel(q_BTNH.shape[1], q_BTNH.shape[2], context, mesh.shape["tensor"])
    mask_sharding = NamedSharding(mesh, PartitionSpec(LOGICAL_TO_MESH["heads"], LOGICAL_TO_MESH["sequence"]))

    def shard(
        kernel: kernel_lib.SplashAttentionKernel,
        q_BTNH: jax.Array,
        k_BTKH: jax.Array,
        v_BTKH: jax.Array,
        q_segment_ids_BT: jax.Array,
    ) -> jax.Array:
        k_BSKH, v_BSKH, kv_segment_ids_BS = k_BTKH, v_BTKH, q_segment_ids_BT
        # The mask knows the balanced order of the queries; of the keys it expects the sequence's own.
        if context > 1:
            k_BSKH, v_BSKH, kv_segment_ids_BS = (
                to_natural_order(jax.lax.all_gather(x, "context", axis=1, tiled=True), context)
                for x in (k_BTKH, v_BTKH, q_segment_ids_BT)
            )
        q_BNTH = (q_BTNH * q_BTNH.shape[-1] ** -0.5).swapaxes(1, 2)
        segments = kernel_lib.SegmentIds(q_segment_ids_BT, kv_segment_ids_BS)
        out_BNTH = jax.vmap(kernel)(q_BNTH, k_BSKH.swapaxes(1, 2), v_BSKH.swapaxes(1, 2), segments)
        return out_BNTH.swapaxes(1, 2)  # type: ignore[union-attr]  # residuals come only when asked for

    heads, kv_heads = (spec("batch", "sequence", axis, "head_dim") for axis in ("heads", "kv_heads"))
    sharded = jax.shard_map(
        shard,
        in_specs=(kernel.manual_sharding_spec(mask_sharding), heads, kv_heads, kv_heads, spec("batch", "sequence")),
        out_specs=heads,
        check_vma=False,
    )
    return sharded(kernel, q_BTNH, k_BTKH, v_BTKH, segment_ids_BT)
