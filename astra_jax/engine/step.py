"""The engine's three compiled programs, on the cache of `model.kv_cache`.

Dimensions: P prompts · E slots, prompt by prompt · S prompt tokens · T new tokens · D width.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from astra_jax.engine.sampling import sample_tokens
from astra_jax.model.config import ModelConfig
from astra_jax.model.kv_cache import KVCache, extend, last_hidden, prefill
from astra_jax.model.qwen3 import Params, bind


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def prefill_prompts(
    model_config: ModelConfig,
    params: Params,
    prompts_PS: jax.Array,
    counts_P: jax.Array,
    slots_per_prompt: int,
    capacity_tokens: int,
) -> tuple[KVCache, jax.Array]:
    """Read right-padded prompts; return the cache of all slots and the hidden state [P, D] of each last token."""
    qwen3 = bind(model_config, params)
    return prefill(qwen3, prompts_PS, counts_P, episodes_per_prompt=slots_per_prompt, response_capacity=capacity_tokens)


# The cache is donated: it is most of the memory, and its old state is never looked at again.
@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def append_tokens(
    model_config: ModelConfig,
    params: Params,
    cache: KVCache,
    hidden_ED: jax.Array,
    tokens_ET: jax.Array,
    counts_E: jax.Array,
) -> tuple[KVCache, jax.Array]:
    """Append given tokens, right-padded, to some slots; return the cache and each slot's last hidden state [E, D]."""
    cache, hidden_ETD = extend(bind(model_config, params), cache, tokens_ET, counts_E)
    # A slot that was given nothing goes on from the state that it had.
    return cache, jnp.where(counts_E[:, None] > 0, last_hidden(hidden_ETD, counts_E), hidden_ED)


class _Decoding(NamedTuple):
    """What the loop carries from one token to the next."""

    cache: KVCache
    hidden_ED: jax.Array
    """Of each slot's last token: what the next one is sampled from."""
    active_E: jax.Array
    """Whether a slot's message goes on."""
    tokens_ET: jax.Array
    logprobs_ET: jax.Array
    counts_E: jax.Array
    """How many tokens a slot has sampled in this message."""


class Decoded(NamedTuple):
    """One message per slot that ran."""

    cache: KVCache
    hidden_ED: jax.Array
    tokens_ET: jax.Array
    logprobs_ET: jax.Array
    """Under the distribution that was sampled from."""
    counts_E: jax.Array
    """How many tokens of a row were sampled; 0 where the slot did not run."""


# Cache and hidden states are donated: the loop ends with their successors, and nobody asks for the old ones.
@functools.partial(jax.jit, static_argnums=0, static_argnames=("end_id", "max_response_tokens"), donate_argnums=(2, 3))
def decode_messages(
    model_config: ModelConfig,
    params: Params,
    cache: KVCache,
    hidden_ED: jax.Array,
    keys_E: jax.Array,
    running_E: jax.Array,
    temperature: jax.Array,
    *,
    end_id: int,
    max_response_tokens: int,
) -> Decoded:
    """Sample in every running slot until its message has ended, with `end_id`, or the slot is full."""
    qwen3 = bind(model_config, params)
    num_slots = len(hidden_ED)
    rows_E = jnp.arange(num_slots)

    def sample_one(state: _Decoding) -> _Decoding:
        ids_E, logprobs_E = sample_tokens(
            qwen3.logits(state.hidden_ED), keys_E, state.cache.response_counts_E, temperature
        )
        # A slot that has ended writes out of bounds, and `drop` forgets it: no branch, one program for all slots.
        column_E = jnp.where(state.active_E, state.counts_E, max_response_tokens)
        # `end_id` enters the cache as well: a turn's template and tool responses come after it.
        cache, hidden_E1D = extend(qwen3, state.cache, ids_E[:, None], state.active_E.astype(jnp.int32))
        is_full_E = cache.response_counts_E >= max_response_tokens
        return _Decoding(
            cache=cache,
            hidden_ED=jnp.where(state.active_E[:, None], hidden_E1D[:, 0], state.hidden_ED),
            active_E=state.active_E & (ids_E != end_id) & ~is_full_E,
            tokens_ET=state.tokens_ET.at[rows_E, column_E].set(ids_E, mode="drop"),
            logprobs_ET=state.logprobs_ET.at[rows_E, column_E].set(logprobs_E, mode="drop"),
            counts_E=state.counts_E + state.active_E,
        )

    # As wide as a whole response, so that a message always fits and the limit alone decides the shape.
    nothing_sampled = _Decoding(
        cache=cache,
        hidden_ED=hidden_ED,
        active_E=running_E,
        tokens_ET=jnp.zeros((num_slots, max_response_tokens), jnp.int32),
        logprobs_ET=jnp.zeros((num_slots, max_response_tokens), jnp.float32),
        counts_E=jnp.zeros(num_slots, jnp.int32),
    )
    done = jax.lax.while_loop(lambda state: state.active_E.any(), sample_one, nothing_sampled)
    return Decoded(done.cache, done.hidden_ED, done.tokens_ET, done.logprobs_ET, done.counts_E)
