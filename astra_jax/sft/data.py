"""SFT samples: conversations and gold episodes rendered to tokens, with loss on what the assistant says, only there.

One sample per user turn: the template drops the thinking of earlier turns, so what a model reads in turn k is not a
prefix of what it reads in turn k + 1. A sample over the length limit is dropped and counted, never cut.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.chat_format import Source, segments
from astra_jax.rl.tool_mixing import mix_tools
from astra_jax.tokenizer import Tokenizer
from synthesis.records import Environment, Message, ToolDocument, Trajectory


@dataclass(frozen=True)
class SFTSample:
    """The tokens of one sample and which of them the assistant said."""

    ids: np.ndarray
    """int32 [tokens]"""
    loss_mask: np.ndarray
    """float32 [tokens], 1 where the assistant speaks"""


class SFTBatch(NamedTuple):
    """Right-padded rows; `targets[t]` is the token after `tokens[t]`."""

    tokens_BT: jax.Array
    targets_BT: jax.Array
    loss_mask_BT: jax.Array
    """1 where the target was said by the assistant."""
    segment_ids_BT: jax.Array
    """1 on tokens, 0 on padding."""
    positions_BT: jax.Array
    """Where each token stands in its sample, also when `context_parallel.balance` has moved it."""


def trajectory_samples(trajectory: Trajectory, tokenizer: Tokenizer) -> Iterator[SFTSample]:
    """Yield one sample per user turn of a conversation."""
    for end in _user_turn_ends(trajectory.messages):
        yield render_sample(trajectory.messages[:end], trajectory.tools, tokenizer)


def gold_sample(environment: Environment, tokenizer: Tokenizer, *, irrelevant_per_band: int, seed: int) -> SFTSample:
    """Return the gold episode of an environment, its tools in seeded order among a few distractors."""
    bands = dict.fromkeys(("high", "medium", "low"), irrelevant_per_band)
    tools = mix_tools(environment, max_per_band=bands, seed=seed)  # type: ignore[arg-type]
    return render_sample(environment.gold_messages(), [tool.document for tool in tools], tokenizer)


def render_sample(messages: Sequence[Message], tools: Sequence[ToolDocument], tokenizer: Tokenizer) -> SFTSample:
    """Render messages; loss on the assistant messages after the last user message."""
    encoded = tokenizer.encode_segments(segments(messages, tools))
    loss_mask = (encoded.sources == Source.MODEL).astype(np.float32)
    last_question = np.flatnonzero(encoded.sources == Source.PROMPT)[-1]
    loss_mask[:last_question] = 0
    return SFTSample(encoded.ids, loss_mask)


def _user_turn_ends(messages: Sequence[Message]) -> list[int]:
    """Index after the last assistant message of each user turn that has one."""
    questions = [index for index, message in enumerate(messages) if message.role == "user"]
    ends = []
    for start, stop in zip(questions, [*questions, len(messages)][1:], strict=True):
        spoken = [index for index in range(start, stop) if messages[index].role == "assistant"]
        if spoken:
            ends.append(spoken[-1] + 1)
    return ends


def split_by_length(samples: Iterable[SFTSample], max_tokens: int) -> tuple[list[SFTSample], int]:
    """Return the samples of at most `max_tokens` tokens, and how many were longer."""
    samples = list(samples)
    kept = [sample for sample in samples if len(sample.ids) <= max_tokens]
    return kept, len(samples) - len(kept)


def batch_schedule(
    lengths_tokens: Sequence[int],
    *,
    length_buckets: Sequence[int],
    batch_tokens: int,
    steps: int,
    seed: int,
    short_first_epochs: int,
) -> list[list[int]]:
    """Return the sample indices of each step: a pure function, so that a step number is the whole data position.

    A batch holds samples of one length bucket, as many as fill `batch_tokens`, so that few shapes are compiled and
    little is padding. Batches of an epoch come in random order; in the first `short_first_epochs` epochs from short to
    long.

    >>> batch_schedule([3, 9, 4, 8], length_buckets=[4, 10], batch_tokens=8, steps=3, seed=0, short_first_epochs=1)
    [[0, 2], [1], [3]]
    """
    schedule: list[list[int]] = []
    epoch = 0
    while len(schedule) < steps:
        rng = random.Random(f"{seed}/{epoch}")
        batches: list[list[int]] = []
        shortest = 0
        for bucket in length_buckets:
            members = [i for i, length in enumerate(lengths_tokens) if shortest < length <= bucket]
            rng.shuffle(members)
            rows = rows_per_batch(batch_tokens, bucket)
            batches.extend(members[first : first + rows] for first in range(0, len(members), rows))
            shortest = bucket
        if not batches:
            raise ValueError(f"no sample fits the length buckets {list(length_buckets)}; raise the largest")
        if epoch >= short_first_epochs:
            rng.shuffle(batches)
        schedule.extend(batches)
        epoch += 1
    return schedule[:steps]


def rows_per_batch(batch_tokens: int, bucket: int) -> int:
    """How many rows of a length bucket fill a batch."""
    return max(1, batch_tokens // bucket)


def make_batch(
    samples: Sequence[SFTSample], *, length_buckets: Sequence[int], batch_tokens: int, pad_id: int
) -> SFTBatch:
    """Pad the samples of one step to their bucket's shape; rows that are missing are padding."""
    longest = max(len(sample.ids) for sample in samples)
    bucket = next(bucket for bucket in length_buckets if longest <= bucket)
    rows = rows_per_batch(batch_tokens, bucket)
    tokens = np.full((rows, bucket + 1), pad_id, np.int32)
    loss_mask = np.zeros((rows, bucket + 1), np.float32)
    segment_ids = np.zeros((rows, bucket + 1), np.int32)
    for row, sample in enumerate(samples):
        count = len(sample.ids)
        tokens[row, :count], loss_mask[row, :count], segment_ids[row, :count] = sample.ids, sample.loss_mask, 1
    return SFTBatch(
        tokens_BT=jnp.asarray(tokens[:, :-1]),
        targets_BT=jnp.asarray(tokens[:, 1:]),
        loss_mask_BT=jnp.asarray(loss_mask[:, 1:]),
        segment_ids_BT=jnp.asarray(segment_ids[:, :-1]),
        positions_BT=jnp.asarray(np.broadcast_to(np.arange(bucket, dtype=np.int32), (rows, bucket))),
    )
