"""Sequences split over the `context` axis of the mesh so that every shard has the same causal work.

A sequence is cut in 2·n pieces; shard i holds pieces i and 2n−1−i, one cheap and one dear. Every per-token array of a
batch is permuted alike, once, on the host, after targets were shifted; keys are put back in order where they are
gathered.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np


def balanced_order(tokens: int, shards: int) -> np.ndarray:
    """Return which position of the sequence stands at each place of the balanced layout.

    Raises:
        ValueError: the sequence cannot be cut in 2 · `shards` equal pieces.

    >>> balanced_order(8, 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    if tokens % (2 * shards):
        raise ValueError(
            f"a sequence over {shards} context shards needs a multiple of {2 * shards} tokens, found {tokens}"
        )
    pieces = np.arange(tokens, dtype=np.int32).reshape(2 * shards, -1)
    pairs = [(shard, 2 * shards - 1 - shard) for shard in range(shards)]
    return np.concatenate([pieces[piece] for pair in pairs for piece in pair])


def balanced_tokens(tokens: int, shards: int, *, multiple: int = 1) -> int:
    """Return the length to which `balance` pads a row of `tokens`.

    >>> balanced_tokens(74_752, 16, multiple=128)
    77824
    """
    step = 2 * shards * multiple if shards > 1 else multiple
    return -(-tokens // step) * step


def balance(batch: Mapping[str, np.ndarray], shards: int, *, multiple: int = 1) -> dict[str, np.ndarray]:
    """Return a batch of [B, T, …] arrays, padded with zeros to fit the mesh and permuted to the balanced layout.

    The length becomes a multiple of 2 · `shards` · `multiple` (a kernel's block, e.g. 128 on TPU). Zero is padding for
    tokens, segments and loss masks alike. With one shard only the padding happens.
    """

    def place(x_BT: np.ndarray) -> np.ndarray:
        padding = balanced_tokens(x_BT.shape[1], shards, multiple=multiple) - x_BT.shape[1]
        padded_BT = np.pad(x_BT, [(0, 0), (0, padding), *[(0, 0)] * (x_BT.ndim - 2)])
        return padded_BT if shards == 1 else padded_BT[:, balanced_order(padded_BT.shape[1], shards)]

    return {name: place(array) for name, array in batch.items()}


def to_natural_order(x_BT: jax.Array, shards: int) -> jax.Array:
    """Undo the balanced layout along axis 1 by moving whole pieces; `x_BT` may have more axes after it."""
    batch, tokens, *rest = x_BT.shape
    pieces = x_BT.reshape(batch, 2 * shards, tokens // (2 * shards), *rest)
    # Pieces lie as 0, 2n−1, 1, 2n−2, …: the first half at the even places, the second half backwards at the odd ones.
    order = np.concatenate([np.arange(0, 2 * shards, 2), np.arange(2 * shards - 1, 0, -2)])
    return jnp.take(pieces, order, axis=1).reshape(x_BT.shape)
