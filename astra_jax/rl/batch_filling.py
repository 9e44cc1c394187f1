"""Adaptive batch filling: rollouts go on until enough valid groups are there; what is left over waits for its turn.

A group is valid when its rewards vary, Std(R) > δ. Valid groups enter a first-in, first-out buffer; the first n leave
it for an update. A degenerate group never enters the buffer, so it never reaches the loss.

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
    """Too few groups were valid for too long; the message says how many, and what to change."""


@dataclass(frozen=True)
class ScoredGroup(Generic[GroupT]):
    """A group, the rewards of its episodes, and how many updates its policy had seen."""

    group: GroupT
    rewards: tuple[float, ...]
    policy_version: int


@dataclass
class BatchFiller(Generic[GroupT]):
    """The buffer of valid groups."""

    num_groups: int
    """n: how many groups one update takes."""
    min_reward_std: float
    """δ."""
    max_staleness: int
    """Updates after which a waiting group is dropped instead of used."""
    buffer: deque[ScoredGroup[GroupT]] = field(default_factory=deque)
    num_valid: int = 0
    num_degenerate: int = 0
    num_stale: int = 0

    def add(self, groups: Iterable[ScoredGroup[GroupT]]) -> None:
        """Take in finished groups in the order they were submitted; keep the valid ones."""
        for group in groups:
            if is_valid_group(group.rewards, min_reward_std=self.min_reward_std):
                self.buffer.append(group)
                self.num_valid += 1
            else:
                self.num_degenerate += 1

    def drop_stale(self, policy_version: int) -> None:
        """Let go of groups whose policy is more than `max_staleness` updates old."""
        fresh = [group for group in self.buffer if policy_version - group.policy_version <= self.max_staleness]
        self.num_stale += len(self.buffer) - len(fresh)
        self.buffer = deque(fresh)

    @property
    def is_full(self) -> bool:
        """Whether a batch can leave."""
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
        return [self.buffer.popleft() for _ in range(self.num_groups)]
