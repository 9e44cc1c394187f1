"""The rows of an RL step: the episodes of valid groups, with their advantages on the tokens that were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.rollout import Group
from astra_jax.rl.advantage import group_advantages
from astra_jax.rl.batch_filling import ScoredGroup


class RLBatch(NamedTuple):
    """Right-padded episodes, shifted: column t holds what predicts, and what is known of, the token after token t."""

    tokens_BT: jax.Array
    targets_BT: jax.Array
    loss_mask_BT: jax.Array
    """1 where the target was sampled by the policy."""
    segment_ids_BT: jax.Array
    positions_BT: jax.Array
    """Where each token stands in its episode, also when `context_parallel.balance` has moved it."""
    sampled_logprobs_BT: jax.Array
    advantages_BT: jax.Array
    kept_BTK: jax.Array | np.ndarray | None = None
    """Where the run truncates: the ids that were kept where the target was sampled, then -1."""


def row_tokens(longest_tokens: int, bucket_tokens: int) -> int:
    """Return the columns of a batch whose longest episode has so many tokens.

    >>> row_tokens(513, bucket_tokens=256)
    768
    """
    return -(-longest_tokens // bucket_tokens) * bucket_tokens


def make_rl_batch(
    groups: Sequence[ScoredGroup[Group]], *, length_bucket_tokens: int, pad_id: int, top_k: int | None = None
) -> RLBatch:
    """Lay the episodes of valid groups out as padded rows with their advantages on the tokens that were sampled.

    `top_k` is the run's: of each sampled token so many kept ids at most are laid out, and nothing without it.

    Raises:
        ValueError: a group is degenerate, of another size than the first, or has an episode without a reward; or tokens
            were truncated to other sets than `top_k` allows.
    """
    episodes = [episode for group in groups for episode in group.group]
    sizes = {len(group.rewards) for group in groups} | {len(group.group) for group in groups}
    num_unfinished = sum(episode.is_unfinished for episode in episodes)
    if len(sizes) > 1 or num_unfinished:
        raise ValueError(
            f"expected groups of one size whose episodes have all ended, found sizes {sorted(sizes)} and "
            f"{num_unfinished} episodes that were cut off"
        )
    advantages = np.concatenate([group_advantages(group.rewards) for group in groups])
    longest = max(len(episode.ledger) for episode in episodes)
    # One column more than a bucket: tokens lose the last and targets the first, and the shape is the bucket's.
    columns = row_tokens(longest, length_bucket_tokens) + 1
    shape = (len(episodes), columns)
    tokens = np.full(shape, pad_id, np.int32)
    loss_mask, logprobs = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    segment_ids = np.zeros(shape, np.int32)
    kept = np.full((*shape, top_k or 0), -1, np.int32)
    for row, episode in enumerate(episodes):
        count = len(episode.ledger)
        tokens[row, :count], loss_mask[row, :count] = episode.ledger.ids, episode.ledger.loss_mask
        logprobs[row, :count], segment_ids[row, :count] = episode.ledger.sampled_logprobs, 1
        kept[row, :count][_kept_places(episode.ledger, top_k)] = episode.ledger.kept_ids
    return RLBatch(
        tokens_BT=jnp.asarray(tokens[:, :-1]),
        targets_BT=jnp.asarray(tokens[:, 1:]),
        # Mask, log-prob and advantage are the target's, so they are shifted with it; segment and position are not.
        loss_mask_BT=jnp.asarray(loss_mask[:, 1:]),
        segment_ids_BT=jnp.asarray(segment_ids[:, :-1]),
        positions_BT=jnp.asarray(np.broadcast_to(np.arange(columns - 1, dtype=np.int32), (len(episodes), columns - 1))),
        sampled_logprobs_BT=jnp.asarray(logprobs[:, 1:]),
        advantages_BT=jnp.asarray(loss_mask[:, 1:] * advantages[:, None]),
        # K times as large as the rest: it goes from the host straight to where it belongs.
        kept_BTK=None if top_k is None else kept[:, 1:],
    )


def _kept_places(ledger: TokenLedger, top_k: int | None) -> np.ndarray:
    """Return which of `top_k` places of each token hold a kept id; bool [tokens, K].

    Raises:
        ValueError: a sampled token was not truncated to so many ids.
    """
    counts = np.asarray(ledger.kept_counts, np.int32)
    least, most = (0, 0) if top_k is None else (1, top_k)
    sampled = counts[ledger.loss_mask > 0]
    outside = sampled[(sampled < least) | (sampled > most)]
    if len(outside):
        raise ValueError(
            f"expected from {least} to {most} kept ids of each sampled token, found {outside[0]}: the episode was not "
            "sampled with the truncation that it is learnt from with"
        )
    return np.arange(most) < counts[:, None]
