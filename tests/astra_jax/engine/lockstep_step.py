"""The engine's compiled programs, on the cache of `model.kv_cache`.

Dimensions: P prompts · E slots, prompt by prompt · S prompt tokens · T new tokens · D width.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from astra_jax.engine.sampling import sample_tokens
from astra_jax.model.config import ModelConfig
from astra_jax.model.kv_cache import KVCache, extend, last_hidden, prefill, put_rows, take_rows
from astra_jax.model.qwen3 import Params, bind


class Slots(NamedTuple):
    """All that is known of every slot between two tokens."""

    cache: KVCache
    hidden_ED: jax.Array
    """Of each slot's last token: what the next one is sampled from."""
    keys_E: jax.Array
    """What each slot draws by; they never change."""


@functools.partial(jax.jit, static_argnums=(0, 5))
def prefill_prompts(
    model_config: ModelConfig,
    params: Params,
    prompts_PS: jax.Array,
    counts_P: jax.Array,
    keys_E: jax.Array,
    capacity_tokens: int,
) -> Slots:
    """Read right-padded prompts, each once; return as many slots of each as there are keys for, prompt by prompt."""
    slots_per_prompt = len(keys_E) // len(counts_P)
    cache, hidden_PD = prefill(
        bind(model_config, params),
        prompts_PS,
        counts_P,
        episodes_per_prompt=slots_per_prompt,
        response_capacity=capacity_tokens,
    )
    # The slots of a prompt begin from one state; they part because each samples with a key of its own.
    return Slots(cache, jnp.repeat(hidden_PD, slots_per_prompt, axis=0), keys_E)


# The cache is donated: it is most of the memory, and its old state is never looked at again.
@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def append_tokens(
    model_config: ModelConfig, params: Params, slots: Slots, tokens_ET: jax.Array, counts_E: jax.Array
) -> Slots:
    """Append given tokens, right-padded, to some slots."""
    cache, hidden_ETD = extend(bind(model_config, params), slots.cache, tokens_ET, counts_E)
    # A slot that was given nothing goes on from the state that it had.
    hidden_ED = jnp.where(counts_E[:, None] > 0, last_hidden(hidden_ETD, counts_E), slots.hidden_ED)
    return slots._replace(cache=cache, hidden_ED=hidden_ED)


@jax.jit
def take_slots(slots: Slots, rows_R: jax.Array) -> Slots:
    """Return copies of some slots; a row beyond the last one is padding."""
    hidden_RD, keys_R = (x.at[rows_R].get(mode="clip") for x in (slots.hidden_ED, slots.keys_E))
    return Slots(take_rows(slots.cache, rows_R), hidden_RD, keys_R)


# Donated, so that only the rows which come back are written.
@functools.partial(jax.jit, donate_argnums=0)
def put_slots(slots: Slots, taken: Slots, rows_R: jax.Array) -> Slots:
    """Write slots back to where `take_slots` found them."""
    hidden_ED = slots.hidden_ED.at[rows_R].set(taken.hidden_ED, mode="drop")
    return slots._replace(cache=put_rows(slots.cache, taken.cache, rows_R), hidden_ED=hidden_ED)


class _Decoding(NamedTuple):
    """What the loop carries from one token to the next."""

    slots: Slots
    active_E: jax.Array
    """Whether a slot's message goes on."""
    tokens_ET: jax.Array
    logprobs_ET: jax.Array
    counts_E: jax.Array
    """How many tokens a slot has sampled in this call."""


class Decoded(NamedTuple):
    """What each slot sampled, to the end of its message or up to where the call left off."""

    slots: Slots
    active_E: jax.Array
    """Whether the message goes on."""
    tokens_ET: jax.Array
    logprobs_ET: jax.Array
    """Under the distribution that was sampled from."""
    counts_E: jax.Array
    """How many tokens of a row were sampled; 0 where the slot did not run."""


# Cache and hidden states are donated: the loop ends with their successors, and nobody asks for the old ones.
@functools.partial(jax.jit, static_argnums=0, static_argnames=("end_ids", "max_response_tokens"), donate_argnums=2)
def decode_messages(
    model_config: ModelConfig,
    params: Params,
    slots: Slots,
    running_E: jax.Array,
    temperature: jax.Array,
    leave_at: jax.Array,
    *,
    end_ids: tuple[int, ...],
    max_response_tokens: int,
) -> Decoded:
    """Sample in every running slot until its message has ended, with one of `end_ids`, or the slot is full.

    With `leave_at` > 0 it leaves off as soon as so few messages go on: fewer slots can end them sooner.
    """
    qwen3 = bind(model_config, params)
    num_slots = len(running_E)
    rows_E = jnp.arange(num_slots)

    def sample_one(state: _Decoding) -> _Decoding:
        cache, hidden_ED, keys_E = state.slots
        ids_E, logprobs_E = sample_tokens(qwen3.logits(hidden_ED), keys_E, cache.response_counts_E, temperature)
        # A slot that has ended writes out of bounds, and `drop` forgets it: no branch, one program for all slots.
        column_E = jnp.where(state.active_E, state.counts_E, max_response_tokens)
        # What ends a message enters the cache as well: a turn's template and tool responses come after it.
        cache, hidden_E1D = extend(qwen3, cache, ids_E[:, None], state.active_E.astype(jnp.int32))
        is_full_E = cache.response_counts_E >= max_response_tokens
        return _Decoding(
            slots=Slots(cache, jnp.where(state.active_E[:, None], hidden_E1D[:, 0], hidden_ED), keys_E),
            active_E=state.active_E & ~jnp.isin(ids_E, jnp.array(end_ids)) & ~is_full_E,
            tokens_ET=state.tokens_ET.at[rows_E, column_E].set(ids_E, mode="drop"),
            logprobs_ET=state.logprobs_ET.at[rows_E, column_E].set(logprobs_E, mode="drop"),
            counts_E=state.counts_E + state.active_E,
        )

    # As wide as a whole response, so that a message always fits and the limit alone decides the shape.
    nothing_sampled = _Decoding(
        slots=slots,
        active_E=running_E,
        tokens_ET=jnp.zeros((num_slots, max_response_tokens), jnp.int32),
        logprobs_ET=jnp.zeros((num_slots, max_response_tokens), jnp.float32),
        counts_E=jnp.zeros(num_slots, jnp.int32),
    )
    return Decoded(*jax.lax.while_loop(lambda state: state.active_E.sum() > leave_at, sample_one, nothing_sampled))
