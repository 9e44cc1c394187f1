"""Penalties: logits that are taken from ids because they stand in the text already.

`presence_penalty` and `frequency_penalty` are OpenAI's and count the tokens of the message. `repetition_penalty` is
CTRL's and HuggingFace's and counts the prompt's, too.

Dimensions: D shards · R rows of a shard · L tokens of a sequence · V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from astra_jax.engine.kv_pages import Rows


class Penalties(NamedTuple):
    """The text of each row, and its penalties."""

    ids_DRL: Rows
    """Tokens so far, then -1."""
    num_given_DR: Rows
    """Tokens before the message."""
    presence_DR: Rows
    frequency_DR: Rows
    repetition_DR: Rows


class SoFar(NamedTuple):
    """The ids in the text of each row."""

    said_RV: jax.Array
    """Times that each id stands in the message, int32."""
    is_given_RV: jax.Array
    """Whether an id stands before the message."""


def so_far(ids_RL: jax.Array, num_given_R: jax.Array, vocab_size: int) -> SoFar:
    """Count the ids in the text of each row.

    >>> said, given = so_far(jnp.array([[2, 0, 2, 2, -1]]), jnp.array([2]), 4)
    >>> said.tolist(), given.tolist()
    ([[0, 0, 2, 0]], [[True, False, True, False]])
    """
    places_L, rows_R1 = jnp.arange(ids_RL.shape[1]), jnp.arange(len(ids_RL))[:, None]
    is_given_RL = places_L < num_given_R[:, None]

    def counted(is_its_RL: jax.Array) -> jax.Array:
        # An id beyond the vocabulary is dropped; -1 would be the last one.
        ids = jnp.where(is_its_RL & (ids_RL >= 0), ids_RL, vocab_size)
        return jnp.zeros((len(ids_RL), vocab_size), jnp.int32).at[rows_R1, ids].add(1, mode="drop")

    return SoFar(counted(~is_given_RL), counted(is_given_RL) > 0)


def and_then(before: SoFar, ids_R: jax.Array, goes_on_R: jax.Array) -> SoFar:
    """Count one more token, in the rows that go on."""
    return before._replace(said_RV=before.said_RV.at[jnp.arange(len(ids_R)), ids_R].add(goes_on_R.astype(jnp.int32)))


def penalized(
    logits_RV: jax.Array, before: SoFar, presence_R: jax.Array, frequency_R: jax.Array, repetition_R: jax.Array
) -> jax.Array:
    """Return the logits that a token is drawn from.

    Repetition comes first, as in vLLM. Penalties of 0, 0 and 1 change no bit of the logits.

    >>> before = so_far(jnp.array([[0, 1, 2, 2]]), jnp.array([1]), 4)
    >>> of_row = lambda x: jnp.array([x])
    >>> penalized(jnp.array([[2.0, 2.0, -2.0, 2.0]]), before, of_row(0.5), of_row(0.25), of_row(2.0)).tolist()
    [[1.0, 0.25, -5.0, 2.0]]
    """
    stands_RV = before.is_given_RV | (before.said_RV > 0)
    repetition_R1 = repetition_R[:, None]
    repeated_RV = jnp.where(logits_RV > 0, logits_RV / repetition_R1, logits_RV * repetition_R1)
    logits_RV = jnp.where(stands_RV, repeated_RV, logits_RV)
    taken_RV = presence_R[:, None] * (before.said_RV > 0) + frequency_R[:, None] * before.said_RV
    return logits_RV - taken_RV
