"""Every sample stands in one row of every epoch, and a step's batch depends on nothing but lengths, layout and seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.sft.config import SFTDataConfig
from astra_jax.sft.schedule import ScheduledBatch, batch_schedule, pack

BUCKETS = [4, 9, 20]


def rows_of(batch_tokens: int) -> Callable[[int], int]:
    return a_config(batch_tokens=batch_tokens).num_rows


def a_config(**batch: int) -> SFTDataConfig:
    return SFTDataConfig(seed=0, steps=1, length_buckets=BUCKETS, **batch)


def test_a_batch_has_so_many_tokens_or_so_many_rows():
    assert a_config(batch_tokens=50).batch_shapes == [(12, 4), (5, 9), (2, 20)]
    assert a_config(batch_tokens=1).batch_shapes == [(1, 4), (1, 9), (1, 20)]
    assert a_config(batch_rows=3).batch_shapes == [(3, 4), (3, 9), (3, 20)]
    for batch in ({}, {"batch_tokens": 50, "batch_rows": 3}):
        with pytest.raises(ValueError, match="set either batch_tokens or batch_rows"):
            a_config(**batch)


def samples_of(batches: list[ScheduledBatch]) -> list[int]:
    return [sample for batch in batches for row in batch.rows for sample in row]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 23), min_size=1, max_size=25).filter(lambda lengths: min(lengths) <= 20),
    batch_tokens=st.integers(1, 60),
    packing=st.booleans(),
    seed=st.integers(0, 3),
    steps=st.integers(1, 40),
)
def test_every_epoch_sees_every_sample_once(lengths, batch_tokens, packing, seed, steps):
    def schedule(**until: int) -> list[ScheduledBatch]:
        return batch_schedule(
            lengths,
            length_buckets=BUCKETS,
            num_rows=rows_of(batch_tokens),
            packing=packing,
            seed=seed,
            **until,
        )

    short_enough = Counter(index for index, length in enumerate(lengths) if length <= BUCKETS[-1])
    end = 0
    for epochs in range(1, 4):
        batches = schedule(epochs=epochs)[end:]
        end += len(batches)
        assert Counter(samples_of(batches)) == short_enough
        for batch in batches:
            assert 1 <= len(batch.rows) <= batch.num_rows == rows_of(batch_tokens)(batch.row_tokens)
            for row in batch.rows:
                assert sum(lengths[index] for index in row) <= batch.row_tokens
                assert packing or len(row) == 1
    # A step number is the whole data position: a run of more steps begins as a run of fewer did.
    longer = schedule(epochs=40)
    assert schedule(steps=steps) == longer[:steps]


def test_a_sample_is_padded_to_the_smallest_bucket_that_holds_it():
    lengths = list(range(1, 21))
    options = {"packing": False, "seed": 0, "epochs": 1}
    for batch in batch_schedule(lengths, length_buckets=BUCKETS, num_rows=rows_of(40), **options):
        for (index,) in batch.rows:
            assert batch.row_tokens == next(bucket for bucket in BUCKETS if lengths[index] <= bucket)


@pytest.mark.parametrize("packing", [False, True])
def test_epochs_and_seeds_differ_in_their_order(packing):
    options = {"length_buckets": [8], "num_rows": rows_of(8), "packing": packing}
    once = batch_schedule([4] * 12, seed=0, epochs=1, **options)
    both = batch_schedule([4] * 12, seed=0, epochs=2, **options)
    other_seed = batch_schedule([4] * 12, seed=1, epochs=1, **options)
    assert both[: len(once)] == once
    assert samples_of(once) != samples_of(both[len(once) :])
    assert samples_of(once) != samples_of(other_seed)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 10), max_size=300))
def test_at_most_one_row_of_few_packed_ones_is_not_half_full(lengths):
    """First fit's promise as long as all rows are open: two rows with half their room left would be one."""
    rows = pack(range(len(lengths)), lengths, row_tokens=10)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    filled = [sum(lengths[index] for index in row) for row in rows]
    assert all(tokens <= 10 for tokens in filled)
    if len(rows) <= 64:
        assert sum(tokens <= 5 for tokens in filled) <= 1


def test_a_schedule_without_a_sample_that_fits_says_so():
    options = {"num_rows": rows_of(4), "packing": False, "seed": 0, "steps": 1}
    with pytest.raises(ValueError, match=r"no sample fits the length buckets \[4\]: found 1 samples of 9 tokens"):
        batch_schedule([9], length_buckets=[4], **options)
