"""Sampling one token per slot. A token depends on its slot's key and its position alone, never on its neighbours.

Dimensions: E slots · V vocabulary.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnums=1)
def slot_keys(seed: jax.Array, num_slots: int) -> jax.Array:
    """Return one typed PRNG key per slot, [E]."""
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(num_slots))


def sample_tokens(
    logits_EV: jax.Array, keys_E: jax.Array, counts_E: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draw a token per slot from softmax(logits / temperature); return ids [E] and their log-probs [E] there.

    `counts_E` says how many tokens each slot has after its prompt: with the slot's key they decide the draw.

    At temperature 0 the most likely token is taken, and its log-prob is that of the raw policy.
    """
    # The temperature is traced, so both ways are computed: one program serves every temperature, and none divides by 0.
    is_greedy = temperature == 0
    logprobs_EV = jax.nn.log_softmax(logits_EV / jnp.where(is_greedy, 1.0, temperature))
    # Folded in anew at each position, not split from step to step: no key depends on how often others have sampled.
    keys = jax.vmap(jax.random.fold_in)(keys_E, counts_E)
    sampled_E = jax.vmap(jax.random.categorical)(keys, logprobs_EV)
    ids_E = jnp.where(is_greedy, logprobs_EV.argmax(-1), sampled_E).astype(jnp.int32)
    return ids_E, logprobs_EV[jnp.arange(len(ids_E)), ids_E]
