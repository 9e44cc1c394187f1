"""Rows of one layer to which new tokens are added, over pages of any layout.

A computation over new tokens of some rows goes layer by layer: `begin` it, `put` each new token's keys and values,
`attend`, and `end` it, which returns the pages.

    WindowRows   CPU and GPU: the new tokens are kept beside the pages, and written to them once, at the end
    KernelRows   TPU (`ragged_pages`): a kernel reads and writes the pages where they lie

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
        """Return what a loop over so many new tokens carries."""
        ...

    def put(self, kv: Any, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> Any:
        """Add new tokens, which come `step` tokens after the row's start; of each row the first so many count."""
        ...

    def attend(self, kv: Any, q_RQNH: jax.Array, step: jax.Array, counts_R: Rows | None = None) -> jax.Array:
        """Return what the queries of the tokens just put attend to, those before each and itself: [R, Q, N, H].

        Of a row's queries the first so many count, or all.
        """
        ...

    def end(self, kv: Any, counts_DR: Rows, attended: jax.Array | None = None) -> Any:
        """Return the pages with so many new tokens of each row; pages are read for `attended` before any is written."""
        ...


def rows_of(
    pages: Pages, tables_DRn: Rows, starts_DR: Rows, histories: Histories | None, dtype: DType
) -> list[LayerRows]:
    """Return the rows of each layer, which are computed with as `dtype`.

    `tables` name all pages of a row, and `starts` how many tokens lie there. If tokens are added one after the other,
    `histories` say the same, prefixes apart; if all are added at once, there are none.
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
    """The keys that rows go on from; None if `attend` lays them side by side block by block."""

    def begin(self, num_tokens: int) -> KV:
        """Return rows of [K, H, T] and [K, T, H], which a loop over so many new tokens carries."""
        shape, dtype = (self.starts_DR.size, self.pages.keys.shape[2]), self.pages.keys.dtype
        head_dim = self.pages.values.shape[4]
        kv = KV(jnp.zeros((*shape, head_dim, num_tokens), dtype), jnp.zeros((*shape, num_tokens, head_dim), dtype))
        return jax.tree.map(lambda x: constrain(x, *ROWS_AXES), kv)

    def put(self, kv: KV, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> KV:
        """Add new tokens at column `step`, those that do not count as well: nobody reads them, and none is written."""
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
        if attended is not None:
            counts_DR = _after(counts_DR, attended, most=kv.values.shape[2])
        return write(self.pages, kv, self.tables_DRn, self.starts_DR, counts_DR)


def _after(counts_DR: Rows, attended: jax.Array, most: int) -> jax.Array:
    """Return the same counts, which are at most so many, but cannot be known before what rows attended to.

    Where it hangs on nothing whether pages are first read or first written to, XLA copies all of them: on a CPU that
    cost a turn of a conversation ten times as much as the rest of its reading.
    """
    of_row_R = attended[:, *(0,) * (attended.ndim - 1)]
    # Either way it is no limit, and no compiler can tell.
    return jnp.minimum(counts_DR, jnp.where(jnp.isnan(of_row_R), most + 1, most).reshape(counts_DR.shape))
