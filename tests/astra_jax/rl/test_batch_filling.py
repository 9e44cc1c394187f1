"""Batch filling keeps the order, carries what is left over, drops what is stale, and loses nothing else."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from astra_jax.rl.batch_filling import BatchFiller, ScoredGroup

GROUPS_PER_BATCH, MAX_STALENESS, MIN_REWARD_STD = 3, 2, 0.05


class BatchFilling(RuleBasedStateMachine):
    """A filler beside a plain list of what should wait in it."""

    def __init__(self) -> None:
        super().__init__()
        self.filler: BatchFiller[int] = BatchFiller(GROUPS_PER_BATCH, MIN_REWARD_STD, MAX_STALENESS)
        self.waiting: list[tuple[int, int]] = []
        self.version = self.submitted = self.degenerate = self.stale = self.left = 0

    @rule(rewards=st.lists(st.sampled_from([(0.5, 0.5), (0.0, 1.0), (0.5, 0.55), (0.0, 0.5)]), max_size=4))
    def roll_out(self, rewards):
        groups = [ScoredGroup(self.submitted + i, pair, self.version) for i, pair in enumerate(rewards)]
        self.filler.add(groups)
        self.submitted += len(groups)
        kept = [group for group in groups if abs(group.rewards[1] - group.rewards[0]) / 2 > MIN_REWARD_STD]
        self.degenerate += len(groups) - len(kept)
        self.waiting += [(group.group, group.policy_version) for group in kept]

    @precondition(lambda self: len(self.waiting) >= GROUPS_PER_BATCH)
    @rule()
    def update(self):
        batch = self.filler.take_batch()
        assert all(group.rewards[0] != group.rewards[1] for group in batch)
        assert [(group.group, group.policy_version) for group in batch] == self.waiting[:GROUPS_PER_BATCH]
        self.waiting = self.waiting[GROUPS_PER_BATCH:]
        self.left += GROUPS_PER_BATCH
        self.version += 1

    @precondition(lambda self: len(self.waiting) < GROUPS_PER_BATCH)
    @rule()
    def a_batch_that_is_not_full_cannot_leave(self):
        with pytest.raises(ValueError, match=f"expected {GROUPS_PER_BATCH} groups in the buffer"):
            self.filler.take_batch()

    @rule()
    def time_passes(self):
        self.version += 1
        self.filler.drop_stale(self.version)
        fresh = [(group, version) for group, version in self.waiting if self.version - version <= MAX_STALENESS]
        self.stale += len(self.waiting) - len(fresh)
        self.waiting = fresh

    @invariant()
    def every_group_is_accounted_for(self):
        filler = self.filler
        assert [(group.group, group.policy_version) for group in filler.buffer] == self.waiting
        assert (filler.num_degenerate, filler.num_stale) == (self.degenerate, self.stale)
        assert filler.num_valid == len(filler.buffer) + filler.num_stale + self.left
        assert filler.num_valid + filler.num_degenerate == self.submitted
        assert filler.is_full == (len(self.waiting) >= GROUPS_PER_BATCH)


TestBatchFilling = BatchFilling.TestCase
TestBatchFilling.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)


def test_a_degenerate_group_never_reaches_the_loss():
    filler: BatchFiller[str] = BatchFiller(num_groups=1, min_reward_std=0.0, max_staleness=1)
    filler.add(ScoredGroup("all equal", (reward,) * 3, 0) for reward in (0.0, 0.1, 1.0, 2 / 3))
    assert not filler.is_full
    assert filler.num_degenerate == 4


def test_a_group_that_waits_for_too_many_updates_is_dropped_and_counted():
    filler: BatchFiller[str] = BatchFiller(num_groups=4, min_reward_std=0.0, max_staleness=1)
    filler.add(ScoredGroup(name, (0.0, 1.0), version) for name, version in [("old", 0), ("older", 0), ("new", 1)])
    waiting = []
    for version in (1, 2, 3):
        filler.drop_stale(version)
        waiting.append(([group.group for group in filler.buffer], filler.num_stale))
    assert waiting == [(["old", "older", "new"], 0), (["new"], 2), ([], 3)]
