"""Group-relative advantages (GRPO, arXiv 2402.03300) and which groups have any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def is_valid_group(rewards: Sequence[float], *, min_reward_std: float) -> bool:
    """Say whether a group's rewards differ enough to learn from: Std(R) > δ. Others are degenerate.

    >>> is_valid_group([0.5, 0.5, 0.5], min_reward_std=0.01), is_valid_group([0.0, 1.0], min_reward_std=0.01)
    (False, True)
    """
    return _std(np.asarray(rewards, np.float64)) > min_reward_std


def group_advantages(rewards: Sequence[float], *, divide_by_std: bool = True) -> np.ndarray:
    """Return A_i = (R_i − mean(R)) / Std(R) over the episodes of one group; float32 [G].

    Undivided (Dr. GRPO, arXiv 2503.20783) a group weighs as much as its rewards differ.

    Raises:
        ValueError: the group is degenerate (Std(R) = 0); it must not reach the loss.

    >>> group_advantages([0.0, 1.0]).tolist()
    [-1.0, 1.0]
    >>> group_advantages([0.0, 1.0], divide_by_std=False).tolist()
    [-0.5, 0.5]
    """
    values = np.asarray(rewards, np.float64)
    std = _std(values)
    if std == 0:
        raise ValueError(f"a group without reward variance has no advantage: every reward is {values[0]}")
    return ((values - values.mean()) / (std if divide_by_std else 1.0)).astype(np.float32)


def _std(values: np.ndarray) -> float:
    """Return the standard deviation: exactly 0 for equal values, of which numpy's mean may be off by a rounding."""
    return 0.0 if np.ptp(values) == 0 else float(values.std())
