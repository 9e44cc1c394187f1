"""Adaptive batch filling: rollouts go on until enough valid groups are there; what is left over waits for its turn.

A group is valid when its rewards vary, Std(R) > δ. Valid groups enter a first-in, first-out buffer; the first n leave
it for an update. No other group ever enters it, so none reaches the loss. Every group is counted by what became of it:

    rolled out = valid + degenerate + failed + cancelled
    valid      = learnt + stale + waiting

Decided: docs/decisions/rl.md, “Waiting groups carry their sampled log-probs”.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from astra_jax.errors import AstraError
from astra_jax.rl.advantage import is_valid_group

GroupT = TypeVar("GroupT")


class BatchFillingStalled(AstraError):
    """No group was valid for too long; the message says what became of them, and what to change."""


@dataclass(frozen=True)
class ScoredGroup(Generic[GroupT]):
    """A group, the rewards of its episodes, and how many updates its policy had seen."""

    group: GroupT
    rewards: tuple[float, ...]
    policy_version: int
    """Of the oldest weights that a token of it was sampled with."""


@dataclass
class GroupCounts:
    """Groups since the run began, by what became of them."""

    submitted: int = 0
    """Rolled out."""
    valid: int = 0
    """Their rewards vary."""
    degenerate: int = 0
    """Their rewards do not."""
    failed: int = 0
    """A fault of a tool, or of the service that runs it, made an episode unusable."""
    cancelled: int = 0
    """`max_tool_seconds` cut an episode off."""
    learnt: int = 0
    """Valid ones that have left for an update."""
    stale: int = 0
    """Valid ones that were dropped, too old."""


@dataclass
class BatchFiller(Generic[GroupT]):
    """The buffer of valid groups, and what became of all others."""

    num_groups: int
    """n: how many groups one update takes."""
    min_reward_std: float
    """δ."""
    max_staleness: int
    """Updates after which a waiting group is too old."""
    buffer: deque[ScoredGroup[GroupT]] = field(default_factory=deque)
    counts: GroupCounts = field(default_factory=GroupCounts)

    def add(self, groups: Iterable[ScoredGroup[GroupT]], *, num_failed: int = 0, num_cancelled: int = 0) -> None:
        """Take in what was rolled out, in the order it was submitted; keep the valid groups.

        Those that failed or were cancelled have no rewards, and come as numbers.
        """
        counts = self.counts
        counts.submitted += num_failed + num_cancelled
        counts.failed += num_failed
        counts.cancelled += num_cancelled
        for group in groups:
            counts.submitted += 1
            if self.is_valid(group):
                self.buffer.append(group)
                counts.valid += 1
            else:
                counts.degenerate += 1

    def is_valid(self, group: ScoredGroup[GroupT]) -> bool:
        """Say whether a group's rewards vary enough to learn from."""
        return is_valid_group(group.rewards, min_reward_std=self.min_reward_std)

    def drop_stale(self, policy_version: int) -> None:
        """Let go of groups whose policy is more than `max_staleness` updates old."""
        fresh = [group for group in self.buffer if policy_version - group.policy_version <= self.max_staleness]
        self.counts.stale += len(self.buffer) - len(fresh)
        self.buffer = deque(fresh)

    @property
    def is_full(self) -> bool:
        """Whether a whole batch can leave."""
        return len(self.buffer) >= self.num_groups

    def take_batch(self) -> list[ScoredGroup[GroupT]]:
        """Return the first n groups; the rest stay.

        Raises:
            ValueError: there are fewer.

        >>> filler = BatchFiller(num_groups=1, min_reward_std=0.01, max_staleness=1)
        >>> filler.add(ScoredGroup(name, rewards, 0) for name, rewards in [("a", (1, 1)), ("b", (0, 1)), ("c", (0, 1))])
        >>> [group.group for group in filler.take_batch()], [group.group for group in filler.buffer]
        (['b'], ['c'])
        """
        if not self.is_full:
            raise ValueError(f"expected {self.num_groups} groups in the buffer, found {len(self.buffer)}")
        return self._taken(self.num_groups)

    def take_smaller_batch(self) -> list[ScoredGroup[GroupT]]:
        """Return the groups that are there, where they do not fill a batch.

        Raises:
            ValueError: there are none, or enough.
        """
        if self.is_full or not self.buffer:
            raise ValueError(f"expected from 1 to {self.num_groups - 1} groups in the buffer, found {len(self.buffer)}")
        return self._taken(len(self.buffer))

    def _taken(self, count: int) -> list[ScoredGroup[GroupT]]:
        self.counts.learnt += count
        return [self.buffer.popleft() for _ in range(count)]
