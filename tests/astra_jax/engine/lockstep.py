"""Slots of one policy that decode together, message by message: a group's prompt is read once and shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from astra_jax.engine.sampling import slot_keys
from astra_jax.engine.step import (
    append_tokens,
    decode_messages,
    prefill_prompts,
    put_slots,
    take_slots,
)
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params
from astra_jax.model.sharding import TPU_LANES, ambient_mesh

_HALVINGS = 3


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
    """All slots of one lot. A round ends when the slowest running slot has ended its message.

    Decided: docs/decisions/rl.md, “Messages decode in as few rows as still go on, in two lots”.
    """

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
        self._sizes = _sizes(num_slots, halvings=0 if is_spread() else _HALVINGS)

    def sample_messages(self, slots: Sequence[int]) -> list[SampledMessage]:
        """Let these slots sample one message each; return them in the order asked."""
        said = {slot: SampledMessage([], []) for slot in slots}
        going_on = list(slots)
        while going_on:
            # In as few rows as hold what goes on: a row that has ended costs as much as one that has not.
            size = min(size for size in self._sizes if size >= len(going_on))
            decoded, rows = self._decode_in(
                size, going_on, leave_at=max((s for s in self._sizes if s < size), default=0)
            )
            # Here the host waits for the devices: tools can run only when all messages are known.
            active, tokens, logprobs, counts = (np.asarray(x) for x in decoded)
            for slot, row in zip(going_on, rows, strict=True):
                said[slot].ids.extend(tokens[row, : counts[row]].tolist())
                said[slot].logprobs.extend(logprobs[row, : counts[row]].tolist())
            going_on = [slot for slot, row in zip(going_on, rows, strict=True) if active[row]]
        return [said[slot] for slot in slots]

    def _decode_in(
        self, size: int, slots: Sequence[int], *, leave_at: int
    ) -> tuple[tuple[jax.Array, ...], Sequence[int]]:
        """Decode these slots in a program of `size` rows; return what came of it, and in which row each slot was."""
        num_slots = self._sizes[0]
        rows_R = np.full(size, num_slots, np.int32)  # beyond the last slot: padding
        rows_R[: len(slots)] = slots
        in_place = size == num_slots
        running_R = np.zeros(size, bool)
        running_R[list(slots) if in_place else slice(len(slots))] = True
        decoded = decode_messages(
            self._model_config,
            self._params,
            self._slots if in_place else take_slots(self._slots, rows_R),
            running_R,
            self._config.temperature,
            leave_at,
            end_ids=self._config.end_ids,
            max_response_tokens=self._config.max_response_tokens,
        )
        self._slots = decoded.slots if in_place else put_slots(self._slots, decoded.slots, rows_R)
        # Without the slots: a copy of some of them ends here, before the next and smaller one is made.
        return decoded[1:], slots if in_place else range(len(slots))

    def append(self, given: Sequence[Sequence[int]]) -> None:
        """Append to each slot the tokens given to it, which may be none: templates and tool responses."""
        if any(given):  # rows of no tokens at all have no shape to compile
            tokens_ET, counts_E = _right_padded(given, self._config.bucket_tokens, self._config.pad_id)
            self._slots = append_tokens(self._model_config, self._params, self._slots, tokens_ET, counts_E)


def is_spread() -> bool:
    """Say whether slots lie over several devices: then each stays where it is, and all of them decode together."""
    mesh = ambient_mesh()
    return mesh is not None and mesh.size > 1


def _sizes(num_slots: int, *, halvings: int) -> list[int]:
    """Return numbers of rows to decode in: all slots, then powers of two, which other lots have as well.

    Each is a program that is compiled once.

    >>> _sizes(64, halvings=3), _sizes(24, halvings=3), _sizes(3, halvings=3), _sizes(64, halvings=0)
    ([64, 32, 16, 8], [24, 16, 8, 4], [3, 2, 1], [64])
    """
    sizes = [num_slots]
    while len(sizes) <= halvings and sizes[-1] > 1:
        sizes.append(1 << (sizes[-1] - 1).bit_length() - 1)
    return sizes


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _right_padded(rows: Sequence[Sequence[int]], bucket_tokens: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    counts = np.array([len(row) for row in rows], np.int32)
    padded = np.full((len(rows), _round_up(int(counts.max()), bucket_tokens)), pad_id, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded, counts
