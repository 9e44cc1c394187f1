"""Group-relative advantages (GRPO, arXiv 2402.03300) and the standard deviation of a group's rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def group_advantages(rewards: Sequence[float]) -> np.ndarray:
    """Return A_i = (R_i − mean(R)) / Std(R) over the episodes of one group; float32 [G].

    Raises:
        ValueError: the group is degenerate (Std(R) = 0); it must not reach the loss.

    >>> group_advantages([0.0, 1.0]).tolist()
    [-1.0, 1.0]
    """
    values, std = np.asarray(rewards, np.float64), reward_std(rewards)
    if std == 0:
        raise ValueError(f"a group without reward variance has no advantage: every reward is {values[0]}")
    return ((values - values.mean()) / std).astype(np.float32)


def reward_std(rewards: Sequence[float]) -> float:
    """Return Std(R) of a group: exactly 0 for equal rewards, although numpy's mean of them may be rounded.

    >>> reward_std([0.0, 1.0]), reward_std([0.1, 0.1, 0.1])
    (0.5, 0.0)
    """
    values = np.asarray(rewards, np.float64)
    return 0.0 if np.ptp(values) == 0 else float(values.std())
