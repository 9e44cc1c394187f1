"""The schedule of samples over the rows of all steps: a pure function of their lengths and a seed.

So a step number is the whole data position, and every host of a pod computes the same schedule by itself.

Decided: docs/decisions/sft.md, “A step number is the whole data position”.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from astra_jax.config import ConfigError
from astra_jax.training.packing import pack


class ScheduledBatch(NamedTuple):
    """The batch of one step, by sample index."""

    num_rows: int
    row_tokens: int
    rows: tuple[tuple[int, ...], ...]
    """Samples of each row; the last batch of an epoch may have fewer than `num_rows` rows, the rest is padding."""


def batch_schedule(
    lengths_tokens: Sequence[int],
    *,
    length_buckets: Sequence[int],
    num_rows: Callable[[int], int],
    packing: bool,
    seed: int,
    steps: int | None = None,
    epochs: int | None = None,
) -> list[ScheduledBatch]:
    """Return the batch of each step, for a number of steps or of epochs.

    `num_rows` gives the number of rows of a batch by the tokens of a row. Without packing a batch has samples of one
    length bucket, one a row, so that few shapes are compiled and padding is short. With packing a row has the length of
    the largest bucket and holds as many samples as fit. Samples over the largest bucket are in no batch. Batches of an
    epoch come in random order.

    Raises:
        ConfigError: every sample is longer than the largest bucket.

    >>> options = {"length_buckets": [4, 10], "seed": 0, "epochs": 1}
    >>> for batch in batch_schedule([3, 9, 4, 8], num_rows={4: 2, 10: 1}.get, packing=False, **options):
    ...     print(batch)
    ScheduledBatch(num_rows=2, row_tokens=4, rows=((0,), (2,)))
    ScheduledBatch(num_rows=1, row_tokens=10, rows=((1,),))
    ScheduledBatch(num_rows=1, row_tokens=10, rows=((3,),))
    >>> for batch in batch_schedule([3, 9, 4, 8], num_rows={10: 2}.get, packing=True, **options):
    ...     print(batch)
    ScheduledBatch(num_rows=2, row_tokens=10, rows=((0, 2), (1,)))
    ScheduledBatch(num_rows=2, row_tokens=10, rows=((3,),))
    """
    if not any(length <= length_buckets[-1] for length in lengths_tokens):
        raise ConfigError(
            f"no sample fits the length buckets {list(length_buckets)}: found {len(lengths_tokens)} samples of "
            f"{min(lengths_tokens, default=0)} tokens or more; raise the largest bucket"
        )
    schedule: list[ScheduledBatch] = []
    # Each epoch has draws of its own: the number of epochs changes no earlier batch.
    for epoch in itertools.count() if epochs is None else range(epochs):
        if steps is not None and len(schedule) >= steps:
            break
        rng = random.Random(f"{seed}/{epoch}")
        schedule += _epoch(lengths_tokens, length_buckets, num_rows, packing, rng)
    return schedule[:steps]


def _epoch(
    lengths_tokens: Sequence[int],
    length_buckets: Sequence[int],
    num_rows: Callable[[int], int],
    packing: bool,
    rng: random.Random,
) -> list[ScheduledBatch]:
    # Each sample is in the smallest bucket that holds it; within a bucket the order is random.
    members: dict[int, list[int]] = {}
    shortest = 0
    for bucket in length_buckets:
        members[bucket] = [index for index, length in enumerate(lengths_tokens) if shortest < length <= bucket]
        rng.shuffle(members[bucket])
        shortest = bucket
    rows: dict[int, list[tuple[int, ...]]]
    if packing:
        order = list(itertools.chain.from_iterable(members.values()))
        rng.shuffle(order)
        rows = {length_buckets[-1]: pack(order, lengths_tokens, row_tokens=length_buckets[-1])}
    else:
        rows = {bucket: [(index,) for index in indices] for bucket, indices in members.items()}
    batches = []
    for row_tokens, rows_of_length in rows.items():
        count = num_rows(row_tokens)
        for first in range(0, len(rows_of_length), count):
            batches.append(ScheduledBatch(count, row_tokens, tuple(rows_of_length[first : first + count])))
    rng.shuffle(batches)
    return batches
