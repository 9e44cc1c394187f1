"""Rows of one layer to which new tokens are added, over pages of any layout.

A computation over new tokens of some rows goes layer by layer: `begin` it, `put` each new token's keys and values,
`attend`, and `end` it, which returns the pages.

    WindowRows   CPU and GPU: new tokens are kept beside the pages, and written to them once, at the end
    KernelRows   TPU (`ragged_pages`): each token is written to its page at once, where the kernel finds it

Dimensions as in `kv_pages`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from astra_jax.engine.kv_pages import KV, ROWS_AXES, Histories, Pages, write
from astra_jax.engine.page_attention import InPlace, Part, attend, attend_pages, behind
from astra_jax.engine.ragged_pages import KernelRows, Rows
from astra_jax.model.config import DType
from astra_jax.model.sharding import constrain


class LayerRows(Protocol):
    """Rows of one layer to which new tokens are added, several at once or one after the other."""

    def begin(self, num_tokens: int) -> Any:
        """Return the value that a loop over so many new tokens carries."""
        ...

    def put(self, kv: Any, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> Any:
        """Add new tokens, which come `step` tokens after the row's start; the first `counts` of each row count."""
        ...

    def attend(self, kv: Any, q_RQNH: jax.Array, step: jax.Array, counts_R: Rows | None = None) -> jax.Array:
        """Return the attention of the tokens just put, each to all tokens before it and itself: [R, Q, N, H].

        The first `counts` queries of a row count, or all.
        """
        ...

    def end(self, kv: Any, counts_DR: Rows, attended: jax.Array | None = None) -> Any:
        """Return the pages with so many new tokens of each row; pages are read for `attended` before any is written."""
        ...


def rows_of(
    pages: Pages, tables_DRn: Rows, starts_DR: Rows, histories: Histories | None, dtype: DType
) -> list[LayerRows]:
    """Return the rows of each layer, for computing in `dtype`.

    `tables` name all pages of a row, and `starts` the tokens that lie there. `histories` say the same with prefixes
    apart; None if all new tokens are added at once.
    """
    return [
        WindowRows(of_layer, tables_DRn, starts_DR, None if histories is None else behind(of_layer, histories, dtype))
        if isinstance(of_layer, KV)
        else KernelRows(of_layer, tables_DRn, starts_DR)
        for of_layer in pages
    ]


class WindowRows(NamedTuple):
    """Rows of one layer; a loop over their new tokens carries the keys and values of these."""

    pages: KV
    tables_DRn: Rows
    starts_DR: Rows
    behind: list[Part] | list[InPlace] | None
    """Keys behind the rows, laid out once for all steps; None if `attend` goes through the pages block by block."""

    def begin(self, num_tokens: int) -> KV:
        """Return rows of [K, H, T] and [K, T, H], which a loop over so many new tokens carries."""
        shape, dtype = (self.starts_DR.size, self.pages.keys.shape[2]), self.pages.keys.dtype
        head_dim = self.pages.values.shape[4]
        kv = KV(jnp.zeros((*shape, head_dim, num_tokens), dtype), jnp.zeros((*shape, num_tokens, head_dim), dtype))
        return jax.tree.map(lambda x: constrain(x, *ROWS_AXES), kv)

    def put(self, kv: KV, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> KV:
        """Add new tokens at column `step`; those that do not count are never seen, and never written to a page."""
        # All rows stand at the same column, so it is one slice.
        keys = jax.lax.dynamic_update_slice_in_dim(kv.keys, k_RTKH.transpose(0, 2, 3, 1), step, 3)
        return KV(keys, jax.lax.dynamic_update_slice_in_dim(kv.values, v_RTKH.swapaxes(1, 2), step, 2))

    def attend(self, kv: KV, q_RQNH: jax.Array, step: jax.Array, counts_R: Rows | None = None) -> jax.Array:
        """Attend from the tokens just put to those before each and itself: [R, Q, N, H]."""
        queries_Q = step + jnp.arange(q_RQNH.shape[1])
        fresh = Part(kv, (jnp.arange(kv.values.shape[2]) <= queries_Q[:, None])[None])
        if self.behind is None:
            return attend_pages(q_RQNH, self.pages, self.tables_DRn, self.starts_DR, fresh, counts_R)
        return attend(q_RQNH, self.behind, fresh)

    def end(self, kv: KV, counts_DR: Rows, attended: jax.Array | None = None) -> KV:
        """Return the pages with so many new tokens of each row."""
        if attended is not None:  # a call that reads: pages must be read before they are written
            counts_DR = _after(counts_DR, attended, most=kv.values.shape[2])
        return write(self.pages, kv, self.tables_DRn, self.starts_DR, counts_DR)


def _after(counts_DR: Rows, attended: jax.Array, most: int) -> jax.Array:
    """Return the same counts, at most `most`, as values that depend on the rows' attention.

    Without this dependence XLA does not know that pages are read before they are written, and copies all of them: on a
    CPU that took ten times as long as the rest of a turn.
    """
    of_row_R = attended[:, *(0,) * (attended.ndim - 1)]
    # Neither number limits a count, but the compiler cannot tell.
    return jnp.minimum(counts_DR, jnp.where(jnp.isnan(of_row_R), most + 1, most).reshape(counts_DR.shape))
