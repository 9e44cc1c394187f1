"""The oracle of the decode engine: a dense cache, and rounds in which all slots decode until the slowest has ended.

It shares no program with the engine, only the model and how a token is drawn; the same seeds must give the same tokens.

Dimensions: P prompts · E slots, prompt by prompt · S prompt tokens · T new tokens · D width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from astra_jax.engine.sampling import Truncation, sample_tokens, slot_keys
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params, bind
from astra_jax.model.sharding import TPU_LANES
from tests.astra_jax.engine.lockstep_cache import KVCache, extend, last_hidden, prefill


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
    *,
    end_ids: tuple[int, ...],
    max_response_tokens: int,
) -> Decoded:
    """Sample in every running slot until its message has ended, with one of `end_ids`, or the slot is full."""
    qwen3 = bind(model_config, params)
    num_slots = len(running_E)
    rows_E = jnp.arange(num_slots)
    whole = Truncation(rows_E * 0, rows_E * 0 + 1.0, rows_E * 0.0)

    def sample_one(state: _Decoding) -> _Decoding:
        cache, hidden_ED, keys_E = state.slots
        counts_E = cache.response_counts_E
        ids_E, logprobs_E, *_ = sample_tokens(qwen3.logits(hidden_ED), keys_E, counts_E, temperature, whole)
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
    return Decoded(*jax.lax.while_loop(lambda state: state.active_E.any(), sample_one, nothing_sampled))


class DecodeConfig(BaseModel):
    """How slots sample, and how long they get."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    end_ids: tuple[int, ...] = Field(min_length=1)
    """The tokens that end a message."""
    pad_id: int
    temperature: float = Field(ge=0)
    """0 is greedy."""
    max_response_tokens: int = Field(gt=0)
    """Tokens of a slot after its prompt, given ones included."""
    bucket_tokens: int = Field(gt=0)
    """Lengths are padded to multiples of this, so that few shapes are compiled."""


class SampledMessage(NamedTuple):
    """What one slot said, the token that ended it included, and the log-prob of each token."""

    ids: list[int]
    logprobs: list[float]


class LockstepDecoder:
    """All slots of one lot. A round ends when the slowest running slot has ended its message."""

    def __init__(
        self,
        model_config: ModelConfig,
        params: Params,
        prompts: Sequence[Sequence[int]],
        *,
        slots_per_prompt: int,
        seed: int,
        config: DecodeConfig,
        first_slot: int = 0,
    ):
        """Read every prompt once, as token ids; slot e belongs to prompt e // `slots_per_prompt`.

        Slot e draws as slot `first_slot` + e of one decoder that had them all.
        """
        self._model_config, self._params, self._config = model_config, params, config
        bucket = config.bucket_tokens
        # TPU's attention kernel takes whole lanes; elsewhere it is that prompts have few shapes.
        prompt_bucket = math.lcm(bucket, TPU_LANES)
        prompts_PS, counts_P = _right_padded(prompts, prompt_bucket, config.pad_id)
        # Rounded up for the sake of few shapes; a slot is full at `max_response_tokens` all the same.
        capacity_tokens = _round_up(config.max_response_tokens, bucket)
        num_slots = len(prompts) * slots_per_prompt
        keys_E = slot_keys(seed, first_slot, num_slots)
        self._slots = prefill_prompts(model_config, params, prompts_PS, counts_P, keys_E, capacity_tokens)

    def sample_messages(self, slots: Sequence[int]) -> list[SampledMessage]:
        """Let these slots sample one message each; return them in the order asked."""
        running_E = np.zeros(len(self._slots.keys_E), bool)
        running_E[list(slots)] = True
        decoded = decode_messages(
            self._model_config,
            self._params,
            self._slots,
            running_E,
            self._config.temperature,
            end_ids=self._config.end_ids,
            max_response_tokens=self._config.max_response_tokens,
        )
        self._slots = decoded.slots
        tokens, logprobs, counts = (np.asarray(x) for x in decoded[2:])
        return [
            SampledMessage(tokens[slot, : counts[slot]].tolist(), logprobs[slot, : counts[slot]].tolist())
            for slot in slots
        ]

    def append(self, given: Sequence[Sequence[int]]) -> None:
        """Append to each slot the tokens given to it, which may be none: templates and tool responses."""
        if any(given):  # rows of no tokens at all have no shape to compile
            tokens_ET, counts_E = _right_padded(given, self._config.bucket_tokens, self._config.pad_id)
            self._slots = append_tokens(self._model_config, self._params, self._slots, tokens_ET, counts_E)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _right_padded(rows: Sequence[Sequence[int]], bucket_tokens: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    counts = np.array([len(row) for row in rows], np.int32)
    padded = np.full((len(rows), _round_up(int(counts.max()), bucket_tokens)), pad_id, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded, counts
