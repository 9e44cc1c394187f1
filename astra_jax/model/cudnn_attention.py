"""Attention on a GPU: cuDNN's fused kernel where it computes what is asked, the chunked one where it does not.

The kernel is causal and knows no segments. When a row is one segment followed only by padding, that is right for
every real token. Its packed layout is of no use to grouped queries: jax 0.10 multiplies the offsets of the keys by
the number of query heads (jax pull request 39521), so what it attends is wrong, and nothing says so.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from astra_jax.model.chunked_attention import chunked_attention


def is_supported(dtype: jnp.dtype, head_dim: int) -> bool:
    """Say whether cuDNN's kernel supports this dtype and head width: 16-bit floats, a multiple of 8, at most 128.

    >>> is_supported(jnp.bfloat16, 128), is_supported(jnp.float32, 128)
    (True, False)
    """
    return jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16) and head_dim % 8 == 0 and head_dim <= 128


def cudnn_attention(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
    """Attend over whole sequences, as `attention` does; the output at padding (segment 0) is unspecified."""
    if not is_supported(q_BTNH.dtype, q_BTNH.shape[-1]):
        return chunked_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, segment_ids_BT)
    # Only the data says whether rows are packed, so both kernels are compiled and the batch chooses at run time.
    return jax.lax.cond(
        _one_segment_each(segment_ids_BT),
        lambda q, k, v, _: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn"),
        _recomputed_chunked_attention,
        *(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT),
    )


def _one_segment_each(segment_ids_BT: jax.Array) -> jax.Array:
    """Whether the segment of every row changes at most once, and then to padding."""
    before, after = segment_ids_BT[:, :-1], segment_ids_BT[:, 1:]
    return jnp.all((before == after) | (after == 0))


# Each branch must make room for all that the other keeps for its backward pass: so the rarer keeps its inputs alone.
@jax.custom_vjp
def _recomputed_chunked_attention(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array
) -> jax.Array:
    return chunked_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, segment_ids_BT)


def _forward(*arrays: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _recomputed_chunked_attention(*arrays), arrays


def _backward(arrays: tuple[jax.Array, ...], dout_BTNH: jax.Array) -> tuple[jax.Array | None, ...]:
    *qkv, segment_ids_BT = arrays
    _, pull = jax.vjp(lambda q, k, v: chunked_attention(q, k, v, segment_ids_BT, segment_ids_BT), *qkv)
    return *pull(dout_BTNH), None


_recomputed_chunked_attention.defvjp(_forward, _backward)
