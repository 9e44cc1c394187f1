"""Sampling one token per slot. A token depends on its slot's key and its position alone, never on its neighbours.

Dimensions: E slots · V vocabulary · N blocks of B tokens each.

Decided: docs/decisions/rl.md, “A token is drawn by two uniform numbers”.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

_BLOCK_TOKENS = 128  # one row of a TPU's lanes


@functools.partial(jax.jit, static_argnums=2)
def slot_keys(seed: jax.Array, first_slot: jax.Array, num_slots: int) -> jax.Array:
    """Return one typed PRNG key per slot, [E], from that of slot `first_slot` on."""
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(first_slot + jnp.arange(num_slots))


def sample_tokens(
    logits_EV: jax.Array, keys_E: jax.Array, counts_E: jax.Array, temperature_E: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draw a token per slot from softmax(logits / temperature); return ids [E] and their log-probs [E] there.

    `counts_E` says how many tokens each slot has after its prompt: with the slot's key they decide the draw.

    At temperature 0 the most likely token is taken, and its log-prob is that of the raw policy.
    """
    # Temperatures are traced, so both ways are computed: one program serves every temperature, and none divides by 0.
    is_greedy_E = temperature_E == 0
    scaled_EV = logits_EV / jnp.where(is_greedy_E, 1.0, temperature_E)[..., None]
    max_E = scaled_EV.max(-1)
    # Folded in anew at each position, not split from step to step: no key depends on how often others have sampled.
    uniform_E2 = jax.vmap(lambda key, count: jax.random.uniform(jax.random.fold_in(key, count), (2,)))(keys_E, counts_E)
    sampled_E, mass_E = _by_inverse_cdf(jnp.exp(scaled_EV - max_E[:, None]), uniform_E2)
    ids_E = jnp.where(is_greedy_E, scaled_EV.argmax(-1), sampled_E).astype(jnp.int32)
    return ids_E, scaled_EV[jnp.arange(len(ids_E)), ids_E] - max_E - jnp.log(mass_E)


def _by_inverse_cdf(weights_EV: jax.Array, uniform_E2: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw each id as often as its weight says, by two numbers of [0, 1); return ids [E] and the sum of weights [E].

    The first number chooses a block, the second a token of it. One running sum over the whole vocabulary would round
    away what is rare; and a Gumbel number per token, the other way to draw, costs more than the model's own step.
    """
    num_slots, vocabulary = weights_EV.shape
    blocks_ENB = jnp.pad(weights_EV, ((0, 0), (0, -vocabulary % _BLOCK_TOKENS))).reshape(num_slots, -1, _BLOCK_TOKENS)
    cumulative_EN = blocks_ENB.sum(-1).cumsum(-1)
    block_E = _first_above(cumulative_EN, uniform_E2[:, 0])
    cumulative_EB = blocks_ENB[jnp.arange(num_slots), block_E].cumsum(-1)
    ids_E = block_E * _BLOCK_TOKENS + _first_above(cumulative_EB, uniform_E2[:, 1])
    # The last block may be padded: rounding of sums must not lead beyond the vocabulary.
    return jnp.minimum(ids_E, vocabulary - 1), cumulative_EN[:, -1]


def _first_above(cumulative_EN: jax.Array, uniform_E: jax.Array) -> jax.Array:
    """Return where running sums first exceed a share of their total: never at a weight of 0, since strictly above."""
    return (cumulative_EN > (uniform_E * cumulative_EN[:, -1])[:, None]).argmax(-1)
