"""The kernel of a GPU: attention of one new token per row to pages where they lie.

It is written with Pallas and its Triton backend, and copies no page.

Dimensions as in `kv_pages`; R rows · Y queries × heads of a row that share a key head · C parts of a sequence, so that
few sequences keep the whole GPU busy.

Decided: docs/decisions/rl.md, “Attention reads pages in place, on TPU by JAX's kernel, on a GPU by our own”.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from astra_jax.model.chunked_attention import MASKED
from astra_jax.model.sharding import platform

_LEAST_QUERIES: Final = 16
"""Least number of rows of one product of matrices: tensor cores take no fewer."""
_PROGRAMS: Final = 4096
"""Programs of a grid, at least: 30 for each multiprocessor of an H100, so that none is idle for long at the end."""
_MOST_PARTS: Final = 32
_WARPS: Final = 2
_STAGES: Final = 2
"""Pages in flight: the next page arrives while one is computed on. An H200 took 0.53 ms with two, 0.66 ms with four."""


def has_kernel(dtype: Any, head_dim: int, page_tokens: int) -> bool:
    """Say whether the kernel reads such pages on this platform: numbers of 16 bits on a GPU."""
    return (
        platform() == "gpu"
        and jnp.dtype(dtype).itemsize == 2
        and all(size >= 16 and size & (size - 1) == 0 for size in (head_dim, page_tokens))
    )


def softmax_over_pages(
    q_RKYH: jax.Array,
    keys_NKHB: jax.Array,
    values_NKBH: jax.Array,
    tables_Rn: jax.Array,
    counts_R: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return maximum [R, K, Y], sum [R, K, Y] and values [R, K, Y, H] of a softmax over the first `counts` tokens.

    Queries come scaled. Exponentials are relative to the maximum, and values are not divided by their sum, so that it
    can be joined with one over other keys.
    """
    from jax.experimental import pallas as pl  # which only GPUs and TPUs need
    from jax.experimental.pallas import triton

    sequences, kv_heads, queries, head_dim = q_RKYH.shape
    page_tokens = values_NKBH.shape[2]
    rows = max(_LEAST_QUERIES, pl.next_power_of_2(queries))
    parts = min(_MOST_PARTS, pl.next_power_of_2(-(-_PROGRAMS // (sequences * kv_heads))))
    q_RKYH = jnp.pad(q_RKYH, ((0, 0), (0, 0), (0, rows - queries), (0, 0)))
    whole = [keys_NKHB, values_NKBH, tables_Rn, counts_R]

    def kernel(
        q_ref: Any, keys: Any, values: Any, tables: Any, counts: Any, max_ref: Any, sum_ref: Any, out_ref: Any
    ) -> None:
        sequence, head = pl.program_id(0), pl.program_id(1)
        count = counts[sequence]
        num_pages = (count + page_tokens - 1) // page_tokens
        of_part = (num_pages + parts - 1) // parts
        first = pl.program_id(2) * of_part
        q = q_ref[...]

        def add_page(number: jax.Array, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            before, total, out = so_far
            page = tables[sequence, number]
            scores = triton.dot(q, keys[page, head].astype(q.dtype))
            is_seen = number * page_tokens + jnp.arange(page_tokens) < count
            scores = jnp.where(is_seen[None, :], scores, MASKED)
            largest = jnp.maximum(before, scores.max(1))
            shrunk, weights = jnp.exp(before - largest), jnp.exp(scores - largest[:, None])
            total = total * shrunk + weights.sum(1)
            added = triton.dot(weights.astype(q.dtype), values[page, head].astype(q.dtype))
            return largest, total, out * shrunk[:, None] + added

        nothing = jnp.zeros(rows, jnp.float32)
        softmax = (nothing + MASKED, nothing, jnp.zeros((rows, head_dim), jnp.float32))
        softmax = jax.lax.fori_loop(first, jnp.minimum(first + of_part, num_pages), add_page, softmax)
        is_asked = jnp.arange(rows) < queries  # padding costs no time of memory
        triton.store(max_ref.at[...], softmax[0], mask=is_asked)
        triton.store(sum_ref.at[...], softmax[1], mask=is_asked)
        triton.store(out_ref.at[...], softmax[2], mask=jnp.broadcast_to(is_asked[:, None], (rows, head_dim)))

    def of_program(*block: int) -> Any:
        return pl.BlockSpec((None, None, None, *block), lambda r, k, c: (c, r, k, *(0,) * len(block)))

    shape = (parts, sequences, kv_heads, rows)
    max_CRKY, sum_CRKY, out_CRKYH = (
        x[:, :, :, :queries]
        for x in pl.pallas_call(
            kernel,
            grid=(sequences, kv_heads, parts),
            in_specs=[
                pl.BlockSpec((None, None, rows, head_dim), lambda r, k, c: (r, k, 0, 0)),
                *(pl.BlockSpec(x.shape, lambda m, k, c, axes=x.ndim: (0,) * axes) for x in whole),
            ],
            out_specs=[of_program(rows), of_program(rows), of_program(rows, head_dim)],
            out_shape=[jax.ShapeDtypeStruct(s, jnp.float32) for s in (shape, shape, (*shape, head_dim))],
            compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
            interpret=platform() == "cpu",  # how the tests run it
            name="softmax_over_pages",
        )(q_RKYH, *whole)
    )
    max_RKY = max_CRKY.max(0)
    weights_CRKY = jnp.exp(max_CRKY - max_RKY)
    return max_RKY, (sum_CRKY * weights_CRKY).sum(0), (out_CRKYH * weights_CRKY[..., None]).sum(0)
