"""Log-probabilities of target tokens: the logits [tokens, V] never exist whole.

log p(target) = hidden · unembedding[target] − logsumexp_v(hidden · unembedding[v]), a slice of the vocabulary at a
time. The float32 log-sum-exp is the only residual; the backward pass computes each slice's logits again. Under a mesh
every device keeps its own tokens, the vocabulary is split over `tensor`, and a slice of the unembedding is gathered
over the axes that store its width just before it is needed, so it is never whole anywhere either.

Each device moves the tokens whose log-probability is asked for to the front and stops behind them. Their number is
data, not a shape, so another number of them compiles nothing anew. A loop over them has no trip count that XLA knows,
and on a GPU each of its iterations waits for the host. It is the outer loop where no slice has to be gathered.

Decided: docs/decisions/model.md, “The output layer computes only tokens that are in the loss”.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from astra_jax.model.sharding import LOGICAL_TO_MESH, ambient_mesh, platform, spec

_LANES = 128
_TOKEN_CHUNKS = 16
"""Number of chunks that a device's tokens are cut into; on average half a chunk is computed for nothing."""
_NOTHING = -1e30
"""The logit of a row that another slice already counted: finite, and zero after exp."""

_WIDTH_AXES = LOGICAL_TO_MESH["embed"]
_VOCAB_AXIS = LOGICAL_TO_MESH["vocab"]


def token_logprobs(
    hidden_BTD: jax.Array,
    unembedding_VD: jax.Array,
    targets_BT: jax.Array,
    is_active_BT: jax.Array | None = None,
    *,
    chunk_tokens: int = 256,
) -> jax.Array:
    """Return the float32 log-probability [B, T] of each target under softmax(hidden · unembeddingᵀ).

    Where a token is not active the log-probability is 0, and nothing is computed; without `is_active_BT` all are. It is
    differentiable in `hidden_BTD` and `unembedding_VD`.

    A device holds at most as many logits at once as `chunk_tokens` tokens have, however many tokens there are. For the
    log-probabilities at a sampling temperature τ pass `hidden_BTD / τ`.
    """
    if is_active_BT is None:
        is_active_BT = targets_BT >= 0  # all of them, though the compiler cannot know that
    return _logprobs(chunk_tokens, hidden_BTD, unembedding_VD, targets_BT, is_active_BT)


_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
_HIDDEN = spec("batch", "sequence", "hidden")
_TOKENS = spec("batch", "sequence")
_TABLE = spec("vocab", "embed")


def _per_device(local: Callable, in_specs: list, out_specs: object) -> Callable:
    """Return `local` as each device computes it on its share; without a mesh `local` itself."""
    if ambient_mesh() is None:
        return local
    return jax.shard_map(local, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=False)


def _sum_over_vocabulary(x: jax.Array) -> jax.Array:
    return x if ambient_mesh() is None else jax.lax.psum(x, _VOCAB_AXIS)


Arrays = tuple[jax.Array, ...]
_Add = Callable[[jax.Array, Arrays], Arrays]
_AddSlice = Callable[[jax.Array, Arrays, Callable[[_Add, Arrays], Arrays]], Arrays]


class _ActiveTokens:
    """The active tokens of a device's N, moved together into chunks [Z, n]; places behind the last one hold 0."""

    def __init__(self, is_active_N: jax.Array, chunk_tokens: int) -> None:
        self.num_tokens, self.size = len(is_active_N), min(chunk_tokens, len(is_active_N))
        # Unused places name the token beyond the last: nothing is taken from there, and nothing is put back.
        num_places = -(-self.num_tokens // self.size) * self.size
        self._place_M = jnp.nonzero(is_active_N, size=num_places, fill_value=self.num_tokens)[0]
        self.num_chunks = -(-is_active_N.sum() // self.size)

    def take(self, x_N: jax.Array) -> jax.Array:
        """Return the values of the active tokens, in chunks."""
        taken_M = jnp.take(x_N, self._place_M, axis=0, mode="fill", fill_value=0)
        return taken_M.reshape(-1, self.size, *x_N.shape[1:])

    def put_back(self, x_Zn: jax.Array) -> jax.Array:
        """Return an array of all tokens: values of the chunks at the places they were taken from, 0 elsewhere."""
        x_M = x_Zn.reshape(-1, *x_Zn.shape[2:])
        return jnp.zeros((self.num_tokens, *x_M.shape[1:]), x_M.dtype).at[self._place_M].set(x_M, mode="drop")


def token_chunk(num_tokens: int) -> int:
    """Return how many of a device's tokens are computed at a time.

    >>> token_chunk(20_480), token_chunk(1_000)
    (1280, 128)
    """
    return -(-num_tokens // (_TOKEN_CHUNKS * _LANES)) * _LANES


class _VocabularySlices:
    """This device's rows of the unembedding, `size` at a time; the last slice overlaps the one before it.

    A slice has as many logits of all tokens as the whole vocabulary has of `chunk_tokens`, in whole lanes. On an
    accelerator that has the whole width of its rows, a slice has as many of one chunk: few large products.
    """

    def __init__(self, table_VD: jax.Array, dtype: DTypeLike, active: _ActiveTokens, chunk_tokens: int) -> None:
        rows, mesh = len(table_VD), ambient_mesh()
        self.table_VD, self.dtype = table_VD, dtype
        self.are_gathered = mesh is not None and math.prod(mesh.shape[axis] for axis in _WIDTH_AXES or ()) > 1
        tokens = active.num_tokens if self.are_gathered or platform() == "cpu" else active.size
        most = min(rows, max(_LANES, chunk_tokens * rows // tokens // _LANES * _LANES))
        self.count = -(-rows // most)
        # Slices of one size, so that the last one overlaps by little.
        self.size = min(most, -(-rows // (self.count * _LANES)) * _LANES)
        self.first_row = 0 if mesh is None else jax.lax.axis_index(_VOCAB_AXIS) * rows

    def visit(self, num_chunks: jax.Array, add_slice: _AddSlice, so_far: Arrays) -> Arrays:
        """Return `so_far` after `add_slice` of each slice, whose third argument goes on over the chunks of tokens."""
        if self.are_gathered:  # once for all chunks
            of_chunks = functools.partial(jax.lax.fori_loop, 0, num_chunks)
            return jax.lax.fori_loop(0, self.count, lambda i, so_far: add_slice(i, so_far, of_chunks), so_far)

        def add_to_chunk(z: jax.Array, so_far: Arrays) -> Arrays:
            def of_chunk(add_chunk: _Add, so_far: Arrays) -> Arrays:
                return add_chunk(z, so_far)

            return jax.lax.fori_loop(0, self.count, lambda i, so_far: add_slice(i, so_far, of_chunk), so_far)

        return jax.lax.fori_loop(0, num_chunks, add_to_chunk, so_far)

    def start(self, i: jax.Array) -> jax.Array:
        return jnp.minimum(i * self.size, len(self.table_VD) - self.size)

    def weights(self, i: jax.Array) -> jax.Array:
        """Return the slice at full width, in the dtype of the products."""
        slice_VD = jax.lax.dynamic_slice_in_dim(self.table_VD, self.start(i), self.size).astype(self.dtype)
        return jax.lax.all_gather(slice_VD, _WIDTH_AXES, axis=1, tiled=True) if self.are_gathered else slice_VD

    def logits(self, i: jax.Array, weights_VD: jax.Array, hidden_nD: jax.Array) -> jax.Array:
        logits_nV = _einsum("nd,vd->nv", hidden_nD, weights_VD)
        if len(self.table_VD) % self.size == 0:
            return logits_nV
        # The last slice begins early to have full size: it must not count ids again that the slice before it has.
        is_new_V = self.start(i) + jnp.arange(self.size) >= i * self.size
        return jnp.where(is_new_V, logits_nV, _NOTHING)

    def column(self, i: jax.Array, targets_n: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the column of each target in the slice, and whether the target is in it."""
        column_n = targets_n - self.first_row - self.start(i)
        is_here_n = (column_n >= 0) & (column_n < self.size) & (column_n + self.start(i) >= i * self.size)
        return column_n, is_here_n


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(
    chunk_tokens: int, hidden_BTD: jax.Array, unembedding_VD: jax.Array, targets_BT: jax.Array, is_active_BT: jax.Array
) -> jax.Array:
    return _logprobs_forward(chunk_tokens, hidden_BTD, unembedding_VD, targets_BT, is_active_BT)[0]


def _logprobs_forward(chunk_tokens: int, *arrays: jax.Array) -> tuple[jax.Array, Arrays]:
    """Return the log-probs; beside the arrays, the backward pass gets each token's log-sum-exp."""

    def local(*arrays: jax.Array) -> Arrays:
        hidden_BTD, unembedding_VD, targets_BT, is_active_BT = arrays
        active = _ActiveTokens(is_active_BT.reshape(-1), token_chunk(targets_BT.size))
        hidden_ZnD = active.take(hidden_BTD.reshape(targets_BT.size, -1))
        targets_Zn = active.take(targets_BT.reshape(-1))
        slices = _VocabularySlices(unembedding_VD, hidden_BTD.dtype, active, chunk_tokens)

        def add_slice(i: jax.Array, so_far: Arrays, of_chunks: Callable[[_Add, Arrays], Arrays]) -> Arrays:
            weights_VD = slices.weights(i)

            def add_chunk(z: jax.Array, so_far: Arrays) -> Arrays:
                max_n, sum_n, picked_n = (x_Zn[z] for x_Zn in so_far)
                logits_nV = slices.logits(i, weights_VD, hidden_ZnD[z])
                # The sum under the old maximum is rescaled to the new one, so no exponential overflows.
                new_max_n = jnp.maximum(max_n, logits_nV.max(-1))
                sum_n = sum_n * jnp.exp(max_n - new_max_n) + jnp.exp(logits_nV - new_max_n[:, None]).sum(-1)
                column_n, is_here_n = slices.column(i, targets_Zn[z])
                logit_n = jnp.take_along_axis(logits_nV, jnp.clip(column_n, 0, slices.size - 1)[:, None], axis=1)[:, 0]
                new = new_max_n, sum_n, jnp.where(is_here_n, logit_n, picked_n)
                return tuple(x_Zn.at[z].set(x_n) for x_Zn, x_n in zip(so_far, new, strict=True))

            return of_chunks(add_chunk, so_far)

        zeros_Zn = jnp.zeros(targets_Zn.shape, jnp.float32)
        nothing = (zeros_Zn + _NOTHING, zeros_Zn, zeros_Zn)
        max_Zn, sum_Zn, picked_Zn = slices.visit(active.num_chunks, add_slice, nothing)
        if ambient_mesh() is not None:
            all_max_Zn = jax.lax.pmax(max_Zn, _VOCAB_AXIS)
            sum_Zn, max_Zn = sum_Zn * jnp.exp(max_Zn - all_max_Zn), all_max_Zn
        # A target is in the slice of one device alone, and the others have picked 0: their sum is its logit.
        lse_Zn = max_Zn + jnp.log(_sum_over_vocabulary(sum_Zn))
        logprobs_Zn = _sum_over_vocabulary(picked_Zn) - lse_Zn
        return tuple(active.put_back(x_Zn).reshape(targets_BT.shape) for x_Zn in (logprobs_Zn, lse_Zn))

    in_specs = [_HIDDEN, _TABLE, _TOKENS, _TOKENS]
    logprobs_BT, lse_BT = _per_device(local, in_specs, (_TOKENS, _TOKENS))(*arrays)
    return logprobs_BT, (*arrays, lse_BT)


def _logprobs_backward(
    chunk_tokens: int, residuals: Arrays, dlogprobs_BT: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    def local(*arrays: jax.Array) -> Arrays:
        hidden_BTD, unembedding_VD, targets_BT, is_active_BT, lse_BT, dlogprobs_BT = arrays
        active = _ActiveTokens(is_active_BT.reshape(-1), token_chunk(targets_BT.size))
        hidden_ZnD = active.take(hidden_BTD.reshape(targets_BT.size, -1))
        targets_Zn, lse_Zn, dlogprobs_Zn = (active.take(x.reshape(-1)) for x in (targets_BT, lse_BT, dlogprobs_BT))
        slices = _VocabularySlices(unembedding_VD, hidden_BTD.dtype, active, chunk_tokens)

        def add_slice(i: jax.Array, grads: Arrays, of_chunks: Callable[[_Add, Arrays], Arrays]) -> Arrays:
            dhidden_ZnD, dtable_VD = grads
            weights_VD = slices.weights(i)

            def add_chunk(z: jax.Array, grads: Arrays) -> Arrays:
                dhidden_ZnD, dslice_VD = grads
                hidden_nD = hidden_ZnD[z]
                p_nV = jnp.exp(slices.logits(i, weights_VD, hidden_nD) - lse_Zn[z][:, None])
                column_n, is_here_n = slices.column(i, targets_Zn[z])
                onehot_nV = (column_n[:, None] == jnp.arange(slices.size)) & is_here_n[:, None]
                # d log p(target) / d logits = onehot(target) − p
                dlogits_nV = ((onehot_nV - p_nV) * dlogprobs_Zn[z][:, None]).astype(hidden_nD.dtype)
                dhidden_ZnD = dhidden_ZnD.at[z].add(_einsum("nv,vd->nd", dlogits_nV, weights_VD))
                return dhidden_ZnD, dslice_VD + _einsum("nv,nd->vd", dlogits_nV, hidden_nD)

            nothing_VD = jnp.zeros(weights_VD.shape, jnp.float32)
            dhidden_ZnD, dslice_VD = of_chunks(add_chunk, (dhidden_ZnD, nothing_VD))
            # Each device has the gradient of its own tokens at full width; of their sum it keeps its part of the width.
            if slices.are_gathered:
                dslice_VD = jax.lax.psum_scatter(dslice_VD, _WIDTH_AXES, scatter_dimension=1, tiled=True)
            start = slices.start(i)
            so_far_VD = jax.lax.dynamic_slice_in_dim(dtable_VD, start, slices.size)
            return dhidden_ZnD, jax.lax.dynamic_update_slice_in_dim(dtable_VD, so_far_VD + dslice_VD, start, 0)

        zeros = (jnp.zeros(hidden_ZnD.shape, jnp.float32), jnp.zeros(unembedding_VD.shape, jnp.float32))
        dhidden_ZnD, dtable_VD = slices.visit(active.num_chunks, add_slice, zeros)
        # The scatter has summed over `fsdp` and `context`; tokens are split over `data` as well.
        if ambient_mesh() is not None:
            dtable_VD = jax.lax.psum(dtable_VD, "data")
        dhidden_ND = active.put_back(_sum_over_vocabulary(dhidden_ZnD).astype(hidden_BTD.dtype))
        return dhidden_ND.reshape(hidden_BTD.shape), dtable_VD.astype(unembedding_VD.dtype)

    in_specs = [_HIDDEN, _TABLE, _TOKENS, _TOKENS, _TOKENS, _TOKENS]
    dhidden_BTD, dunembedding_VD = _per_device(local, in_specs, (_HIDDEN, _TABLE))(*residuals, dlogprobs_BT)
    return dhidden_BTD, dunembedding_VD, None, None


_logprobs.defvjp(_logprobs_forward, _logprobs_backward)
