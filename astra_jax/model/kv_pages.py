"""Keys and values in pages: fixed pieces of memory that sequences of any length are made of, and may share.

Dimensions: D shards of the batch · N pages of a shard, of B tokens each · R rows (shard by shard) · M sequences, each
read by R / M rows that follow each other · U stretches of some of their pages · Q queries a row · S keys · others as in
`qwen3`.

Token p of a sequence lies in page `table[p // B]`, at place p % B. A computation over new tokens of some rows goes
layer by layer (`rows_of`): `begin` it, `put` each new token's keys and values, `attend`, and `end` it, which returns
the pages.

    WindowRows   on CPU and GPU: the pages that rows go on from are copied, so that what is computed on is contiguous:
                 all of them once where a loop adds token after token, either side by side, all rows as long as the
                 longest, or one sequence after the other, no more than there are; else a few at a time, side by side;
                 the new tokens are written once, when it ends. Where a GPU has a kernel for it (`triton_pages`), the
                 loop's tokens attend to pages where these lie
    KernelRows   on TPU (`ragged_pages`): a kernel reads the pages where they lie, so that nothing is there twice

Pages may hold int8: then each token's keys of a head, and its values, have a scale of their own, and whoever attends
them gets what was rounded, in the call that adds a token as in all later ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding

from astra_jax.config import ConfigError
from astra_jax.model.chunked_attention import MASKED
from astra_jax.model.config import DType, ModelConfig
from astra_jax.model.ragged_pages import PAGES_AXES as RAGGED_AXES
from astra_jax.model.ragged_pages import (
    KernelRows,
    Rows,
    copy_layer,
    empty_layer,
    layer_at,
    layer_with,
    on_each_shard,
    touched_pages,
)
from astra_jax.model.sharding import TPU_LANES, ambient_mesh, constrain, platform, spec
from astra_jax.model.triton_pages import has_kernel, softmax_over_pages

_PAGES_AXES = ("batch", "slots", "kv_heads", "head_dim", "head_dim")
_ROWS_AXES = ("batch", "kv_heads", "head_dim", "head_dim")
_KEY_NUMBERS_AT_ONCE: Final = 2**12
"""Of a list, for each head: a product of fewer costs more than what it computes."""
_QUERIES_AT_ONCE: Final = 64
_SCORES_AT_ONCE: Final = 2**20
"""Of a block on a CPU: fewer are not shared among its cores, more leave their caches."""
_SCORES_AT_ONCE_ELSEWHERE: Final = 2**26
"""Where each block costs more than its scores."""
_LARGEST_INT8: Final = 127

KVDType: TypeAlias = Literal["int8"]
"""What pages hold in place of numbers of the model's own type."""


class KV(NamedTuple):
    """Keys and values of one layer, each laid out so that attention reads it in place, without a transpose."""

    keys: jax.Array
    """Pages: [D, N, K, H, B]; rows: [M, K, H, S]."""
    values: jax.Array
    """Pages: [D, N, K, B, H]; rows: [M, K, S, H]."""
    key_scales: jax.Array | None = None
    """What the int8 keys of a token are multiplied by, pages: [D, N, K, B], rows: [M, K, S]; none of other types."""
    value_scales: jax.Array | None = None


_TOKEN_AXES: Final = (-1, -2, -1, -1)
"""Which axis of each array of `KV` is that of tokens."""


def _of_each(make: Callable[..., jax.Array], *kvs: KV) -> KV:
    """Return what is made of each array that there is, and of the number of its tokens' axis."""
    made = (None if xs[0] is None else make(axis, *xs) for axis, *xs in zip(_TOKEN_AXES, *kvs, strict=True))
    return KV(*made)  # type: ignore[arg-type]  # keys and values are always there


Pages: TypeAlias = tuple[KV | jax.Array, ...]
"""One per layer; as `ragged_pages` has them on TPU."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Histories:
    """Where the tokens lie that rows go on from. A prefix is whole pages; the row's own pages follow them."""

    prefix_tables_DPn: Rows
    prefix_pages_DP: Rows
    """How many of them there are."""
    own_tables_DRn: Rows
    own_counts_DR: Rows
    """How many tokens lie there already."""
    most_prefix_pages: int | None = field(default=None, metadata={"static": True})
    """Of all prefixes of a shard together, where these are read as one list; none: side by side."""
    most_own_pages: int | None = field(default=None, metadata={"static": True})
    """The same of the pages with the rows' own tokens in them."""

    @property
    def rows_per_prefix(self) -> int:
        """How many rows in turn read a prefix."""
        return int(self.own_counts_DR.shape[1] // self.prefix_pages_DP.shape[1])

    @property
    def tables_DRn(self) -> jax.Array:
        """All pages of each row: those of its prefix, then its own."""
        prefix_DRn = jnp.repeat(self.prefix_tables_DPn, self.rows_per_prefix, axis=1)
        both_DRn = jnp.concatenate([prefix_DRn, self.own_tables_DRn], axis=2)
        count_DR1 = jnp.repeat(self.prefix_pages_DP, self.rows_per_prefix, axis=1)[..., None]
        number_n = jnp.arange(both_DRn.shape[2])
        # The places of a prefix that are not used are left out; what then lacks at the end is any page.
        place_DRn = jnp.where(number_n < count_DR1, number_n, number_n - count_DR1 + prefix_DRn.shape[2])
        return jnp.take_along_axis(both_DRn, place_DRn, axis=2, mode="clip")

    def starts_DR(self, page_tokens: int) -> jax.Array:
        """How many tokens of each row lie in its pages."""
        return jnp.repeat(self.prefix_pages_DP, self.rows_per_prefix, axis=1) * page_tokens + self.own_counts_DR


class Part(NamedTuple):
    """Some of the keys that rows attend, and which of them each query sees."""

    kv: KV
    """Rows: [M, K, H, S] and [M, K, S, H]."""
    seen: jax.Array
    """[M, 1, S] for all queries alike, or [M, Q, S]; one row may stand for all."""


class Behind(NamedTuple):
    """Copies of the pages that rows go on from, in stretches: those of one sequence, then those of the next."""

    kv: KV
    """[D, U, K, H, S] and [D, U, K, S, H]."""
    seen_DUS: jax.Array
    reader_DU: jax.Array
    """Which sequence of the shard a stretch is of; any behind the last one, where nothing is seen."""
    places_DMn: jax.Array
    """Where a sequence's stretches are; U where it has no more."""

    def to_stretches(self, x_RKX: jax.Array) -> jax.Array:
        """Give each stretch what is of the queries of all rows that read it: [R, K, X, …] → [D, U, K, Y, …]."""
        shards, sequences, _ = self.places_DMn.shape
        x_MKY = _together(x_RKX, shards * sequences)
        x_DMKY = x_MKY.reshape(shards, sequences, *x_MKY.shape[1:])
        return jax.vmap(lambda of_shard, reader_U: of_shard[reader_U])(x_DMKY, self.reader_DU)

    def to_rows(self, reduce: Callable[..., jax.Array], x_DUKY: jax.Array, of_none: float, rows: int) -> jax.Array:
        """Reduce what is of a row's stretches, in their order: [D, U, K, Y, …] → [R, K, X, …]."""

        def of_sequences(of_shard: jax.Array, places_Mn: jax.Array) -> jax.Array:
            return of_shard.at[places_Mn].get(mode="fill", fill_value=of_none)

        x_DMKY = reduce(jax.vmap(of_sequences)(x_DUKY, self.places_DMn), axis=2)
        return _apart(x_DMKY.reshape(-1, *x_DMKY.shape[2:]), rows)


def empty_pages(
    config: ModelConfig, num_shards: int, num_pages: int, page_tokens: int, kv_dtype: KVDType | None = None
) -> Pages:
    """Return the pages of every layer; what lies in a page that nobody has written is never read.

    Here alone is decided how they are laid out: whatever is done with them follows from that.

    Raises:
        ConfigError: as `require_kv_dtype`.
    """
    require_kv_dtype(config, kv_dtype)
    if _has_kernel(config):
        return tuple(empty_layer(config, num_shards, num_pages, page_tokens) for _ in range(config.num_layers))
    shape, dtype = (num_shards, num_pages, config.num_kv_heads), kv_dtype or config.dtype

    def of_layer() -> KV:
        keys = jnp.zeros((*shape, config.head_dim, page_tokens), dtype)
        values = jnp.zeros((*shape, page_tokens, config.head_dim), dtype)
        if kv_dtype is None:
            return KV(keys, values)
        return KV(keys, values, *(jnp.zeros((*shape, page_tokens), jnp.float32) for _ in range(2)))

    return tuple(_pinned(of_layer()) for _ in range(config.num_layers))


def _has_kernel(config: ModelConfig) -> bool:
    return platform() == "tpu" and config.head_dim % TPU_LANES == 0  # the kernel knows no narrower heads


def require_kv_dtype(config: ModelConfig, kv_dtype: KVDType | None) -> None:
    """See to it that pages of this type can be attended on the platform that is compiled for.

    Raises:
        ConfigError: they cannot.
    """
    if kv_dtype is not None and _has_kernel(config):
        raise ConfigError(
            f"expected no kv_dtype on a TPU, found {kv_dtype}: jax's ragged_paged_attention takes one constant scale "
            "for all cached tokens, and int8 needs one for each; leave rollout.kv_dtype out"
        )


def pages_shardings(pages: Pages, mesh: Mesh) -> Any:
    """Return the sharding of each array of the pages (arrays or their shapes), as a tree of the same form."""
    axes = _PAGES_AXES if isinstance(pages[0], KV) else RAGGED_AXES
    return jax.tree.map(lambda x: NamedSharding(mesh, spec(*axes[: x.ndim])), pages)


def page_tokens(pages: Pages) -> int:
    """Return how many tokens a page holds."""
    of_layer = pages[0]
    return int(of_layer.values.shape[3] if isinstance(of_layer, KV) else of_layer.shape[2])


class LayerRows(Protocol):
    """Rows of one layer to which new tokens are added, several at once or one after the other."""

    def begin(self, num_tokens: int) -> Any:
        """Return what a loop over so many new tokens carries."""
        ...

    def put(self, kv: Any, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> Any:
        """Add new tokens, which come `step` tokens after the row's start; of each row the first so many count."""
        ...

    def as_cached(self, x_RTKH: jax.Array) -> jax.Array:
        """Return keys, or values, as whoever attends them once they are put finds them."""
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

    `tables` name all pages of a row, and `starts` how many tokens lie there. By `histories` they are known as well
    where tokens are added one after the other; without, all are added at once.
    """
    return [
        WindowRows(of_layer, tables_DRn, starts_DR, None if histories is None else _behind(of_layer, histories, dtype))
        if isinstance(of_layer, KV)
        else KernelRows(of_layer, tables_DRn, starts_DR)
        for of_layer in pages
    ]


class WindowRows(NamedTuple):
    """Rows of one layer; a loop over their new tokens carries the keys and values of these."""

    pages: KV
    tables_DRn: Rows
    starts_DR: Rows
    behind: list[Behind] | Histories | None
    """What they go on from, copied or where it lies; None where `attend` lays it side by side block by block."""

    def begin(self, num_tokens: int) -> KV:
        """Return what a loop over so many new tokens carries: rows of [K, H, T] and [K, T, H]."""
        num_rows = self.starts_DR.size

        def empty(axis: int, x: jax.Array) -> jax.Array:
            shape = [num_rows, *x.shape[2:]]
            shape[axis] = num_tokens
            return constrain(jnp.zeros(shape, x.dtype), *_ROWS_AXES[: len(shape)])

        return _of_each(empty, self.pages)

    def put(self, kv: KV, k_RTKH: jax.Array, v_RTKH: jax.Array, step: jax.Array, counts_R: Rows) -> KV:
        """Add new tokens at column `step`, those that do not count as well: nobody reads them, and none is written."""
        # All rows stand at the same column, so it is one slice.
        return _of_each(
            lambda axis, x, new: jax.lax.dynamic_update_slice_in_dim(x, new, step, x.ndim + axis),
            kv,
            self._as_rows(k_RTKH, v_RTKH),
        )

    def _as_rows(self, k_RTKH: jax.Array, v_RTKH: jax.Array) -> KV:
        if self.pages.key_scales is None:
            return KV(k_RTKH.transpose(0, 2, 3, 1), v_RTKH.swapaxes(1, 2))
        (k_RTKH, key_scales_RTK), (v_RTKH, value_scales_RTK) = map(in_int8, (k_RTKH, v_RTKH))
        scales = (scales_RTK.swapaxes(1, 2) for scales_RTK in (key_scales_RTK, value_scales_RTK))
        return KV(k_RTKH.transpose(0, 2, 3, 1), v_RTKH.swapaxes(1, 2), *scales)

    def as_cached(self, x_RTKH: jax.Array) -> jax.Array:
        """Return keys, or values, as whoever attends them once they are put finds them."""
        if self.pages.key_scales is None:
            return x_RTKH
        whole_RTKH, scales_RTK = in_int8(x_RTKH)
        return (whole_RTKH * scales_RTK[..., None]).astype(x_RTKH.dtype)

    def attend(self, kv: KV, q_RQNH: jax.Array, step: jax.Array, counts_R: Rows | None = None) -> jax.Array:
        """Return what the queries of the tokens just put attend to, those before each and itself: [R, Q, N, H]."""
        queries_Q = step + jnp.arange(q_RQNH.shape[1])
        seen_1QT = (jnp.arange(kv.values.shape[2]) <= queries_Q[:, None])[None]
        fresh = Part(_as_numbers(kv, q_RQNH.dtype), seen_1QT)
        if self.behind is None:
            return attend_pages(q_RQNH, self.pages, self.tables_DRn, self.starts_DR, fresh, counts_R)
        if isinstance(self.behind, Histories):
            return attend_in_place(q_RQNH, self.pages, self.behind, fresh)
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


def in_int8(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Round the numbers of the last axis to int8 times a scale [...], which the largest of them decides.

    >>> whole, scale = in_int8(jnp.array([0.5, -2.0, 0.0]))
    >>> whole.tolist(), round(float(scale), 5)
    ([32, -127, 0], 0.01575)
    """
    x = x.astype(jnp.float32)
    scales = jnp.abs(x).max(-1) / _LARGEST_INT8
    divisors = jnp.where(scales == 0, 1, scales)[..., None]
    return jnp.round(x / divisors).astype(jnp.int8), scales


def _as_numbers(kv: KV, dtype: Any) -> KV:
    """Return rows of keys and values to compute with: of int8 what they stand for."""
    if kv.key_scales is None or kv.value_scales is None:
        return kv
    keys, values = kv.keys * kv.key_scales[..., None, :], kv.values * kv.value_scales[..., None]
    return KV(keys.astype(dtype), values.astype(dtype))


def _behind(pages: KV, histories: Histories, dtype: DType) -> list[Behind] | Histories:
    """Return what the rows of one layer have behind them: prefixes that several read, and what is each row's own."""
    page_tokens, head_dim = pages.values.shape[3:]
    if has_kernel(dtype, head_dim, page_tokens):
        return histories
    of_prefixes = (histories.prefix_tables_DPn, histories.prefix_pages_DP * page_tokens, histories.most_prefix_pages)
    of_rows = (histories.own_tables_DRn, histories.own_counts_DR, histories.most_own_pages)
    return [_listed(pages, *of_prefixes, dtype), _listed(pages, *of_rows, dtype)]


def _listed(pages: KV, tables_DMn: Rows, counts_DM: Rows, most_pages: int | None, dtype: DType) -> Behind:
    """Copy the pages in which so many tokens of each sequence lie, in stretches of few, of which nobody has many.

    Of the pages of a shard there are at most `most_pages`; where that is none, a sequence is one stretch.
    """
    page_tokens, (_, sequences, most_of_each) = pages.values.shape[3], tables_DMn.shape
    of_stretch, most = most_of_each, sequences
    if most_pages is not None:
        of_stretch = -(-_KEY_NUMBERS_AT_ONCE // (pages.values.shape[4] * page_tokens))
        # A sequence may leave all but one page of its last stretch empty.
        most = -(-(most_pages + sequences * (of_stretch - 1)) // of_stretch)
    tokens, most_of_each = of_stretch * page_tokens, -(-most_of_each // of_stretch)
    stretches_DM = -(-jnp.asarray(counts_DM) // tokens)
    ends_DM = jnp.cumsum(stretches_DM, axis=1)
    first_DM = ends_DM - stretches_DM
    number_U = jnp.arange(most)
    reader_DU = jnp.minimum((number_U[:, None] >= ends_DM[:, None]).sum(-1), sequences - 1)
    of_sequence_DU = number_U - jnp.take_along_axis(first_DM, reader_DU, axis=1)
    counts_DU = jnp.take_along_axis(jnp.asarray(counts_DM), reader_DU, axis=1)
    places_DUw = of_sequence_DU[..., None] * of_stretch + jnp.arange(of_stretch)
    page_DUw = jax.vmap(lambda table_Mn, reader_U1, place_Uw: table_Mn.at[reader_U1, place_Uw].get(mode="clip"))(
        jnp.asarray(tables_DMn), reader_DU[..., None], places_DUw
    )
    number_n = jnp.arange(most_of_each)
    return Behind(
        _as_numbers(_side_by_side(pages, page_DUw), dtype),
        # Not either where the list goes on behind the last of them: its tokens would come after all that are counted.
        of_sequence_DU[..., None] * tokens + jnp.arange(tokens) < counts_DU[..., None],
        reader_DU,
        jnp.where(number_n < stretches_DM[..., None], first_DM[..., None] + number_n, most),
    )


def window(pages: KV, table_Drn: Rows) -> KV:
    """Lay the pages of each row side by side: [D·r, K, H, n·B] and [D·r, K, n·B, H]; a page beyond the last is any."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), _side_by_side(pages, table_Drn))


def _side_by_side(pages: KV, table_Drn: Rows) -> KV:
    """Do so shard by shard: [D, r, K, H, n·B] and [D, r, K, n·B, H]."""

    def laid(axis: int, x: jax.Array) -> jax.Array:
        of_rows = jax.vmap(lambda of_shard, table: of_shard.at[table].get(mode="clip"))(x, table_Drn)
        num_shards, rows, num_pages, *page = of_rows.shape
        page[axis] *= num_pages
        laid = jnp.moveaxis(of_rows, 2, axis - 1).reshape(num_shards, rows, *page)
        if ambient_mesh() is not None:  # with this its partitioner would gather pages from all devices
            return laid
        # Left alone, XLA lays heads before rows, and copies all of it into this order where a loop begins.
        return with_layout_constraint(laid, Layout(tuple(range(laid.ndim))))

    return _of_each(laid, pages)


def copy_pages(pages: Pages, from_Dr: Rows, to_Dr: Rows) -> Pages:
    """Copy pages, each before any is written to; one that goes beyond the last page is not copied."""

    def copied(x: jax.Array, start: Rows, end: Rows) -> jax.Array:
        # One index alone is compiled into a slice, for which all pages are copied first.
        start, end = (jnp.concatenate([jnp.asarray(of_rows), jnp.full(1, len(x))]) for of_rows in (start, end))
        return x.at[end].set(x.at[start].get(mode="clip"), mode="drop")

    return tuple(
        _of_each(lambda _, x: jax.vmap(copied)(x, from_Dr, to_Dr), of_layer)
        if isinstance(of_layer, KV)
        else copy_layer(of_layer, from_Dr, to_Dr)
        for of_layer in pages
    )


def pages_at(pages: Pages, numbers_Dm: Rows) -> Any:
    """Return copies of some pages of each shard, as a tree of the same form: [D, m, …]."""

    def of_layer(layer: KV | jax.Array) -> Any:
        if not isinstance(layer, KV):
            return layer_at(layer, numbers_Dm)
        return _of_each(lambda _, x: jax.vmap(lambda x, number: x.at[number].get(mode="clip"))(x, numbers_Dm), layer)

    return tuple(map(of_layer, pages))


def with_pages(pages: Pages, numbers_Dm: Rows, contents: Any) -> Pages:
    """Return the pages with these `contents`, as of `pages_at`, in place of some; one beyond the last is left out."""

    def of_layer(layer: KV | jax.Array, content: Any) -> KV | jax.Array:
        if not isinstance(layer, KV):
            return layer_with(layer, numbers_Dm, content)
        put = jax.vmap(lambda x, number, new: x.at[number].set(new, mode="drop"))
        return _pinned(_of_each(lambda _, x, new: put(x, numbers_Dm, new), layer, content))

    return tuple(map(of_layer, pages, contents))


def write(pages: KV, fresh: KV, table_Drn: Rows, starts_Dr: Rows, counts_Dr: Rows) -> KV:
    """Write the first so many new tokens of rows, [D·r, K, H, T] and [D·r, K, T, H], from a place of each row's on.

    What follows the last of them in its page is overwritten as well: nothing lies there yet.
    """
    num_shards, rows, _ = table_Drn.shape
    num_pages, page_tokens, num_tokens = pages.keys.shape[1], pages.values.shape[3], fresh.values.shape[2]
    # Whole pages: a call writes few pages faster than many tokens.
    page_Drm = touched_pages(table_Drn, starts_Dr, counts_Dr, num_tokens, page_tokens, num_pages)
    touched = page_Drm.shape[2]
    places_R = (starts_Dr % page_tokens).reshape(-1)

    def written(axis: int, x: jax.Array, before: jax.Array, new: jax.Array) -> jax.Array:
        def put(of_row: jax.Array, new: jax.Array, place: Rows) -> jax.Array:
            # A slice at a place of each row's own would be written number by number.
            token_S = jnp.arange(of_row.shape[axis]) - place
            is_new_S = (token_S >= 0) & (token_S < num_tokens)
            put_there = jnp.take(new, token_S, of_row.ndim + axis, mode="clip")
            return jnp.where(is_new_S.reshape(-1, *(1,) * (-1 - axis)), put_there, of_row)

        after = jax.vmap(put)(before, new, places_R)
        shape = [num_shards, rows, *after.shape[1:]]
        shape[axis : axis + 1 or None] = [touched, page_tokens]
        paged = jnp.moveaxis(after.reshape(shape), axis - 1, 2)
        return jax.vmap(lambda of_shard, page, new: of_shard.at[page].set(new, mode="drop"))(x, page_Drm, paged)

    return _pinned(_of_each(written, pages, window(pages, page_Drm), fresh))


class _Softmax(NamedTuple):
    """A softmax over some of its keys, to which others are added; Y are a row's queries, of each all heads of a key."""

    max_RKY: jax.Array
    sum_RKY: jax.Array
    """Of exponentials, relative to the maximum."""
    out_RKYH: jax.Array
    """The sum of values, each times its exponential."""


def attend_pages(
    q_RQNH: jax.Array, pages: KV, tables_DRn: Rows, starts_DR: Rows, fresh: Part, counts_R: Rows | None = None
) -> jax.Array:
    """Return one softmax over the first `starts` tokens of each row's pages and those of `fresh`: [R, Q, N, H].

    Every query must see a key of `fresh`. Of a row's queries the first so many count, or all; what comes out of others
    means nothing. Pages are laid side by side so many at a time that their scores stay in a cache, and nothing is
    computed behind the longest row or the last query that counts.
    """
    rows, num_queries, heads, _ = q_RQNH.shape
    kv_heads, page_tokens = pages.keys.shape[2], pages.values.shape[3]
    shared = heads // kv_heads
    queries = num_queries if num_queries % _QUERIES_AT_ONCE else _QUERIES_AT_ONCE
    most = jnp.max(jnp.full(1, num_queries) if counts_R is None else counts_R)
    num_chunks = 1 if queries == num_queries else -(-most // queries)
    scores_at_once = _SCORES_AT_ONCE if platform() == "cpu" else _SCORES_AT_ONCE_ELSEWHERE
    # A quarter of a whole sequence at the most: what is computed behind the longest row is less than that.
    most_pages = -(-tables_DRn.shape[2] // 4)
    block_pages = min(max(1, scores_at_once // (rows * heads * queries * page_tokens)), most_pages)
    tables_DRn = jnp.pad(jnp.asarray(tables_DRn), ((0, 0), (0, 0), (0, -tables_DRn.shape[2] % block_pages)))
    q_RKYH = _of_key_heads(q_RQNH, kv_heads)

    def over_queries(softmax: _Softmax, keys: Part) -> _Softmax:
        # A loop of the program's, not of Python's: it must not grow with the queries.
        def chunk(number: jax.Array, softmax: _Softmax) -> _Softmax:
            def own(x: jax.Array, of_each: int, axis: int) -> jax.Array:
                return jax.lax.dynamic_slice_in_dim(x, number * queries * of_each, queries * of_each, axis)

            seen = keys.seen if keys.seen.shape[1] == 1 else jnp.repeat(own(keys.seen, 1, 1), shared, axis=1)
            so_far = jax.tree.map(lambda x: own(x, shared, 2), softmax)
            return jax.tree.map(
                lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, number * queries * shared, 2),
                softmax,
                _with_keys(so_far, own(q_RKYH, shared, 2), keys._replace(seen=seen)),
            )

        return jax.lax.fori_loop(0, num_chunks, chunk, softmax)

    def block(number: jax.Array, softmax: _Softmax) -> _Softmax:
        tables = jax.lax.dynamic_slice_in_dim(tables_DRn, number * block_pages, block_pages, 2)
        kv = _as_numbers(window(pages, tables), q_RQNH.dtype)
        place_S = number * block_pages * page_tokens + jnp.arange(block_pages * page_tokens)
        return over_queries(softmax, Part(kv, (place_S < jnp.reshape(starts_DR, (-1, 1)))[:, None]))

    num_blocks = -(-jnp.max(jnp.asarray(starts_DR)) // (block_pages * page_tokens))
    softmax = over_queries(jax.lax.fori_loop(0, num_blocks, block, _over_nothing(q_RKYH)), fresh)
    return _attended(softmax, q_RQNH)


def _of_key_heads(q_RQNH: jax.Array, kv_heads: int) -> jax.Array:
    """Scale queries; those of all heads that share a key head are rows of one product with it: [R, K, Y, H].

    Those of a token are neighbours.
    """
    rows, num_queries, heads, head_dim = q_RQNH.shape
    return (
        (q_RQNH * head_dim**-0.5)
        .reshape(rows, num_queries, kv_heads, heads // kv_heads, head_dim)
        .transpose(0, 2, 1, 3, 4)
        .reshape(rows, kv_heads, -1, head_dim)
    )


def _over_nothing(q_RKYH: jax.Array) -> _Softmax:
    nothing_RKY = jnp.zeros(q_RKYH.shape[:3], jnp.float32)
    return _Softmax(nothing_RKY + MASKED, nothing_RKY, jnp.zeros(q_RKYH.shape, jnp.float32))


def _attended(softmax: _Softmax, q_RQNH: jax.Array) -> jax.Array:
    """Return what queries attend to, [R, Q, N, H], from all that they see."""
    rows, num_queries, _, head_dim = q_RQNH.shape
    # The largest of a query's exponentials is 1: where the sum is less, nobody has asked.
    out_RKYH = (softmax.out_RKYH / jnp.maximum(softmax.sum_RKY, 1)[..., None]).astype(q_RQNH.dtype)
    out_RKQXH = out_RKYH.reshape(rows, out_RKYH.shape[1], num_queries, -1, head_dim)
    return out_RKQXH.swapaxes(1, 2).reshape(q_RQNH.shape)


def _with_keys(softmax: _Softmax, q_RKYH: jax.Array, keys: Part) -> _Softmax:
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores_RKYS = jnp.where(keys.seen[:, None], einsum("rkyh,rkhs->rkys", q_RKYH, keys.kv.keys), MASKED)
    max_RKY = jnp.maximum(softmax.max_RKY, scores_RKYS.max(-1))
    # Of keys that nobody sees, before any that somebody does, exponentials are 1, and then times 0.
    before_RKY, p_RKYS = jnp.exp(softmax.max_RKY - max_RKY), jnp.exp(scores_RKYS - max_RKY[..., None])
    values = keys.kv.values
    added_RKYH = einsum("rkys,rksh->rkyh", p_RKYS.astype(values.dtype), values)
    return _Softmax(
        max_RKY,
        softmax.sum_RKY * before_RKY + p_RKYS.sum(-1),
        softmax.out_RKYH * before_RKY[..., None] + added_RKYH,
    )


def attend(q_RQNH: jax.Array, behind: Sequence[Behind], fresh: Part) -> jax.Array:
    """Return one softmax over all keys behind a row and those of `fresh`: [R, Q, N, H].

    Every query must see a key of `fresh`. Each stretch has its own scores and its own sum of values; those of a row are
    then added up in their order, so that it changes nothing who else is in the list.
    """
    rows, num_queries, heads, head_dim = q_RQNH.shape
    kv_heads = fresh.kv.keys.shape[1]
    shared = heads // kv_heads
    # The queries of all heads that share a key head are rows of one product with it.
    q_RKXH = (
        (q_RQNH * head_dim**-0.5)
        .reshape(rows, num_queries, kv_heads, shared, head_dim)
        .transpose(0, 2, 3, 1, 4)
        .reshape(rows, kv_heads, shared * num_queries, head_dim)
    )
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    seen_RXT = jnp.tile(fresh.seen, (1, shared, 1))
    s_RKXT = jnp.where(seen_RXT[:, None], einsum("rkxh,rkht->rkxt", q_RKXH, fresh.kv.keys), MASKED)
    scores = []
    for stretches in behind:
        s_DUKYS = einsum("dukyh,dukhs->dukys", stretches.to_stretches(q_RKXH), stretches.kv.keys)
        scores.append(jnp.where(stretches.seen_DUS[:, :, None, None], s_DUKYS, MASKED))
    # One maximum for all keys, so that their exponentials add up to one softmax.
    max_RKX = s_RKXT.max(-1)
    for stretches, s_DUKYS in zip(behind, scores, strict=True):
        max_RKX = jnp.maximum(max_RKX, stretches.to_rows(jnp.max, s_DUKYS.max(-1), MASKED, rows))
    sum_RKX, out_RKXH = jnp.zeros_like(max_RKX), jnp.zeros((*max_RKX.shape, head_dim), jnp.float32)
    for stretches, s_DUKYS in zip(behind, scores, strict=True):
        p_DUKYS, values = jnp.exp(s_DUKYS - stretches.to_stretches(max_RKX)[..., None]), stretches.kv.values
        of_stretches = einsum("dukys,duksh->dukyh", p_DUKYS.astype(values.dtype), values)
        sum_RKX += stretches.to_rows(jnp.sum, p_DUKYS.sum(-1), 0, rows)
        out_RKXH += stretches.to_rows(jnp.sum, of_stretches, 0, rows)
    p_RKXT, values = jnp.exp(s_RKXT - max_RKX[..., None]), fresh.kv.values
    sum_RKX += p_RKXT.sum(-1)
    out_RKXH += einsum("rkxt,rkth->rkxh", p_RKXT.astype(values.dtype), values)
    out_RKXH = (out_RKXH / sum_RKX[..., None]).astype(q_RQNH.dtype)
    return (
        out_RKXH.reshape(rows, kv_heads, shared, num_queries, head_dim).transpose(0, 3, 1, 2, 4).reshape(q_RQNH.shape)
    )


def attend_in_place(q_RQNH: jax.Array, pages: KV, histories: Histories, fresh: Part) -> jax.Array:
    """Return what `attend` does, while pages stay where they lie: a kernel attends to what rows have behind them.

    Every query must see a key of `fresh`.

    Decided: docs/decisions/rl.md, “A GPU kernel of our own reads pages in place”.
    """
    rows, page_tokens = len(q_RQNH), pages.values.shape[3]
    q_RKYH = _of_key_heads(q_RQNH, pages.keys.shape[2])
    seen_RYT = jnp.repeat(fresh.seen, q_RQNH.shape[2] // pages.keys.shape[2], axis=1)
    softmax = _with_keys(_over_nothing(q_RKYH), q_RKYH, fresh._replace(seen=seen_RYT))
    # Axes behind those that are named are whole on every device.
    over_pages = on_each_shard(
        _over_pages, (_ROWS_AXES, _PAGES_AXES[:3], _PAGES_AXES[:2], _PAGES_AXES[:2]), _ROWS_AXES[:2]
    )
    for tables_DMn, counts_DM in (
        (histories.prefix_tables_DPn, histories.prefix_pages_DP * page_tokens),
        (histories.own_tables_DRn, histories.own_counts_DR),
    ):
        of_sequences = over_pages(_together(q_RKYH, counts_DM.size), pages, tables_DMn, counts_DM)
        softmax = _of_both(softmax, _Softmax(*(_apart(x, rows) for x in of_sequences)))
    return _attended(softmax, q_RQNH)


def _over_pages(q_MKYH: jax.Array, pages: KV, tables_1Mn: Rows, counts_1M: Rows) -> _Softmax:
    """Attend on one shard to the first so many tokens of each of its sequences."""
    keys_1NKHB, values_1NKBH, *scales_1NKB = jax.tree.leaves(pages)
    scales_NKB = [x[0] for x in scales_1NKB]
    return _Softmax(
        *softmax_over_pages(q_MKYH, keys_1NKHB[0], values_1NKBH[0], scales_NKB, tables_1Mn[0], counts_1M[0])
    )


def _of_both(one: _Softmax, other: _Softmax) -> _Softmax:
    """Return the softmax over the keys of either."""
    max_RKY = jnp.maximum(one.max_RKY, other.max_RKY)
    of_one_RKY, of_other_RKY = (jnp.exp(x.max_RKY - max_RKY) for x in (one, other))
    return _Softmax(
        max_RKY,
        one.sum_RKY * of_one_RKY + other.sum_RKY * of_other_RKY,
        one.out_RKYH * of_one_RKY[..., None] + other.out_RKYH * of_other_RKY[..., None],
    )


def _together(x_RKX: jax.Array, rows: int) -> jax.Array:
    """Put the queries of all rows that read the same keys into one row: [R, K, X, …] → [M, K, (R / M) · X, …]."""
    split = x_RKX.reshape(rows, -1, *x_RKX.shape[1:]).swapaxes(1, 2)
    return split.reshape(rows, x_RKX.shape[1], -1, *x_RKX.shape[3:])


def _apart(x_MKY: jax.Array, rows: int) -> jax.Array:
    """Undo `_together`."""
    sharing = rows // len(x_MKY)
    split = x_MKY.reshape(*x_MKY.shape[:2], sharing, -1, *x_MKY.shape[3:]).swapaxes(1, 2)
    return split.reshape(rows, x_MKY.shape[1], -1, *x_MKY.shape[3:])


def _pinned(pages: KV) -> KV:
    return _of_each(lambda _, x: constrain(x, *_PAGES_AXES[: x.ndim]), pages)
