"""Adaptive batch filling: rollouts go on until enough groups are valid; surplus groups wait.

A group is valid when its rewards vary, Std(R) > δ. Valid groups enter a first-in, first-out buffer; the first n leave
it for an update. No other group ever enters it, so none reaches the loss. Every group is counted by its end:

    rolled out = valid + degenerate + failed
    valid      = learnt + stale + waiting

Decided: docs/decisions/rl.md, “Waiting groups carry their sampled log-probs”.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from astra_jax.errors import AstraError
from astra_jax.rl.advantage import reward_std

GroupT = TypeVar("GroupT")


class BatchFillingStalled(AstraError):
    """No group was valid for too long; the message counts the groups by outcome and names the keys to change."""


@dataclass(frozen=True)
class ScoredGroup(Generic[GroupT]):
    """A group, the rewards of its episodes, and how many updates its policy had seen."""

    group: GroupT
    rewards: tuple[float, ...]
    policy_version: int
    """Updates that the oldest weights had seen that sampled one of its tokens."""


@dataclass
class GroupCounts:
    """Numbers of groups since the run began, by their outcome."""

    submitted: int = 0
    valid: int = 0
    degenerate: int = 0
    failed: int = 0
    """Groups with an episode that a fault of a tool, or of the service that runs it, made unusable."""
    learnt: int = 0
    """Valid groups that have left for an update."""
    stale: int = 0
    """Valid groups that were dropped as too old."""


@dataclass
class BatchFiller(Generic[GroupT]):
    """The buffer of valid groups, and the counts of all groups."""

    num_groups: int
    """n: the number of groups that an update takes."""
    min_reward_std: float
    """δ: the standard deviation that the rewards of a valid group exceed."""
    max_staleness: int
    """The number of updates after which a waiting group is too old."""
    buffer: deque[ScoredGroup[GroupT]] = field(default_factory=deque)
    counts: GroupCounts = field(default_factory=GroupCounts)

    def add(self, groups: Iterable[ScoredGroup[GroupT]], *, num_failed: int = 0) -> None:
        """Take in the groups of a rollout, in the order in which they were submitted; keep the valid ones.

        Groups that failed have no rewards: only their number is given.
        """
        counts = self.counts
        counts.submitted += num_failed
        counts.failed += num_failed
        for group in groups:
            counts.submitted += 1
            if self.is_valid(group):
                self.buffer.append(group)
                counts.valid += 1
            else:
                counts.degenerate += 1

    def is_valid(self, group: ScoredGroup[GroupT]) -> bool:
        """Whether a group's rewards vary enough to learn from: Std(R) > δ. Others are degenerate."""
        return reward_std(group.rewards) > self.min_reward_std

    def drop_stale(self, policy_version: int) -> None:
        """Drop the groups whose policy is more than `max_staleness` updates old."""
        fresh = [group for group in self.buffer if policy_version - group.policy_version <= self.max_staleness]
        self.counts.stale += len(self.buffer) - len(fresh)
        self.buffer = deque(fresh)

    @property
    def is_full(self) -> bool:
        """Whether a whole batch can leave."""
        return len(self.buffer) >= self.num_groups

    def take_batch(self) -> list[ScoredGroup[GroupT]]:
        """Return the first n groups, or all if there are fewer; the rest stay.

        Raises:
            ValueError: no group waits.

        >>> filler = BatchFiller(num_groups=1, min_reward_std=0.01, max_staleness=1)
        >>> filler.add(ScoredGroup(name, rewards, 0) for name, rewards in [("a", (1, 1)), ("b", (0, 1)), ("c", (0, 1))])
        >>> [group.group for group in filler.take_batch()], [group.group for group in filler.buffer]
        (['b'], ['c'])
        """
        if not self.buffer:
            raise ValueError("no group waits for an update; add valid groups first")
        count = min(self.num_groups, len(self.buffer))
        self.counts.learnt += count
        return [self.buffer.popleft() for _ in range(count)]
