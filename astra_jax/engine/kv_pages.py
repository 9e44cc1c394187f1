"""Keys and values in pages, pieces of memory of a fixed size, which sequences may share.

Dimensions: D shards of the batch · N pages of a shard, of B tokens each · R rows (shard by shard) · S keys · others as
in `model.qwen3`.

A sequence lies in several pages: token p in page `table[p // B]`, at place p % B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding

from astra_jax.engine.ragged_pages import PAGES_AXES as RAGGED_AXES
from astra_jax.engine.ragged_pages import Rows, empty_layer, touched_pages
from astra_jax.model.config import ModelConfig
from astra_jax.model.sharding import TPU_LANES, ambient_mesh, constrain, platform, spec

PAGES_AXES: Final = ("batch", "slots", "kv_heads", "head_dim", "head_dim")
ROWS_AXES: Final = ("batch", "kv_heads", "head_dim", "head_dim")


class KV(NamedTuple):
    """Keys and values of one layer, each laid out so that attention reads it in place, without a transpose."""

    keys: jax.Array
    """Pages: [D, N, K, H, B]; rows: [R, K, H, S]."""
    values: jax.Array
    """Pages: [D, N, K, B, H]; rows: [R, K, S, H]."""


def _of_each(make: Callable[..., jax.Array], *kvs: KV) -> KV:
    """Apply `make` to the keys of several layers, and to their values; its first argument is the axis of tokens."""
    keys, values = zip(*kvs, strict=True)
    return KV(make(-1, *keys), make(-2, *values))


Pages: TypeAlias = tuple[KV | jax.Array, ...]
"""Pages of each layer: a `KV`, or on a TPU one array in the layout of `ragged_pages`."""


def empty_pages(config: ModelConfig, num_shards: int, num_pages: int, page_tokens: int) -> Pages:
    """Return the pages of every layer, all zeros.

    The layout of pages is decided here alone; every function that is given pages follows it.
    """
    if platform() == "tpu" and config.head_dim % TPU_LANES == 0:  # the kernel takes no narrower heads
        return tuple(empty_layer(config, num_shards, num_pages, page_tokens) for _ in range(config.num_layers))
    shape = (num_shards, num_pages, config.num_kv_heads)

    def of_layer() -> KV:
        # Keys are stored transposed and values are not: so attention multiplies with both without a transpose.
        keys = jnp.zeros((*shape, config.head_dim, page_tokens), config.dtype)
        return _pinned(KV(keys, jnp.zeros((*shape, page_tokens, config.head_dim), config.dtype)))

    return tuple(of_layer() for _ in range(config.num_layers))


def pages_shardings(pages: Pages, mesh: Mesh) -> Any:
    """Return the sharding of each array of the pages (arrays or their shapes), as a tree of the same form."""
    axes = PAGES_AXES if isinstance(pages[0], KV) else RAGGED_AXES
    return jax.tree.map(lambda x: NamedSharding(mesh, spec(*axes[: x.ndim])), pages)


def window(pages: KV, table_Drn: Rows) -> KV:
    """Lay the pages of each row side by side: [D·r, K, H, n·B] and [D·r, K, n·B, H].

    A page number beyond the last page gives the content of some page, which the caller must not use.
    """

    def laid(axis: int, x: jax.Array) -> jax.Array:
        of_rows = jax.vmap(lambda of_shard, table: of_shard.at[table].get(mode="clip"))(x, table_Drn)
        num_shards, rows, num_pages, *page = of_rows.shape
        page[axis] *= num_pages
        laid = jnp.moveaxis(of_rows, 2, axis - 1).reshape(num_shards, rows, *page)
        if ambient_mesh() is not None:  # under a mesh the constraint below would gather pages from all devices
            return laid
        # Without it XLA puts heads before rows, and copies everything into this order at the beginning of a loop.
        return with_layout_constraint(laid, Layout(tuple(range(laid.ndim))))

    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), _of_each(laid, pages))


def write(pages: KV, fresh: KV, table_Drn: Rows, starts_Dr: Rows, counts_Dr: Rows) -> KV:
    """Write the first `counts` new tokens of rows, [D·r, K, H, T] and [D·r, K, T, H], from place `starts` on.

    The rest of the last page is overwritten, too: it is empty. Pages beyond the last one are not written.
    """
    num_shards, rows, _ = table_Drn.shape
    num_pages, page_tokens, num_tokens = pages.keys.shape[1], pages.values.shape[3], fresh.values.shape[2]
    # Whole pages are read, changed and written, because a call writes few pages faster than many tokens.
    page_Drm = touched_pages(table_Drn, starts_Dr, counts_Dr, num_tokens, page_tokens, num_pages)
    touched = page_Drm.shape[2]
    places_R = (starts_Dr % page_tokens).reshape(-1)

    def written(axis: int, x: jax.Array, before: jax.Array, new: jax.Array) -> jax.Array:
        def put(of_row: jax.Array, new: jax.Array, place: Rows) -> jax.Array:
            # Tokens are selected, because XLA would write slices at a different place of each row number by number.
            token_S = jnp.arange(of_row.shape[axis]) - place
            is_new_S = (token_S >= 0) & (token_S < num_tokens)
            put_there = jnp.take(new, token_S, of_row.ndim + axis, mode="clip")
            return jnp.where(is_new_S.reshape(-1, *(1,) * (-1 - axis)), put_there, of_row)

        after = jax.vmap(put)(before, new, places_R)
        shape = [num_shards, rows, *after.shape[1:]]
        # Tokens → pages × tokens of a page. `or None`: at axis -1 a slice up to 0 would be empty.
        shape[axis : axis + 1 or None] = [touched, page_tokens]
        paged = jnp.moveaxis(after.reshape(shape), axis - 1, 2)
        return jax.vmap(lambda of_shard, page, new: of_shard.at[page].set(new, mode="drop"))(x, page_Drm, paged)

    return _pinned(_of_each(written, pages, window(pages, page_Drm), fresh))


def _pinned(pages: KV) -> KV:
    return _of_each(lambda _, x: constrain(x, *PAGES_AXES), pages)
