"""Causal, segment-aware, grouped-query attention: one interface, the kernel chosen by what the code will run on.

TPU's kernel runs under a mesh, if only of one device; without a mesh TPUs run the chunked attention.

A query attends a key when both lie in the same segment and the key does not come later in the sequence; where segments
continue another one, their prefix, they attend this too. Padding is a segment of its own, so no row is ever empty and
nothing real attends padding. No backend makes a [T, T] array.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from astra_jax.model.chunked_attention import chunked_attention
from astra_jax.model.context_parallel import balanced_order, to_natural_order
from astra_jax.model.cudnn_attention import cudnn_attention
from astra_jax.model.prefix_attention import prefix_attention
from astra_jax.model.sharding import ambient_mesh, platform, spec


def attention(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    segment_ids_BT: jax.Array,
    prefix_ids_BT: jax.Array | None = None,
) -> jax.Array:
    """Return softmax(q kᵀ / √H) v over the earlier keys of the same segment: [B, T, N, H] in the dtype of q.

    `prefix_ids_BT` names for each token the segment that its own continues, which stands before it in the row and is
    attended as well; its own where that continues none. On TPU every segment then begins at a multiple of
    `TPU_PREFIX_BLOCK` tokens.

    N is a multiple of K: query heads n·N/K … (n+1)·N/K − 1 share key head n, whose keys are read in place. The softmax
    is float32. Under a mesh, batch, sequence and heads stay where `LOGICAL_TO_MESH` puts them; when its `context` axis
    is larger than 1 the sequence is in balanced order (`context_parallel.balance`).
    """
    mesh = ambient_mesh()
    if mesh is None:
        return _whole_sequences(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT)
    if platform() == "tpu":
        # Both pull in Pallas, which only TPUs need.
        from astra_jax.model.splash_attention import splash_attention
        from astra_jax.model.splash_prefix_attention import splash_prefix_attention

        if prefix_ids_BT is None:
            return splash_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, mesh)
        return splash_prefix_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT, mesh)
    context = mesh.shape["context"]

    def shard(
        q_BTNH: jax.Array,
        k_BTKH: jax.Array,
        v_BTKH: jax.Array,
        segment_ids_BT: jax.Array,
        prefix_ids_BT: jax.Array | None,
    ) -> jax.Array:
        if context == 1:
            return _whole_sequences(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT)
        # Gathered keys are put back in order, so that the kernel's bands of keys mean what they say; queries stay where
        # they are and bring along the places that they have in the sequence.
        k_BSKH, v_BSKH, segment_ids_BS = (
            to_natural_order(jax.lax.all_gather(x, "context", axis=1, tiled=True), context)
            for x in (k_BTKH, v_BTKH, segment_ids_BT)
        )
        order_XT = jnp.asarray(balanced_order(k_BSKH.shape[1], context)).reshape(context, -1)
        order_T = order_XT[jax.lax.axis_index("context")]
        if prefix_ids_BT is not None:
            return prefix_attention(q_BTNH, k_BSKH, v_BSKH, segment_ids_BT, prefix_ids_BT, segment_ids_BS, order_T)
        return chunked_attention(q_BTNH, k_BSKH, v_BSKH, segment_ids_BT, segment_ids_BS, order_T)

    heads, kv_heads = (spec("batch", "sequence", axis, "head_dim") for axis in ("heads", "kv_heads"))
    segments = spec("batch", "sequence")
    in_specs = (heads, kv_heads, kv_heads, segments, segments)
    sharded = jax.shard_map(shard, in_specs=in_specs, out_specs=heads, check_vma=False)
    return sharded(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT)


def _whole_sequences(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    segment_ids_BT: jax.Array,
    prefix_ids_BT: jax.Array | None,
) -> jax.Array:
    if prefix_ids_BT is not None:
        places_T = jnp.arange(q_BTNH.shape[1])
        return prefix_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT, segment_ids_BT, places_T)
    if platform() == "gpu":
        return cudnn_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT)
    return chunked_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, segment_ids_BT)
