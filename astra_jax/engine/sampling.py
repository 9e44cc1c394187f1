"""One token per slot, drawn from its logits.

The draw depends on the slot's key and its position, not on neighbours.

Dimensions: E slots · V vocabulary · N blocks of B tokens each · M likeliest ids.

Decided: docs/decisions/rl.md, “A token is drawn by two uniform numbers”.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

_BLOCK_TOKENS = 128  # one row of a TPU's lanes
_FEW_IDS = 64
"""The largest `top_k` for which no more than this number of ids is sorted."""


@functools.partial(jax.jit, static_argnums=2)
def slot_keys(seed: jax.Array, first_slot: jax.Array, num_slots: int) -> jax.Array:
    """Return one typed PRNG key per slot, [E], beginning with slot `first_slot`."""
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(first_slot + jnp.arange(num_slots))


class Drawn(NamedTuple):
    """A token per slot."""

    ids_E: jax.Array
    logprobs_E: jax.Array
    """Log-probs under the distribution that was drawn from: the kept ids add up to 1."""


def sample_tokens(
    logits_EV: jax.Array,
    keys_E: jax.Array,
    counts_E: jax.Array,
    temperature_E: jax.Array,
    top_k_E: jax.Array,
    top_p_E: jax.Array,
) -> Drawn:
    """Draw a token per slot from softmax(logits / temperature), among the ids that truncation keeps.

    `counts_E` are the tokens of each slot since its prompt: with the slot's key they decide the draw. A `top_k` of 0
    and a `top_p` of 1 are no bounds.

    At temperature 0 the most likely token is taken, and its log-prob is that of the raw policy.
    """
    # Temperatures are traced, so both ways are computed: one program serves every temperature, and none divides by 0.
    is_greedy_E = temperature_E == 0
    divisor_E1 = jnp.where(is_greedy_E, 1.0, temperature_E)[..., None]
    scaled_EV = logits_EV / divisor_E1
    max_E = scaled_EV.max(-1)
    # Folded in anew at each position, not split from step to step: no key depends on how often others have sampled.
    uniform_E2 = jax.vmap(lambda key, count: jax.random.uniform(jax.random.fold_in(key, count), (2,)))(keys_E, counts_E)
    sampled_E, mass_E = _by_inverse_cdf(jnp.exp(scaled_EV - max_E[:, None]), uniform_E2)
    # `argmax` compares pairs one after the other on a CPU; two reductions of numbers take a third of its time.
    ids_V, vocabulary = jnp.arange(scaled_EV.shape[1]), scaled_EV.shape[1]
    likeliest_E = jnp.where(scaled_EV == max_E[:, None], ids_V, vocabulary - 1).min(-1)
    ids_E = jnp.where(is_greedy_E, likeliest_E, sampled_E).astype(jnp.int32)
    slots_E = jnp.arange(len(ids_E))
    logprobs_E = scaled_EV[slots_E, ids_E] - max_E - jnp.log(mass_E)

    # Ids are sorted only if a slot truncates, and no more of them than its `top_k` asks for.
    is_truncated_E = ((top_k_E > 0) | (top_p_E < 1)) & ~is_greedy_E
    is_short_E = is_truncated_E & (top_k_E > 0) & (top_k_E <= _FEW_IDS)
    draw = functools.partial(_draw_truncated, logits_EV, divisor_E1, uniform_E2, top_k_E[:, None], top_p_E[:, None])
    drawn = _redrawn(is_short_E, functools.partial(draw, _FEW_IDS), Drawn(ids_E, logprobs_E))
    return _redrawn(is_truncated_E & ~is_short_E, functools.partial(draw, logits_EV.shape[1]), drawn)


def _redrawn(is_its_E: jax.Array, draw: Callable[[], Drawn], drawn: Drawn) -> Drawn:
    """Return `drawn`, with the tokens of `draw` in some slots; without such slots it is not computed."""
    again = jax.lax.cond(is_its_E.any(), draw, lambda: drawn)
    return Drawn(*(jnp.where(is_its_E, *both) for both in zip(again, drawn, strict=True)))


def _draw_truncated(
    logits_EV: jax.Array,
    divisor_E1: jax.Array,
    uniform_E2: jax.Array,
    top_k_E1: jax.Array,
    top_p_E1: jax.Array,
    most_ids: int,
) -> Drawn:
    """Draw among the ids that truncation keeps of the `most_ids` likeliest."""
    # The lowest of equally likely ids comes first. Each bound keeps a beginning of this order.
    logits_EM, ids_EM = jax.lax.top_k(logits_EV, min(most_ids, logits_EV.shape[1]))
    # Log-probs are relative to the likeliest id, which has exactly 0: no log-prob is above that.
    scaled_EM = (logits_EM - logits_EM[:, :1]) / divisor_E1
    weights_EM = jnp.exp(scaled_EM)
    is_kept_EM = (top_k_E1 == 0) | (jnp.arange(ids_EM.shape[1]) < top_k_E1)
    cumulative_EM = jnp.where(is_kept_EM, weights_EM, 0).cumsum(-1)
    # At 1 no id is cut, even if rounding keeps the running sum from growing.
    is_kept_EM &= (top_p_E1 == 1) | (cumulative_EM - weights_EM < top_p_E1 * cumulative_EM[:, -1:])
    place_E, mass_E = _by_inverse_cdf(jnp.where(is_kept_EM, weights_EM, 0), uniform_E2)
    slots_E = jnp.arange(len(place_E))
    logprobs_E = scaled_EM[slots_E, place_E] - jnp.log(mass_E)
    return Drawn(ids_EM[slots_E, place_E], logprobs_E)


def _by_inverse_cdf(weights_EV: jax.Array, uniform_E2: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw each id as often as its weight says, by two numbers of [0, 1); return ids [E] and the sum of weights [E].

    The first number chooses a block, the second a token of it. One running sum over the whole vocabulary would round
    rare ids away; and a Gumbel number per id, the other way to draw, costs more than the model's own step.
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
    """Return where running sums first exceed a share of their total, strictly: a weight of 0 never wins."""
    return (cumulative_EN > (uniform_E * cumulative_EN[:, -1])[:, None]).argmax(-1)
