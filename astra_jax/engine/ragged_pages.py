"""The pages and the kernel of a TPU: JAX's `ragged_paged_attention`.

The kernel reads pages where they lie and copies none.

Dimensions as in `kv_pages`; X = 2K: the keys of a head are followed by its values. A new token is written to its
page before the kernel is called, which then finds all tokens of a row in the pages of one table.

Decided: docs/decisions/rl.md, “Attention reads pages in place, on TPU by JAX's kernel, on a GPU by our own”.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.model.config import ModelConfig
from astra_jax.model.sharding import ambient_mesh, constrain, platform, spec

_T = TypeVar("_T")

PAGES_AXES = ("batch", "slots", "slots", "kv_heads", "head_dim")
Rows: TypeAlias = jax.Array | np.ndarray
"""Integers of rows: the host's outside of a program, traced inside."""

MOVE_TOKENS = "move_tokens"
"""The kernel that writes to pages."""
_BY_ROW = ("batch",)
_BY_HEAD = ("batch", "slots", "heads", "head_dim")

_QUERIES_AT_ONCE = 32  # as the kernel's own table has it for most shapes
_ROWS_AT_ONCE = 8  # the queries of all of them are multiplied with the keys of each
_KEYS_AT_ONCE = 2048
_PAGES_BYTES_AT_ONCE = 2**22  # in a chip's vector memory, twice: the next pages arrive while these are computed on
_VECTOR_MEMORY_BYTES = 2**25  # of 2**26 and more; the compiler's own bound of 2**24 is too small for 32 heads on a chip


def empty_layer(config: ModelConfig, num_shards: int, num_pages: int, page_tokens: int) -> jax.Array:
    """Return the pages of one layer: [D, N, B, X, H]."""
    shape = (num_shards, num_pages, page_tokens, 2 * config.num_kv_heads, config.head_dim)
    return constrain(jnp.zeros(shape, config.dtype), *PAGES_AXES)


class KernelRows(NamedTuple):
    """Rows of one layer; a loop over their new tokens carries the pages, [D, N, B, X, H]."""

    pages: jax.Array
    tables_DRn: Rows
    """All pages of each row."""
    starts_DR: Rows
    """Number of tokens of each row that lie in its pages already."""

    def begin(self, num_tokens: int) -> jax.Array:
        """Return the pages: a loop over new tokens carries them."""
        return self.pages

    def put(self, pages: jax.Array, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> jax.Array:
        """Write the first `counts` new tokens of each row, which come `step` tokens after the row's start."""
        kv_RTXH = jnp.stack([k_RTKH, v_RTKH], 3).reshape(*k_RTKH.shape[:2], -1, k_RTKH.shape[3])
        counts_DR = counts_R.reshape(self.starts_DR.shape)
        write = on_each_shard(
            _write, (PAGES_AXES, ("batch", "slots", "kv_heads", "head_dim"), *(_BY_ROW,) * 3), PAGES_AXES
        )
        return write(pages, kv_RTXH, self.tables_DRn, self.starts_DR + step, counts_DR)

    def attend(self, pages: jax.Array, q_RQNH: jax.Array, step: jax.Array, counts_R: Rows | None = None) -> jax.Array:
        """Return the attention of the tokens just put, each to all tokens before it and itself: [R, Q, N, H]."""
        attend = on_each_shard(_attend, (_BY_HEAD, PAGES_AXES, _BY_ROW, _BY_ROW), _BY_HEAD)
        return attend(q_RQNH, pages, self.tables_DRn, self.starts_DR + step)

    def end(self, pages: jax.Array, counts_DR: Rows, attended: jax.Array | None = None) -> jax.Array:
        """Return the pages, in which the new tokens lie already."""
        return pages


def blocks_of_queries(num_queries: int) -> int:
    """Return the blocks into which the kernel cuts a row's queries: for each it reads all keys anew."""
    return -(-num_queries // _QUERIES_AT_ONCE)


def ragged_flops(rows: int, num_queries: int, tokens: int, heads: int, head_dim: int) -> float:
    """Return the FLOPs of one kernel call: the last `num_queries` of each row and `tokens` keys.

    If rows have few queries, a block holds those of several rows, and all of them are multiplied with the keys of each.
    """
    rows_of_block = min(rows, _ROWS_AT_ONCE, max(1, _QUERIES_AT_ONCE // num_queries))
    return 4.0 * rows * rows_of_block * num_queries * tokens * heads * head_dim


def touched_pages(
    tables_Rn: Rows, starts_R: Rows, counts_R: Rows, num_tokens: int, page_tokens: int, num_pages: int
) -> jax.Array:
    """Return the pages that new tokens of rows are written to, [..., R, m]: as many as `num_tokens` may touch.

    A place without a written page names the page beyond the last one.
    """
    touched = -(-(page_tokens - 1 + num_tokens) // page_tokens)
    numbers_Rm = starts_R[..., None] // page_tokens + jnp.arange(touched)
    page_Rm = jnp.take_along_axis(tables_Rn, jnp.minimum(numbers_Rm, tables_Rn.shape[-1] - 1), axis=-1)
    is_written_Rm = numbers_Rm * page_tokens < (starts_R + counts_R)[..., None]
    return jnp.where(is_written_Rm & (counts_R > 0)[..., None], page_Rm, num_pages)


def on_each_shard(
    compute: Callable[..., _T], in_axes: tuple[tuple[str, ...], ...], out_axes: tuple[str, ...]
) -> Callable[..., _T]:
    """Return `compute` as each shard does it, with its own pages, rows and heads; a table names pages of its shard."""
    if ambient_mesh() is None:
        return compute
    return jax.shard_map(
        compute, in_specs=tuple(spec(*axes) for axes in in_axes), out_specs=spec(*out_axes), check_vma=False
    )


def _write(
    pages_1NBXH: jax.Array, kv_RTXH: jax.Array, tables_1Rn: jax.Array, starts_1R: jax.Array, counts_1R: jax.Array
) -> jax.Array:
    (rows, num_tokens), (num_pages, page_tokens) = kv_RTXH.shape[:2], pages_1NBXH.shape[1:3]
    page_Rm = touched_pages(tables_1Rn[0], starts_1R[0], counts_1R[0], num_tokens, page_tokens, num_pages)
    # The m-th page that a row touches gets its tokens from `first` up to `last`; `begins` may be negative.
    place_R1, counts_R1 = (starts_1R[0] % page_tokens)[:, None], counts_1R[0][:, None]
    begins_Rm = jnp.arange(page_Rm.shape[1]) * page_tokens - place_R1
    first_Rm = jnp.maximum(begins_Rm, 0)
    last_Rm = jnp.clip(begins_Rm + page_tokens, 0, counts_R1)
    from_Rm = jnp.arange(rows)[:, None] * num_tokens + first_Rm
    to_Rm = page_Rm * page_tokens + first_Rm - begins_Rm
    runs = (x.reshape(-1) for x in (from_Rm, to_Rm, jnp.maximum(last_Rm - first_Rm, 0)))
    return _moved(kv_RTXH.reshape(-1, *kv_RTXH.shape[2:]), pages_1NBXH, *runs)


def _moved(
    source_TXH: jax.Array, pages_1NBXH: jax.Array, from_S: jax.Array, to_S: jax.Array, counts_S: jax.Array
) -> jax.Array:
    """Copy runs of tokens of `source`, of at most a page each, into pages in place.

    XLA's own scatter would first copy all pages into another layout.
    """
    from jax.experimental import pallas as pl  # which only TPUs need
    from jax.experimental.pallas import tpu as pltpu

    page_tokens = pages_1NBXH.shape[2]
    pages_TXH = pages_1NBXH.reshape(-1, *pages_1NBXH.shape[3:])

    def kernel(from_S: Any, to_S: Any, counts_S: Any, source: Any, _: Any, pages: Any, semaphore: Any) -> None:
        def for_each_copy(act: Callable[[Any], None]) -> None:
            def run(i: jax.Array, _: None) -> None:
                def copy(first: jax.Array | int, count: int) -> Any:
                    start, end = pl.ds(from_S[i] + first, count), pl.ds(to_S[i] + first, count)
                    return pltpu.make_async_copy(source.at[start], pages.at[end], semaphore)

                # The size of a copy is known beforehand.
                @pl.when(counts_S[i] == page_tokens)
                def _whole_page() -> None:
                    act(copy(0, page_tokens))

                @pl.when(counts_S[i] < page_tokens)
                def _tokens() -> None:
                    jax.lax.fori_loop(0, counts_S[i], lambda token, _: act(copy(token, 1)), None)

            jax.lax.fori_loop(0, from_S.shape[0], run, None)

        for_each_copy(lambda copy: copy.start())
        for_each_copy(lambda copy: copy.wait())

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    moved = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(1,),
            in_specs=[anywhere] * 2,
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct(pages_TXH.shape, pages_TXH.dtype),
        input_output_aliases={4: 0},
        interpret=platform() == "cpu",  # how the tests run it
        name=MOVE_TOKENS,
    )(from_S, to_S, counts_S, source_TXH, pages_TXH)
    return moved.reshape(pages_1NBXH.shape)


def _attend(q_RQNH: jax.Array, pages_1NBXH: jax.Array, tables_1Rn: jax.Array, starts_1R: jax.Array) -> jax.Array:
    from jax.experimental.pallas.ops.tpu import ragged_paged_attention as kernel_lib  # Pallas, which only TPUs need

    rows, num_queries, heads, head_dim = q_RQNH.shape
    _, _, page_tokens, kv_heads, _ = pages_1NBXH.shape
    page_bytes = page_tokens * kv_heads * head_dim * pages_1NBXH.dtype.itemsize
    # The kernel reads a table as far as its last query goes, and those of padding may go beyond the sequence.
    beyond = -(-num_queries // page_tokens)
    tables_Rn = jnp.pad(tables_1Rn[0], ((0, 0), (0, beyond)))
    pages_at_once = max(1, min(_KEYS_AT_ONCE // page_tokens, _PAGES_BYTES_AT_ONCE // page_bytes))
    # The sizes of blocks are given: the kernel would choose them for the device that runs this code, not for the
    # device that it is compiled for.
    out_XNH = kernel_lib.ragged_paged_attention(
        q_RQNH.reshape(rows * num_queries, heads, head_dim),
        pages_1NBXH[0],
        starts_1R[0] + num_queries,
        tables_Rn,
        jnp.arange(rows + 1, dtype=jnp.int32) * num_queries,
        jnp.array([rows], jnp.int32),
        sm_scale=head_dim**-0.5,
        num_kv_pages_per_block=min(pages_at_once, tables_Rn.shape[1]),
        num_queries_per_block=min(_QUERIES_AT_ONCE, num_queries * min(rows, _ROWS_AT_ONCE)),
        vmem_limit_bytes=_VECTOR_MEMORY_BYTES,
    )
    return out_XNH.reshape(q_RQNH.shape)
