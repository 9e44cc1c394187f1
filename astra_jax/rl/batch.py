"""The rows of an RL step: the episodes of valid groups, with advantages on the sampled tokens.

A row has one episode, or several episodes of a group after their prompt, which the row then has once:

    tokens        prompt without its last token │ last token of the prompt, response │ the same token, response │ …
    segment ids                1                │                 2                  │            3             │ …
    prefix ids                 1                │                 1                  │            1             │ …
    positions     0 … P − 2                     │ P − 1 …                            │ P − 1 …                  │ …

The last token of the prompt is repeated, so that every sampled token has a column of its own that predicts it, the
first of a response too. A packed row has several of these, end to end; its segments are numbered on.

Decided: docs/decisions/rl.md, “The prompt of a group is computed once for several episodes”.
Decided: docs/decisions/rl.md, “Packed rows keep the batch's shape, and empty parts are skipped”.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.rollout import Group
from astra_jax.rl.advantage import group_advantages, reward_std
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.training.packing import pack


class RLBatch(NamedTuple):
    """Right-padded rows, shifted by one: the column of a token has the loss's inputs for the token after it."""

    tokens_BT: jax.Array
    targets_BT: jax.Array
    loss_mask_BT: jax.Array
    """Mask: 1 where the policy sampled the target, else 0."""
    segment_ids_BT: jax.Array
    positions_BT: jax.Array
    """Position of each token in its episode, also after `context_parallel.balance` has moved the token."""
    sampled_logprobs_BT: jax.Array
    advantages_BT: jax.Array
    prefix_ids_BT: jax.Array | None = None
    """Segment of the token's prompt; None if each row has one episode."""
    reward_std_BT: jax.Array | None = None
    """Std(R) of the token's group, if the objective asks for it: times the advantage it is R − mean(R)."""
    episode_weights_BT: jax.Array | None = None
    """Mean number of sampled tokens of an episode over that of the token's episode, if the objective asks for it: with
    this factor on the loss each episode weighs the same."""


class Segment(NamedTuple):
    """The tokens `first` … `stop` − 1 of an episode, which are a segment of a row."""

    episode: int
    first: int
    stop: int


class Placed(NamedTuple):
    """A segment in the rows of a batch."""

    row: int
    column: int
    """Column of its first token."""
    segment: Segment


def segments_of_row(ledgers: Mapping[int, TokenLedger]) -> list[Segment]:
    """Return the segments of a row: one episode, or the prompt of several episodes and then the rest of each.

    Raises:
        ValueError: the episodes have several prompts.
    """
    if len(ledgers) == 1:
        return [Segment(episode, 0, len(ledger)) for episode, ledger in ledgers.items()]
    prompts = {tuple(ledger.ids[: ledger.num_prompt_tokens]) for ledger in ledgers.values()}
    if len(prompts) > 1:
        raise ValueError(f"the episodes of a group begin with {len(prompts)} prompts; give them one prompt")
    last = len(prompts.pop()) - 1
    # A prompt is not learnt, so that of any episode serves; the last token of an episode predicts nothing.
    return [
        Segment(min(ledgers), 0, last),
        *(Segment(episode, last, len(ledger) - 1) for episode, ledger in ledgers.items()),
    ]


def segment_starts(lengths_tokens: Sequence[int], *, multiple: int) -> list[int]:
    """Return the first column of each segment of a row, a multiple of `multiple` tokens.

    >>> segment_starts([5, 3, 4], multiple=1), segment_starts([5, 3, 4], multiple=4)
    ([0, 5, 8], [0, 8, 12])
    """
    return list(itertools.accumulate((-(-length // multiple) * multiple for length in lengths_tokens[:-1]), initial=0))


def row_tokens(longest_tokens: int, bucket_tokens: int) -> int:
    """Return the number of columns of a batch whose longest row has `longest_tokens`: a multiple of the bucket.

    >>> row_tokens(513, bucket_tokens=256)
    768
    """
    return -(-longest_tokens // bucket_tokens) * bucket_tokens


def make_rl_batch(
    groups: Sequence[ScoredGroup[Group]],
    *,
    length_bucket_tokens: int,
    pad_id: int,
    episodes_per_row: int = 1,
    segment_multiple: int = 1,
    optional_columns: Collection[str] = (),
    num_rows: int = 0,
    packed_parts: int | None = None,
) -> tuple[RLBatch, list[Placed]]:
    """Lay the episodes of valid groups out as padded rows, with their advantages on the sampled tokens.

    Returns the rows, and the places of the episodes in them, which are numbered through all groups.

    Every segment of a row begins at a multiple of `segment_multiple` tokens. `optional_columns` are the columns that
    the objective asks for. If episodes do not fill `num_rows` rows, rows without loss follow, so that a smaller batch
    has the shape of a whole one. With `packed_parts`, the number of parts in which a batch is computed, a row takes as
    many episodes as fit: they fill the rows of the first parts, and the other rows have no loss.

    Raises:
        ValueError: a group is degenerate, of another size than the first, not a multiple of `episodes_per_row`, or has
            several prompts.
    """
    episodes = [episode for group in groups for episode in group.group]
    sizes = {len(group.rewards) for group in groups} | {len(group.group) for group in groups}
    if len(sizes) > 1:
        raise ValueError(f"the groups have sizes {sorted(sizes)}; pass groups of one size")
    if min(sizes) % episodes_per_row:
        raise ValueError(f"expected groups of a multiple of {episodes_per_row} episodes, found {min(sizes)}")
    advantages = np.concatenate([group_advantages(group.rewards) for group in groups])
    stds = [reward_std(group.rewards) for group in groups for _ in group.rewards]
    counts = [episode.ledger.loss_mask.sum() for episode in episodes]
    mean_tokens = sum(counts) / max(1, np.count_nonzero(counts))
    columns = []
    for episode, advantage, std, count in zip(episodes, advantages, stds, counts, strict=True):
        optional = {"reward_std_BT": std, "episode_weights_BT": mean_tokens / max(1, count)}
        of_sampled = {"advantages_BT": advantage, **{name: optional[name] for name in optional_columns}}
        columns.append(_columns(episode.ledger, of_sampled, pad_id))
    # A bundle is the episodes of one unpacked row. `starts` are the columns of its segments, its span all its columns.
    of_rows = [range(first, first + episodes_per_row) for first in range(0, len(episodes), episodes_per_row)]
    bundles = [segments_of_row({number: episodes[number].ledger for number in of_row}) for of_row in of_rows]
    lengths = [[stop - first for _, first, stop in bundle] for bundle in bundles]
    starts = [segment_starts(of_bundle, multiple=segment_multiple) for of_bundle in lengths]
    spans = [of_bundle[-1] + last[-1] for of_bundle, last in zip(starts, lengths, strict=True)]
    shape = (max(len(bundles), num_rows), row_tokens(max(spans), length_bucket_tokens))
    # Rows by number, each with the first column of each of its bundles.
    rows = {row: {row: 0} for row in range(len(bundles))}
    if packed_parts is not None:
        rows = packed_rows(spans, *shape, packed_parts, multiple=segment_multiple)
    batch = {name: np.full(shape, _padding(name, pad_id), column.dtype) for name, column in columns[0].items()}
    # The positions of padding continue those of a row's last episode.
    batch["positions_BT"][:] = np.arange(shape[1])
    segment_ids, prefix_ids = np.zeros((2, *shape), np.int32)
    placed = []
    for row, begins in rows.items():
        segment = 0
        for bundle, begin in begins.items():
            prompt = segment + 1
            for start, each in zip(starts[bundle], bundles[bundle], strict=True):
                placed.append(Placed(row, begin + start, each))
                places = np.s_[row, begin + start : begin + start + each.stop - each.first]
                for name, column in columns[each.episode].items():
                    batch[name][places] = column[each.first : each.stop]
                segment += 1
                segment_ids[places], prefix_ids[places] = segment, prompt
    # A row without loss is one token of padding, since attention over no token is undefined.
    without_loss = sorted({*range(shape[0])} - rows.keys())
    segment_ids[without_loss, 0] = prefix_ids[without_loss, 0] = 1
    rows_BT = RLBatch(
        segment_ids_BT=jnp.asarray(segment_ids),
        prefix_ids_BT=None if episodes_per_row == 1 else jnp.asarray(prefix_ids),
        **{name: jnp.asarray(array) for name, array in batch.items()},
    )
    return rows_BT, placed


def by_episode(
    logprobs_BT: np.ndarray, episodes: Sequence[Episode], placed: Sequence[Placed]
) -> dict[int, list[float]]:
    """Return the log-probs of the sampled tokens of each episode, by its `id()`, from those of a batch's targets."""
    of_tokens = [np.zeros(len(episode.ledger) + 1) for episode in episodes]
    for row, column, (number, first, stop) in placed:
        # A column predicts the token after its own.
        of_tokens[number][first + 1 : stop + 1] = logprobs_BT[row, column : column + stop - first]
    return {
        id(episode): found[:-1][episode.ledger.loss_mask > 0].tolist()
        for episode, found in zip(episodes, of_tokens, strict=True)
    }


def packed_rows(
    spans_tokens: Sequence[int], num_rows: int, row_tokens: int, parts: int, *, multiple: int = 1
) -> dict[int, dict[int, int]]:
    """Return the bundles of each row, each with its first column; the longest bundles are placed first.

    Part i of a batch has the rows i, i + parts, …. Rows are dealt out part after part, so that the first parts are full
    and the last have none.

    >>> packed_rows([3, 4, 2, 5], num_rows=4, row_tokens=6, parts=2)
    {0: {3: 0}, 2: {1: 0, 2: 4}, 1: {0: 0}}
    """
    # The next bundle begins at a multiple; a bundle that fills a row has none after it.
    room = [min(-(-span // multiple) * multiple, row_tokens) for span in spans_tokens]
    rows = {}
    longest_first = sorted(range(len(room)), key=lambda bundle: -room[bundle])
    for number, bundles in enumerate(pack(longest_first, room, row_tokens=row_tokens)):
        part, place = divmod(number, num_rows // parts)
        begins = itertools.accumulate((room[bundle] for bundle in bundles[:-1]), initial=0)
        rows[place * parts + part] = dict(zip(bundles, begins, strict=True))
    return rows


def _padding(name: str, pad_id: int) -> int:
    return {"tokens_BT": pad_id, "targets_BT": pad_id}.get(name, 0)


def _columns(ledger: TokenLedger, of_sampled: Mapping[str, float], pad_id: int) -> dict[str, np.ndarray]:
    """Return the columns of an episode's tokens; those of the target, and of sampled ones, are shifted by one."""
    ids = np.asarray(ledger.ids, np.int32)
    of_targets = {
        "targets_BT": ids,
        "loss_mask_BT": ledger.loss_mask,
        "sampled_logprobs_BT": np.asarray(ledger.sampled_logprobs, np.float32),
        **{name: ledger.loss_mask * np.float32(value) for name, value in of_sampled.items()},
    }
    shifted = {
        name: np.concatenate([x[1:], np.full_like(x[:1], _padding(name, pad_id))]) for name, x in of_targets.items()
    }
    return {"tokens_BT": ids, "positions_BT": np.arange(len(ids), dtype=np.int32), **shifted}
