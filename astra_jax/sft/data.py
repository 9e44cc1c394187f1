"""SFT samples: messages rendered to tokens, with loss on the assistant's tokens only.

There is one sample per user turn: the template drops the thinking of earlier turns, so the tokens of turn k are not a
prefix of those of turn k + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from astra_jax.chat.format import Source, segments
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.episodes.tool_mixing import mix_tools
from synthesis.records import Environment, Message, SimilarityBand, ToolDocument

KINDS: Final = ("trajectories", "environments", "conversations")
"""Kinds of samples, named as the config keys of their sources; each kind has a loss of its own in the metrics."""


@dataclass(frozen=True)
class SFTSample:
    """The tokens of one sample, and the mask of those that the assistant said."""

    ids: np.ndarray
    """Token ids, int32 [tokens]."""
    loss_mask: np.ndarray
    """Mask of the assistant's tokens, float32 [tokens]."""
    kind: int = 0
    """Place of the sample's kind in `KINDS`, counted from 1; 0 for any other sample."""


class SFTBatch(NamedTuple):
    """Right-padded rows of one or more samples; `targets[t]` is the token after `tokens[t]` in its sample.

    The arrays are numpy's, on the host, until a step places them on its devices.
    """

    tokens_BT: jax.Array
    targets_BT: jax.Array
    loss_mask_BT: jax.Array
    """Mask: 1 where the assistant said the target, else 0."""
    segment_ids_BT: jax.Array
    """Number of each token's sample in its row, from 1; 0 on padding."""
    positions_BT: jax.Array
    """Position of each token in its sample, also after `context_parallel.balance` has moved the token."""
    kinds_BT: jax.Array
    """Kind of each token's sample, as `SFTSample.kind` counts; 0 on padding."""


def gold_sample(
    environment: Environment,
    tokenizer: Tokenizer,
    *,
    irrelevant_per_band: Mapping[SimilarityBand, int],
    seed: int,
    num_messages: int | None = None,
) -> SFTSample:
    """Return the gold episode of an environment, its tools in seeded order among a few distractors.

    If the user speaks twice, a sample shows the first `num_messages`, up to the last answer to one of these messages.

    Raises:
        ValueError: two of its tools have one name.
    """
    tools = mix_tools(environment, irrelevant_per_band=irrelevant_per_band, seed=seed)
    return render_sample(environment.gold_messages()[:num_messages], [tool.document for tool in tools], tokenizer)


def render_sample(messages: Sequence[Message], tools: Sequence[ToolDocument], tokenizer: Tokenizer) -> SFTSample:
    """Render messages; loss on the assistant messages after the last user message."""
    encoded = tokenizer.encode_segments(segments(messages, tools))
    loss_mask = (encoded.sources == Source.MODEL).astype(np.float32)
    # Earlier turns have samples of their own: here they are without their thinking, as no policy writes them.
    last_question = np.flatnonzero(encoded.sources == Source.PROMPT)[-1]
    loss_mask[:last_question] = 0
    return SFTSample(encoded.ids, loss_mask)


def user_turn_ends(messages: Sequence[Message]) -> list[int]:
    """Return the number of messages of each sample of a conversation: up to the last answer to each user message.

    >>> user, tool = Message(role="user", content="?"), Message(role="tool", content="4")
    >>> assistant = Message(role="assistant", content="!", reasoning_content="so")
    >>> user_turn_ends([user, assistant, tool, assistant, user, assistant, user])
    [4, 6]
    """
    questions = [index for index, message in enumerate(messages) if message.role == "user"]
    ends = []
    for start, stop in zip(questions, [*questions, len(messages)][1:], strict=True):
        spoken = [index for index in range(start, stop) if messages[index].role == "assistant"]
        if spoken:
            ends.append(spoken[-1] + 1)
    return ends


def make_batch(rows: Sequence[Sequence[SFTSample]], *, num_rows: int, row_tokens: int, pad_id: int) -> SFTBatch:
    """Lay the samples of each row one after the other, padded to [num_rows, row_tokens]."""
    shape = num_rows, row_tokens
    tokens_BT, targets_BT = np.full((2, *shape), pad_id, np.int32)
    loss_mask_BT = np.zeros(shape, np.float32)
    segment_ids_BT, kinds_BT = np.zeros((2, *shape), np.int32)
    positions_BT = np.tile(np.arange(row_tokens, dtype=np.int32), (num_rows, 1))
    for row, samples in enumerate(rows):
        start = 0
        for segment, sample in enumerate(samples, start=1):
            stop = start + len(sample.ids)
            tokens_BT[row, start:stop] = sample.ids
            # A sample's last token has no target, least of all the first token of the next sample.
            targets_BT[row, start : stop - 1] = sample.ids[1:]
            loss_mask_BT[row, start : stop - 1] = sample.loss_mask[1:]
            segment_ids_BT[row, start:stop] = segment
            positions_BT[row, start:stop] = np.arange(len(sample.ids))
            kinds_BT[row, start:stop] = sample.kind
            start = stop
    arrays: Any = tokens_BT, targets_BT, loss_mask_BT, segment_ids_BT, positions_BT, kinds_BT
    return SFTBatch(*arrays)
