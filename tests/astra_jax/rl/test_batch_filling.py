"""Batch filling keeps the order, carries surplus groups over, drops stale groups, and loses no other."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from astra_jax.rl.batch_filling import BatchFiller, GroupCounts, ScoredGroup

GROUPS_PER_BATCH, MAX_STALENESS, MIN_REWARD_STD = 3, 2, 0.05


REWARDS = st.lists(st.sampled_from([(0.5, 0.5), (0.0, 1.0), (0.5, 0.55), (0.0, 0.5)]), max_size=4)
FEW = st.integers(0, 2)


class BatchFilling(RuleBasedStateMachine):
    """A filler beside a plain list of the groups that should wait in it."""

    def __init__(self) -> None:
        super().__init__()
        self.filler: BatchFiller[int] = BatchFiller(GROUPS_PER_BATCH, MIN_REWARD_STD, MAX_STALENESS)
        self.waiting: list[tuple[int, int]] = []
        self.version = 0
        self.expected = GroupCounts()

    @rule(rewards=REWARDS, failed=FEW)
    def roll_out(self, rewards, failed):
        first = self.expected.submitted
        groups = [ScoredGroup(first + i, pair, self.version) for i, pair in enumerate(rewards)]
        self.filler.add(groups, num_failed=failed)
        kept = [group for group in groups if abs(group.rewards[1] - group.rewards[0]) / 2 > MIN_REWARD_STD]
        self.expected.submitted += len(groups) + failed
        self.expected.failed += failed
        self.expected.valid += len(kept)
        self.expected.degenerate += len(groups) - len(kept)
        self.waiting += [(group.group, group.policy_version) for group in kept]

    def learn(self):
        count = min(GROUPS_PER_BATCH, len(self.waiting))
        batch = self.filler.take_batch()
        assert all(group.rewards[0] != group.rewards[1] for group in batch)
        assert [(group.group, group.policy_version) for group in batch] == self.waiting[:count]
        self.waiting = self.waiting[count:]
        self.expected.learnt += count
        self.version += 1

    @precondition(lambda self: self.waiting)
    @rule()
    def update(self):
        self.learn()
        self.drop_stale()

    @precondition(lambda self: not self.waiting)
    @rule()
    def no_group_makes_no_batch(self):
        with pytest.raises(ValueError, match="no group waits for an update"):
            self.filler.take_batch()

    @rule()
    def time_passes(self):
        self.version += 1
        self.drop_stale()

    def drop_stale(self):
        self.filler.drop_stale(self.version)
        fresh = [(group, version) for group, version in self.waiting if self.version - version <= MAX_STALENESS]
        self.expected.stale += len(self.waiting) - len(fresh)
        self.waiting = fresh

    @invariant()
    def every_group_is_accounted_for(self):
        filler, counts = self.filler, self.filler.counts
        assert [(group.group, group.policy_version) for group in filler.buffer] == self.waiting
        assert counts == self.expected
        assert counts.submitted == counts.valid + counts.degenerate + counts.failed
        assert counts.valid == counts.learnt + counts.stale + len(filler.buffer)
        assert filler.is_full == (len(self.waiting) >= GROUPS_PER_BATCH)


TestBatchFilling = BatchFilling.TestCase
TestBatchFilling.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("rewards", "min_reward_std", "is_valid"),
    [
        *(((reward,) * 3, 0.0, False) for reward in (0.0, 0.1, 1.0, 2 / 3)),
        ((0.4, 0.6), 0.1001, False),
        ((0.4, 0.6), 0.0999, True),
        ((0.0, 1.0), 0.5, False),
    ],
)
def test_only_a_group_whose_standard_deviation_exceeds_the_limit_is_kept(rewards, min_reward_std, is_valid):
    filler: BatchFiller[str] = BatchFiller(num_groups=1, min_reward_std=min_reward_std, max_staleness=1)
    filler.add([ScoredGroup("group", rewards, 0)])
    assert (filler.is_full, filler.counts.degenerate) == (is_valid, not is_valid)
