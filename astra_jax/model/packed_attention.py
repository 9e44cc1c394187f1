"""Rows of several segments on a GPU: cuDNN's packed layout, in which each segment is a sequence of its own.

If segments continue a prefix, each is given a copy of it, and cuDNN attends causally over both:

    row     prompt | response 1 | response 2 | padding
    given   prompt | prompt, response 1 | prompt, response 2

The copies cost attention as if nothing were shared; all other layers still compute a prefix once.

Rows that do not fit take `chunked_attention`. None of this has run on a GPU yet. So each process compares it with
`chunked_attention` on two small rows before it uses it; if they differ, it says so and keeps to `chunked_attention`.

Decided: docs/decisions/rl.md, “The prompt of a group is computed once for several episodes”.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.cudnn import fused_attention_stablehlo as fused  # `jax.nn` offers lengths of rows, but no offsets

from astra_jax.model.chunked_attention import chunked_attention

logger = logging.getLogger(__name__)

_MOST_SEGMENTS: Final = 32
"""Segments of a row, at most: cuDNN keeps a log-sum-exp of all tokens for each of them."""
_LARGEST_ERROR: Final = 0.03
"""Largest difference from `chunked_attention` over the largest value; bfloat16 has about 0.01."""
_MOST_COPIES: Final = 4
"""Tokens of a row with all copies of its prefixes, over the tokens of the row, at most."""


class Segments(NamedTuple):
    """The segments of rows in order, M of each; behind the last one there are -1."""

    starts_BM: jax.Array
    """First token of each segment."""
    lengths_BM: jax.Array
    ids_BM: jax.Array
    prefix_ids_BM: jax.Array
    counts_B: jax.Array
    """Number of segments, also of those beyond M."""


def has_packed_layout() -> bool:
    """Whether the GPU has cuDNN's packed layout, as Hopper and later ones have, and computes it right."""
    return fused.check_compute_capability("9.0") and is_right_here()


@cache
def is_right_here() -> bool:
    """Whether outputs and gradients are within 3 % of those of `chunked_attention`, on two small rows.

    A wrong kernel would train a wrong model without a word.
    """
    # In a thread of its own: the caller is in the middle of a trace, often over a mesh, and JAX keeps both by thread.
    with ThreadPoolExecutor(1) as thread:
        errors = thread.submit(_errors).result()
    is_right = all(error <= _LARGEST_ERROR for error in errors)  # NaN is not
    if not is_right:
        logger.warning(
            "cuDNN's packed attention is wrong on this GPU (errors of out, dq, dk, dv: %s): packed rows take "
            "chunked attention",
            ", ".join(f"{error:.3f}" for error in errors),
        )
    return is_right


def _errors() -> list[float]:
    """Return the largest difference of output, dq, dk and dv, over the largest value of each."""
    rng = np.random.default_rng(0)
    shapes = [(2, 256, 4, 64), (2, 256, 2, 64), (2, 256, 2, 64), (2, 256, 4, 64)]
    q, k, v, weights = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in shapes)
    ids = jnp.asarray(np.repeat([[1, 1, 2, 3, 3, 3, 4, 0], [1, 2, 2, 2, 2, 3, 3, 3]], 32, axis=1), jnp.int32)
    prefix_ids = jnp.minimum(ids, 1)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = chunked_attention(q, k, v, ids, prefix_ids, ids, jnp.arange(ids.shape[1]))
        return jnp.where((ids > 0)[..., None, None], out, 0)

    def out_and_gradients(attend: Callable[..., jax.Array]) -> list[np.ndarray]:
        def computed(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
            out, pull = jax.vjp(attend, q, k, v)
            return out, *pull(weights)

        return [np.asarray(x, np.float32) for x in jax.jit(computed)(q, k, v)]

    found = out_and_gradients(lambda q, k, v: packed_attention(q, k, v, ids, prefix_ids))
    pairs = zip(found, out_and_gradients(plain), strict=True)
    return [float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs]


def segments_of(segment_ids_BT: jax.Array, prefix_ids_BT: jax.Array, most: int = _MOST_SEGMENTS) -> Segments:
    """Return the segments of real tokens in each row.

    >>> ids = jnp.array([[1, 1, 2, 0]])
    >>> [x.tolist() for x in segments_of(ids, ids, most=3)]
    [[[0, 2, -1]], [[2, 1, -1]], [[1, 2, -1]], [[1, 2, -1]], [2]]
    """
    before_BT, after_BT = (jnp.roll(segment_ids_BT, by, axis=1) for by in (1, -1))
    places_T = jnp.arange(segment_ids_BT.shape[1])
    begins_BT = (segment_ids_BT > 0) & ((segment_ids_BT != before_BT) | (places_T == 0))
    ends_BT = (segment_ids_BT > 0) & ((segment_ids_BT != after_BT) | (places_T == places_T[-1]))

    def places(is_one_BT: jax.Array) -> jax.Array:
        return jax.vmap(lambda is_one_T: jnp.nonzero(is_one_T, size=most, fill_value=-1)[0])(is_one_BT)

    starts_BM, ends_BM = places(begins_BT), places(ends_BT)
    ids_BM, prefix_ids_BM = (jnp.take_along_axis(x, starts_BM, axis=1) for x in (segment_ids_BT, prefix_ids_BT))

    def real(x_BM: jax.Array) -> jax.Array:
        return jnp.where(starts_BM >= 0, x_BM, -1).astype(jnp.int32)

    lengths_BM = real(ends_BM - starts_BM + 1)
    return Segments(real(starts_BM), lengths_BM, real(ids_BM), real(prefix_ids_BM), begins_BT.sum(1))


def fits_packed_layout(segment_ids_BT: jax.Array, prefix_ids_BT: jax.Array | None) -> jax.Array:
    """Say whether all rows have at most 32 segments and, with copies of prefixes, at most four times their tokens."""
    found = segments_of(segment_ids_BT, segment_ids_BT if prefix_ids_BT is None else prefix_ids_BT)
    num_places_B = _copies(segment_ids_BT, found).num_places_B
    return jnp.all((found.counts_B <= _MOST_SEGMENTS) & (num_places_B <= _MOST_COPIES * segment_ids_BT.shape[1]))


def packed_attention(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array, prefix_ids_BT: jax.Array | None
) -> jax.Array:
    """Return what `attention` does, for rows that fit; 0 at padding. Without prefix ids none continues another."""
    if prefix_ids_BT is None:
        return _causal_in_segments(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT)
    copies = _copies(segment_ids_BT, segments_of(segment_ids_BT, prefix_ids_BT))

    def copied(x_BTNH: jax.Array) -> jax.Array:
        # Float32, in which the gradients of all copies are added up.
        x_BSNH = jnp.take_along_axis(x_BTNH.astype(jnp.float32), copies.tokens_BS[..., None, None], axis=1)
        return x_BSNH.astype(x_BTNH.dtype)

    out_BSNH = _causal_in_segments(copied(q_BTNH), copied(k_BTKH), copied(v_BTKH), copies.segment_ids_BS)
    out_BTNH = jnp.take_along_axis(out_BSNH, copies.places_BT[..., None, None], axis=1)
    return jnp.where((segment_ids_BT > 0)[..., None, None], out_BTNH, 0)


def _causal_in_segments(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, segment_ids_BT: jax.Array
) -> jax.Array:
    found = segments_of(segment_ids_BT, segment_ids_BT)
    offsets_BM = jnp.pad(found.starts_BM, ((0, 0), (0, 1)), constant_values=-1)
    is_real_BT11 = (segment_ids_BT > 0)[..., None, None]
    # cuDNN writes neither outputs nor gradients of padding: `where` keeps what lies in memory there out of both.
    # Keys are repeated for their query heads: jax before 0.12 multiplies the places of keys by the query heads.
    repeats = q_BTNH.shape[2] // k_BTKH.shape[2]
    k_BTNH, v_BTNH = (jnp.repeat(x_BTKH, repeats, axis=2) for x_BTKH in (k_BTKH, v_BTKH))
    q_BTNH, k_BTNH, v_BTNH = (jnp.where(is_real_BT11, x_BTNH, 0) for x_BTNH in (q_BTNH, k_BTNH, v_BTNH))
    out_BTNH = fused.dot_product_attention(
        q_BTNH,
        k_BTNH,
        v_BTNH,
        q_seqlen=found.lengths_BM,
        kv_seqlen=found.lengths_BM,
        q_offsets=offsets_BM,
        kv_offsets=offsets_BM,
        scale=q_BTNH.shape[-1] ** -0.5,
        mask_type=fused.MaskType.PADDING_CAUSAL,
    )
    return jnp.where(is_real_BT11, out_BTNH, 0)


class _Copies(NamedTuple):
    """Rows of S places in which each segment stands behind a copy of its prefix."""

    tokens_BS: jax.Array
    """Token of the row at each place."""
    segment_ids_BS: jax.Array
    places_BT: jax.Array
    """Place of each token of the row."""
    num_places_B: jax.Array
    """Places that a row needs, however many there are."""


def _copies(segment_ids_BT: jax.Array, found: Segments) -> _Copies:
    num_tokens = segment_ids_BT.shape[1]

    def of_row(ids_T: jax.Array, found: Segments) -> _Copies:
        starts_M, lengths_M, ids_M, prefix_ids_M, _ = found
        is_prefix_MM = (prefix_ids_M[:, None] == ids_M) & (prefix_ids_M != ids_M)[:, None]
        prefix_starts_M, prefix_lengths_M = (jnp.where(is_prefix_MM, x_M, 0).sum(1) for x_M in (starts_M, lengths_M))
        totals_M = jnp.where(starts_M >= 0, prefix_lengths_M + lengths_M, 0)
        ends_M = jnp.cumsum(totals_M)
        places_S, tokens_T = jnp.arange(_MOST_COPIES * num_tokens), jnp.arange(num_tokens)
        m_S = jnp.minimum(jnp.searchsorted(ends_M, places_S, side="right"), len(ends_M) - 1)
        own_S = places_S - (ends_M - lengths_M)[m_S]
        tokens_S = jnp.where(own_S < 0, (prefix_starts_M + prefix_lengths_M)[m_S], starts_M[m_S]) + own_S
        is_used_S = places_S < ends_M[-1]
        m_T = jnp.searchsorted(jnp.where(starts_M >= 0, starts_M, num_tokens), tokens_T, side="right") - 1
        places_T = (ends_M - lengths_M - starts_M)[m_T] + tokens_T
        return _Copies(
            jnp.where(is_used_S, tokens_S, 0),
            jnp.where(is_used_S, 1 + m_S, 0),
            jnp.where(ids_T > 0, places_T, 0),
            ends_M[-1],
        )

    return jax.vmap(of_row)(segment_ids_BT, found)
