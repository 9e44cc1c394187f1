"""Token embeddings looked up in a table that is split over the mesh, without gathering the table."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from astra_jax.model.sharding import LOGICAL_TO_MESH, ambient_mesh, spec


def embed_tokens(table_VD: jax.Array, tokens_BT: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Return the rows [B, T, D] of the table, in `dtype`.

    Under a mesh each device looks up its slice of the width for the tokens of all devices that hold another slice, and
    they exchange slices for tokens: the data sent is as large as the result, not as the table.
    """
    if ambient_mesh() is None:
        return table_VD[tokens_BT].astype(dtype)
    vocab_axis, width_axes = LOGICAL_TO_MESH["vocab"], LOGICAL_TO_MESH["embed"]

    def shard(table_VD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
        tokens_N = jax.lax.all_gather(tokens_BT.reshape(-1), width_axes, axis=0, tiled=True)
        row_N = tokens_N - jax.lax.axis_index(vocab_axis) * len(table_VD)
        # One device along the vocabulary has the row; the others add zeros.
        is_here_N = (row_N >= 0) & (row_N < len(table_VD))
        rows_ND = table_VD[jnp.where(is_here_N, row_N, 0)].astype(dtype)
        rows_ND = jax.lax.psum(jnp.where(is_here_N[:, None], rows_ND, 0), vocab_axis)
        # Each device gives away the tokens of the others, and gets the other slices of the width of its own.
        x_ND = jax.lax.all_to_all(rows_ND, width_axes, split_axis=0, concat_axis=1, tiled=True)
        return x_ND.reshape(*tokens_BT.shape, -1)

    sharded = jax.shard_map(
        shard,
        in_specs=(spec("vocab", "embed"), spec("batch", "sequence")),
        out_specs=spec("batch", "sequence", "hidden"),
        check_vma=False,
    )
    return sharded(table_VD, tokens_BT)
