"""Causal, segment-aware, grouped-query attention: one interface, a kernel for each platform.

    TPU   `splash_attention`, under a mesh, if only of one device
    GPU   cuDNN for 16-bit rows, by `jax.nn` if all are of one segment, else by `packed_attention`; else as a CPU
    CPU   `chunked_attention`

A query attends to a key if both lie in the same segment and the key does not come later in the sequence. If its segment
continues another one, its prefix, the query attends to this too. Padding is a segment of its own: no query of a row is
without keys, and no real token attends to padding. No backend makes a [T, T] array.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from astra_jax.model.chunked_attention import chunked_attention
from astra_jax.model.context_parallel import balanced_order, to_natural_order
from astra_jax.model.packed_attention import fits_packed_layout, has_packed_layout, packed_attention
from astra_jax.model.sharding import ambient_mesh, platform, spec


def attention(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    segment_ids_BT: jax.Array,
    prefix_ids_BT: jax.Array | None = None,
) -> jax.Array:
    """Return softmax(q kᵀ / √H) v over the earlier keys of the same segment: [B, T, N, H] in the dtype of q.

    `prefix_ids_BT` names for each token the segment that its own segment continues; its own, if it continues none. The
    prefix stands before the token in the row, which attends to it as well. On TPU every segment then begins at a
    multiple of `TPU_PREFIX_BLOCK` tokens. The output at padding (segment 0) is finite and means nothing.

    N is a multiple of K: query heads n·N/K … (n+1)·N/K − 1 share key head n, whose keys are read in place. The softmax
    is float32. Under a mesh, batch, sequence and heads stay where `LOGICAL_TO_MESH` puts them; if its `context` axis
    is larger than 1 the sequence is in balanced order (`context_parallel.balance`).
    """
    mesh = ambient_mesh()
    if mesh is None:
        return _whole_sequences(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT)
    if platform() == "tpu":
        from astra_jax.model.splash_attention import splash_attention  # Pallas, which only TPUs need

        return splash_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT, mesh)
    context = mesh.shape["context"]

    def shard(*arrays: Any) -> jax.Array:
        if context == 1:
            return _whole_sequences(*arrays)
        q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT = arrays
        # Gathered keys are put back in order; queries stay, and bring along the places that they have in the sequence.
        k_BSKH, v_BSKH, segment_ids_BS = (
            to_natural_order(jax.lax.all_gather(x, "context", axis=1, tiled=True), context)
            for x in (k_BTKH, v_BTKH, segment_ids_BT)
        )
        order_XT = jnp.asarray(balanced_order(k_BSKH.shape[1], context)).reshape(context, -1)
        prefix_ids_BT = segment_ids_BT if prefix_ids_BT is None else prefix_ids_BT
        places_T = order_XT[jax.lax.axis_index("context")]
        return chunked_attention(q_BTNH, k_BSKH, v_BSKH, segment_ids_BT, prefix_ids_BT, segment_ids_BS, places_T)

    heads, kv_heads = (spec("batch", "sequence", axis, "head_dim") for axis in ("heads", "kv_heads"))
    segments = spec("batch", "sequence")
    in_specs = (heads, kv_heads, kv_heads, segments, segments)
    sharded = jax.shard_map(shard, in_specs=in_specs, out_specs=heads, check_vma=False)
    return sharded(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT)


def _whole_sequences(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array, prefix_ids_BT: jax.Array | None
) -> jax.Array:
    # cuDNN computes 16-bit floats, in heads whose width is a multiple of 8 and at most 128.
    fits_cudnn = q_BTNH.dtype in (jnp.bfloat16, jnp.float16) and q_BTNH.shape[-1] in range(8, 129, 8)
    arrays = (q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT)
    if platform() != "gpu" or not fits_cudnn:
        return _plain(*arrays)
    if prefix_ids_BT is not None:
        return _recomputed(*arrays) if has_packed_layout() else _plain(*arrays)

    def cudnn(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, *_: Any) -> jax.Array:
        return jax.nn.dot_product_attention(q_BTNH, k_BTKH, v_BTKH, is_causal=True, implementation="cudnn")

    # Only the data says whether rows are packed, so all ways are compiled and the batch chooses at run time.
    return jax.lax.cond(is_one_segment_each(segment_ids_BT), cudnn, _recomputed, *arrays)


def _plain(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array, prefix_ids_BT: jax.Array | None
) -> jax.Array:
    prefix_ids_BT = segment_ids_BT if prefix_ids_BT is None else prefix_ids_BT
    places_T = jnp.arange(q_BTNH.shape[1])
    return chunked_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT, segment_ids_BT, places_T)


def _of_segments(*arrays: Any) -> jax.Array:
    if not has_packed_layout():
        return _plain(*arrays)
    *_, segment_ids_BT, prefix_ids_BT = arrays
    return jax.lax.cond(fits_packed_layout(segment_ids_BT, prefix_ids_BT), packed_attention, _plain, *arrays)


# Each branch makes room for all that the others keep for the backward pass: so the rarer ones keep their inputs alone.
@jax.custom_vjp
def _recomputed(*arrays: Any) -> jax.Array:
    return _of_segments(*arrays)


def _recomputed_forward(*arrays: Any) -> tuple[jax.Array, tuple[Any, ...]]:
    return _recomputed(*arrays), arrays


def _recomputed_backward(arrays: tuple[Any, ...], dout_BTNH: jax.Array) -> tuple[jax.Array | None, ...]:
    qkv, ids = arrays[:3], arrays[3:]
    _, pull = jax.vjp(lambda *qkv: _of_segments(*qkv, *ids), *qkv)
    return *pull(dout_BTNH), None, None


_recomputed.defvjp(_recomputed_forward, _recomputed_backward)


def is_one_segment_each(segment_ids_BT: jax.Array) -> jax.Array:
    """Say whether the segment of every row changes at most once, and then to padding.

    Plain causal attention is then right for every real token.
    """
    before, after = segment_ids_BT[:, :-1], segment_ids_BT[:, 1:]
    return jnp.all((before == after) | (after == 0))
