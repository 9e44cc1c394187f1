"""Log-probabilities of target tokens without the logits: [tokens, V] never exists whole, forward or backward.

log p(target) = hidden · unembedding[target] − logsumexp_v(hidden · unembedding[v]), a slice of the vocabulary at a
time. The float32 log-sum-exp is the only residual; the backward pass computes each slice's logits again. Under a mesh
every device keeps its own tokens, the vocabulary is split over `tensor`, and a slice of the unembedding is gathered
over the axes that store its width just before it is needed, so it is never whole anywhere either.

Where a token was drawn from a few ids alone, `kept_logprobs` needs the logits of these and of no others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from astra_jax.model.sharding import LOGICAL_TO_MESH, ambient_mesh, spec

_LANES = 128
_NOTHING = -1e30
"""The logit of a row that another slice already counted: finite, and zero after exp."""

_WIDTH_AXES = LOGICAL_TO_MESH["embed"]
_VOCAB_AXIS = LOGICAL_TO_MESH["vocab"]


def token_logprobs(
    hidden_BTD: jax.Array, unembedding_VD: jax.Array, targets_BT: jax.Array, *, chunk_tokens: int = 256
) -> jax.Array:
    """Return the float32 log-probability [B, T] of each target under softmax(hidden · unembeddingᵀ).

    It is differentiable in both arrays.

    A device holds as many logits at once as `chunk_tokens` tokens have, however many tokens there are. For the
    log-probabilities at a sampling temperature τ pass `hidden_BTD / τ`.
    """
    return _logprobs(chunk_tokens, hidden_BTD, unembedding_VD, targets_BT)


_HIDDEN = spec("batch", "sequence", "hidden")
_TOKENS = spec("batch", "sequence")
_TABLE = spec("vocab", "embed")


def _per_device(local: Callable, in_specs: list, out_specs: object) -> Callable:
    """Runs `local` on each device's share; as it is when there is no mesh."""
    if ambient_mesh() is None:
        return local
    return jax.shard_map(local, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=False)


def _sum_over_vocabulary(x: jax.Array) -> jax.Array:
    return x if ambient_mesh() is None else jax.lax.psum(x, _VOCAB_AXIS)


class _VocabularySlices:
    """This device's rows of the unembedding, `size` at a time; the last slice overlaps the one before it."""

    def __init__(self, hidden_ND: jax.Array, unembedding_VD: jax.Array, chunk_tokens: int) -> None:
        rows = len(unembedding_VD)
        self.table_VD = unembedding_VD
        self.dtype = hidden_ND.dtype
        # All tokens meet one slice of the vocabulary: as many logits as `chunk_tokens` have with all, in whole lanes.
        self.size = min(rows, max(_LANES, chunk_tokens * rows // len(hidden_ND) // _LANES * _LANES))
        self.count = -(-rows // self.size)
        self.first_row = 0 if ambient_mesh() is None else jax.lax.axis_index(_VOCAB_AXIS) * rows

    def start(self, i: jax.Array) -> jax.Array:
        return jnp.minimum(i * self.size, len(self.table_VD) - self.size)

    def weights(self, i: jax.Array) -> jax.Array:
        """The slice at full width, in the dtype of the products."""
        slice_VD = jax.lax.dynamic_slice_in_dim(self.table_VD, self.start(i), self.size).astype(self.dtype)
        if ambient_mesh() is None:
            return slice_VD
        return jax.lax.all_gather(slice_VD, _WIDTH_AXES, axis=1, tiled=True)

    def logits(self, i: jax.Array, hidden_ND: jax.Array, weights_VD: jax.Array | None = None) -> jax.Array:
        weights_VD = self.weights(i) if weights_VD is None else weights_VD
        logits_NV = jnp.einsum("nd,vd->nv", hidden_ND, weights_VD, preferred_element_type=jnp.float32)
        if len(self.table_VD) % self.size == 0:
            return logits_NV
        is_new_V = self.start(i) + jnp.arange(self.size) >= i * self.size
        return jnp.where(is_new_V, logits_NV, _NOTHING)

    def column(self, i: jax.Array, targets_N: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Where each target stands in the slice, and whether it does."""
        column_N = targets_N - self.first_row - self.start(i)
        is_here_N = (column_N >= 0) & (column_N < self.size) & (column_N + self.start(i) >= i * self.size)
        return column_N, is_here_N

    def logsumexp_and_picked(self, hidden_ND: jax.Array, targets_N: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Log-sum-exp over the whole vocabulary of all devices, and the logit of each target."""

        def add(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            max_N, sum_N, picked_N = carry
            logits_NV = self.logits(i, hidden_ND)
            # The sum under the old maximum is rescaled to the new one, so no exponential overflows.
            new_max_N = jnp.maximum(max_N, logits_NV.max(-1))
            sum_N = sum_N * jnp.exp(max_N - new_max_N) + jnp.exp(logits_NV - new_max_N[:, None]).sum(-1)
            column_N, is_here_N = self.column(i, targets_N)
            logit_N = jnp.take_along_axis(logits_NV, jnp.clip(column_N, 0, self.size - 1)[:, None], axis=1)[:, 0]
            return new_max_N, sum_N, jnp.where(is_here_N, logit_N, picked_N)

        zeros_N = jnp.zeros(len(hidden_ND), jnp.float32)
        max_N, sum_N, picked_N = jax.lax.fori_loop(0, self.count, add, (zeros_N + _NOTHING, zeros_N, zeros_N))
        if ambient_mesh() is not None:
            all_max_N = jax.lax.pmax(max_N, _VOCAB_AXIS)
            sum_N, max_N = sum_N * jnp.exp(max_N - all_max_N), all_max_N
        # A target is in the slice of one device alone, and the others have picked 0: their sum is its logit.
        return max_N + jnp.log(_sum_over_vocabulary(sum_N)), _sum_over_vocabulary(picked_N)


class _Residuals(NamedTuple):
    """The forward pass as its gradient needs it."""

    hidden_BTD: jax.Array
    unembedding_VD: jax.Array
    targets_BT: jax.Array
    lse_BT: jax.Array
    """Log-sum-exp of each token's logits, from which its probabilities are made again."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(chunk_tokens: int, hidden_BTD: jax.Array, unembedding_VD: jax.Array, targets_BT: jax.Array) -> jax.Array:
    return _logprobs_forward(chunk_tokens, hidden_BTD, unembedding_VD, targets_BT)[0]


def _logprobs_forward(
    chunk_tokens: int, hidden_BTD: jax.Array, unembedding_VD: jax.Array, targets_BT: jax.Array
) -> tuple[jax.Array, _Residuals]:
    def local(hidden_BTD: jax.Array, unembedding_VD: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
        slices = _VocabularySlices(hidden_ND, unembedding_VD, chunk_tokens)
        lse_N, picked_N = slices.logsumexp_and_picked(hidden_ND, targets_BT.reshape(-1))
        return (picked_N - lse_N).reshape(targets_BT.shape), lse_N.reshape(targets_BT.shape)

    arrays = (hidden_BTD, unembedding_VD, targets_BT)
    logprobs_BT, lse_BT = _per_device(local, [_HIDDEN, _TABLE, _TOKENS], (_TOKENS, _TOKENS))(*arrays)
    return logprobs_BT, _Residuals(*arrays, lse_BT)


def _logprobs_backward(
    chunk_tokens: int, residuals: _Residuals, dlogprobs_BT: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)

    def local(
        hidden_BTD: jax.Array,
        unembedding_VD: jax.Array,
        targets_BT: jax.Array,
        lse_BT: jax.Array,
        dlogprobs_BT: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
        targets_N, lse_N, dlogprobs_N = (x.reshape(-1) for x in (targets_BT, lse_BT, dlogprobs_BT))
        slices = _VocabularySlices(hidden_ND, unembedding_VD, chunk_tokens)

        def add(i: jax.Array, grads: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            dhidden_ND, dtable_VD = grads
            weights_VD = slices.weights(i)
            p_NV = jnp.exp(slices.logits(i, hidden_ND, weights_VD) - lse_N[:, None])
            column_N, is_here_N = slices.column(i, targets_N)
            onehot_NV = (column_N[:, None] == jnp.arange(slices.size)) & is_here_N[:, None]
            # d log p(target) / d logits = onehot(target) − p
            dlogits_NV = ((onehot_NV - p_NV) * dlogprobs_N[:, None]).astype(hidden_ND.dtype)
            dhidden_ND += einsum("nv,vd->nd", dlogits_NV, weights_VD)
            dslice_VD = einsum("nv,nd->vd", dlogits_NV, hidden_ND)
            # Of its own tokens each device has the gradient at full width; of the sum it keeps its part of the width.
            if ambient_mesh() is not None:
                dslice_VD = jax.lax.psum_scatter(dslice_VD, _WIDTH_AXES, scatter_dimension=1, tiled=True)
            start = slices.start(i)
            so_far_VD = jax.lax.dynamic_slice_in_dim(dtable_VD, start, slices.size)
            return dhidden_ND, jax.lax.dynamic_update_slice_in_dim(dtable_VD, so_far_VD + dslice_VD, start, 0)

        zeros = (jnp.zeros(hidden_ND.shape, jnp.float32), jnp.zeros(unembedding_VD.shape, jnp.float32))
        dhidden_ND, dtable_VD = jax.lax.fori_loop(0, slices.count, add, zeros)
        # The scatter has summed over `fsdp` and `context`; tokens are split over `data` as well.
        if ambient_mesh() is not None:
            dtable_VD = jax.lax.psum(dtable_VD, "data")
        dhidden_ND = _sum_over_vocabulary(dhidden_ND).astype(hidden_BTD.dtype)
        return dhidden_ND.reshape(hidden_BTD.shape), dtable_VD.astype(unembedding_VD.dtype)

    in_specs = [_HIDDEN, _TABLE, _TOKENS, _TOKENS, _TOKENS]
    dhidden_BTD, dunembedding_VD = _per_device(local, in_specs, (_HIDDEN, _TABLE))(*residuals, dlogprobs_BT)
    return dhidden_BTD, dunembedding_VD, None


_logprobs.defvjp(_logprobs_forward, _logprobs_backward)


def kept_logprobs(
    hidden_BTD: jax.Array, unembedding_VD: jax.Array, targets_BT: jax.Array, kept_BTK: jax.Array, *, chunk_tokens: int
) -> jax.Array:
    """Return the float32 log-probability [B, T] of each target among the ids kept for it: softmax over these alone.

    Kept ids are followed by -1; where there are none the log-probability is 0. It is differentiable in `hidden_BTD` and
    `unembedding_VD`. A device holds as many rows of the unembedding at once as `chunk_tokens` tokens have kept.
    """
    logits_BTK = _kept_logits(chunk_tokens, hidden_BTD, unembedding_VD, kept_BTK)

    def logsumexp_BT(is_counted_BTK: jax.Array) -> jax.Array:
        return jax.nn.logsumexp(jnp.where(is_counted_BTK, logits_BTK, _NOTHING), axis=-1)

    return logsumexp_BT(kept_BTK == targets_BT[..., None]) - logsumexp_BT(kept_BTK >= 0)


def _exchanged(hidden_BTD: jax.Array, table_VD: jax.Array, kept_BTK: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the hidden states that meet this device's part of the table, and which row of it each kept id is.

    No row travels: each device has its slice of the width of the tokens of all devices that hold another, as in
    `embed_tokens`. An id that is in no row here, or none at all, is one beyond the last.
    """
    num_tokens = kept_BTK.shape[0] * kept_BTK.shape[1]
    hidden_ND, row_NK = hidden_BTD.reshape(num_tokens, -1), kept_BTK.reshape(num_tokens, -1)
    if ambient_mesh() is not None:
        hidden_ND = jax.lax.all_to_all(hidden_ND, _WIDTH_AXES, split_axis=1, concat_axis=0, tiled=True)
        row_NK = jax.lax.all_gather(row_NK, _WIDTH_AXES, axis=0, tiled=True)
        row_NK = jnp.where(row_NK >= 0, row_NK - jax.lax.axis_index(_VOCAB_AXIS) * len(table_VD), -1)
    return hidden_ND, jnp.where((row_NK >= 0) & (row_NK < len(table_VD)), row_NK, len(table_VD))


def _rows(table_VD: jax.Array, row_NK: jax.Array, dtype: DTypeLike) -> jax.Array:
    return jnp.take(table_VD, row_NK, axis=0, mode="fill", fill_value=0).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _kept_logits(chunk_tokens: int, hidden_BTD: jax.Array, unembedding_VD: jax.Array, kept_BTK: jax.Array) -> jax.Array:
    return _kept_logits_forward(chunk_tokens, hidden_BTD, unembedding_VD, kept_BTK)[0]


def _kept_logits_forward(
    chunk_tokens: int, hidden_BTD: jax.Array, unembedding_VD: jax.Array, kept_BTK: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    def local(hidden_BTD: jax.Array, table_VD: jax.Array, kept_BTK: jax.Array) -> jax.Array:
        def logits_K(token: tuple[jax.Array, jax.Array]) -> jax.Array:
            hidden_D, row_K = token
            rows_KD = _rows(table_VD, row_K, hidden_D.dtype)
            return jnp.einsum("d,kd->k", hidden_D, rows_KD, preferred_element_type=jnp.float32)

        tokens = _exchanged(hidden_BTD, table_VD, kept_BTK)
        logits_NK = _sum_over_vocabulary(jax.lax.map(logits_K, tokens, batch_size=chunk_tokens))
        if ambient_mesh() is not None:
            logits_NK = jax.lax.psum_scatter(logits_NK, _WIDTH_AXES, scatter_dimension=0, tiled=True)
        return logits_NK.reshape(kept_BTK.shape)

    arrays = (hidden_BTD, unembedding_VD, kept_BTK)
    return _per_device(local, [_HIDDEN, _TABLE, _TOKENS], _TOKENS)(*arrays), arrays


def _kept_logits_backward(
    chunk_tokens: int, residuals: tuple[jax.Array, jax.Array, jax.Array], dlogits_BTK: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)

    def local(
        hidden_BTD: jax.Array, table_VD: jax.Array, kept_BTK: jax.Array, dlogits_BTK: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        hidden_ND, row_NK = _exchanged(hidden_BTD, table_VD, kept_BTK)
        dlogits_NK = dlogits_BTK.reshape(-1, dlogits_BTK.shape[-1])
        if ambient_mesh() is not None:
            dlogits_NK = jax.lax.all_gather(dlogits_NK, _WIDTH_AXES, axis=0, tiled=True)

        def add(dtable_VD: jax.Array, tokens: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            hidden_nD, row_nK, dlogits_nK = tokens
            dhidden_nD = einsum("nk,nkd->nd", dlogits_nK, _rows(table_VD, row_nK, hidden_nD.dtype))
            drows_nKD = einsum("nk,nd->nkd", dlogits_nK, hidden_nD)
            return dtable_VD.at[row_nK].add(drows_nKD, mode="drop"), dhidden_nD

        size = min(chunk_tokens, len(hidden_ND))
        # A token of padding has no row here.
        padding = [(0, -len(hidden_ND) % size), (0, 0)]
        chunks = [
            jnp.pad(x_N, padding, constant_values=nothing).reshape(-1, size, x_N.shape[-1])
            for x_N, nothing in ((hidden_ND, 0), (row_NK, len(table_VD)), (dlogits_NK.astype(hidden_ND.dtype), 0))
        ]
        dtable_VD, dhidden_MnD = jax.lax.scan(add, jnp.zeros(table_VD.shape, jnp.float32), tuple(chunks))
        dhidden_ND = _sum_over_vocabulary(dhidden_MnD.reshape(-1, hidden_ND.shape[1])[: len(hidden_ND)])
        if ambient_mesh() is not None:
            dhidden_ND = jax.lax.all_to_all(dhidden_ND, _WIDTH_AXES, split_axis=0, concat_axis=1, tiled=True)
            # The exchange has brought together the tokens of `fsdp` and `context`; they are split over `data` as well.
            dtable_VD = jax.lax.psum(dtable_VD, "data")
        return dhidden_ND.reshape(hidden_BTD.shape).astype(hidden_BTD.dtype), dtable_VD.astype(table_VD.dtype)

    in_specs = [_HIDDEN, _TABLE, _TOKENS, _TOKENS]
    return *_per_device(local, in_specs, (_HIDDEN, _TABLE))(*residuals, dlogits_BTK), None


_kept_logits.defvjp(_kept_logits_forward, _kept_logits_backward)
