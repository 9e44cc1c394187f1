"""Slots of one policy that decode together, message by message: a group's prompt is read once and shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from astra_jax.engine.sampling import slot_keys
from astra_jax.engine.step import append_tokens, decode_messages, prefill_prompts
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params
from astra_jax.model.sharding import TPU_LANES, platform


class DecodeConfig(BaseModel):
    """How slots sample, and how long they get."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    end_id: int
    """The token that ends a message."""
    pad_id: int
    temperature: float = Field(ge=0)
    """0 is greedy."""
    max_response_tokens: int = Field(gt=0)
    """Tokens of a slot after its prompt, given ones included."""
    bucket_tokens: int = Field(gt=0)
    """Lengths are padded to multiples of this, so that few shapes are compiled."""


class SampledMessage(NamedTuple):
    """What one slot said, `end_id` included where it came to it, and the log-prob of each token."""

    ids: list[int]
    logprobs: list[float]


class LockstepDecoder:
    """All slots of one rollout. A round ends when the slowest running slot has ended its message."""

    def __init__(
        self,
        model_config: ModelConfig,
        params: Params,
        prompts: Sequence[Sequence[int]],
        *,
        slots_per_prompt: int,
        seed: int,
        config: DecodeConfig,
    ):
        """Read every prompt once, as token ids; slot e belongs to prompt e // `slots_per_prompt`."""
        self._model_config, self._params, self._config = model_config, params, config
        bucket = config.bucket_tokens
        # TPU's attention kernel takes whole lanes.
        prompt_bucket = math.lcm(bucket, TPU_LANES) if platform() == "tpu" else bucket
        prompts_PS, counts_P = _right_padded(prompts, prompt_bucket, config.pad_id)
        # Rounded up for the sake of few shapes; a slot is full at `max_response_tokens` all the same.
        capacity_tokens = _round_up(config.max_response_tokens, bucket)
        self._cache, hidden_PD = prefill_prompts(
            model_config, params, prompts_PS, counts_P, slots_per_prompt, capacity_tokens
        )
        # The slots of a prompt begin from one state; they part because each samples with a key of its own.
        self._hidden_ED = jnp.repeat(hidden_PD, slots_per_prompt, axis=0)
        self._num_slots = len(prompts) * slots_per_prompt
        self._keys_E = slot_keys(seed, self._num_slots)

    def sample_messages(self, slots: Sequence[int]) -> list[SampledMessage]:
        """Let these slots sample one message each; return them in the order asked."""
        # All slots go through the program, asked or not: one shape for a rollout, whoever has stopped.
        running_E = np.zeros(self._num_slots, bool)
        running_E[list(slots)] = True
        decoded = decode_messages(
            self._model_config,
            self._params,
            self._cache,
            self._hidden_ED,
            self._keys_E,
            running_E,
            self._config.temperature,
            end_id=self._config.end_id,
            max_response_tokens=self._config.max_response_tokens,
        )
        self._cache, self._hidden_ED = decoded.cache, decoded.hidden_ED
        # Here the host waits for the devices: tools can run only when all messages are known.
        tokens, logprobs, counts = (np.asarray(x) for x in (decoded.tokens_ET, decoded.logprobs_ET, decoded.counts_E))
        return [SampledMessage(tokens[e, : counts[e]].tolist(), logprobs[e, : counts[e]].tolist()) for e in slots]

    def append(self, given: Sequence[Sequence[int]]) -> None:
        """Append to each slot the tokens given to it, which may be none: templates and tool responses."""
        if any(given):  # rows of no tokens at all have no shape to compile
            tokens_ET, counts_E = _right_padded(given, self._config.bucket_tokens, self._config.pad_id)
            self._cache, self._hidden_ED = append_tokens(
                self._model_config, self._params, self._cache, self._hidden_ED, tokens_ET, counts_E
            )


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _right_padded(rows: Sequence[Sequence[int]], bucket_tokens: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    counts = np.array([len(row) for row in rows], np.int32)
    padded = np.full((len(rows), _round_up(int(counts.max()), bucket_tokens)), pad_id, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded, counts
