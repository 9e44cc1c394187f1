"""How sure a figure is: bootstrap intervals over environments.

A fault met in an environment is mostly met in all of its episodes, so environments are drawn, not episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def clustered_interval(
    numerators: Sequence[float], denominators: Sequence[float], *, seed: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of Σ numerators / Σ denominators, both given per environment.

    A mean over episodes has their values summed as numerator and their number as denominator; 0/0 is 0.

    >>> clustered_interval([1.0, 1.0], [2, 2], seed=0)
    (0.5, 0.5)
    >>> low, high = clustered_interval([2.0, 0.0] * 50, [2, 2] * 50, seed=0)
    >>> 0.35 < low < 0.45 < 0.55 < high < 0.65
    True

    Raises:
        ValueError: there is no environment, or the columns differ in length.
    """
    if not 0 < len(numerators) == len(denominators):
        raise ValueError(
            f"expected two columns of one number per environment, found {len(numerators)} and {len(denominators)}"
        )
    drawn = np.random.default_rng(seed).integers(len(numerators), size=(RESAMPLES, len(numerators)))
    # Numerator and denominator are drawn together: environments with more episodes weigh more, as in the figure itself.
    above = np.asarray(numerators, float)[drawn].sum(axis=1)
    below = np.asarray(denominators, float)[drawn].sum(axis=1)
    ratios = np.divide(above, below, out=np.zeros_like(above), where=below != 0)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
