"""Attention on a GPU: cuDNN's fused kernel where it computes what is asked, the chunked one where it does not.

The kernel is causal and knows no segments. With one segment a row and nothing but padding behind it, causal is the same
for every real token. Its packed layout is of no use to grouped queries: jax 0.10 multiplies the offsets of the keys by
the number of query heads (jax pull request 39521), so what it attends is wrong, and nothing says so.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from astra_jax.model.chunked_attention import chunked_attention


def kernel_takes(dtype: jnp.dtype, head_dim: int) -> bool:
    """Whether the kernel is made for such numbers: 16 bits, heads of a multiple of 8 and at most 128 wide.

    >>> kernel_takes(jnp.bfloat16, 128), kernel_takes(jnp.float32, 128)
    (True, False)
    """
    return jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16) and head_dim % 8 == 0 and head_dim <= 128


def cudnn_attention(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
    """Attention of whole sequences, as `attention`; what padding (segment 0) attends is left open."""
    if not kernel_takes(q_BTNH.dtype, q_BTNH.shape[-1]):
        return chunked_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, segment_ids_BT)
    return jax.lax.cond(
        _one_segment_each(segment_ids_BT),
        lambda q, k, v, _: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn"),
        lambda q, k, v, segment_ids_BT: chunked_attention(q, k, v, segment_ids_BT, segment_ids_BT),
        *(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT),
    )


def _one_segment_each(segment_ids_BT: jax.Array) -> jax.Array:
    """Whether the segment of every row changes at most once, and then to padding."""
    before, after = segment_ids_BT[:, :-1], segment_ids_BT[:, 1:]
    return jnp.all((before == after) | (after == 0))
