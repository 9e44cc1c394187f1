"""Intervals of figures: bootstrap over environments.

A fault met in an environment is mostly met in all of its episodes, so environments are drawn, not episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000
_ENDS = (1 - 0.95) / 2, (1 + 0.95) / 2
"""Quantiles at the ends of a 95 % interval."""
_Z = 1.959964
"""The same of a normal distribution, in standard deviations."""


def clustered_interval(numerators: Sequence[float], denominators: Sequence[float], *, seed: int) -> tuple[float, float]:
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
    low, high = np.quantile(ratios, _ENDS)
    return float(low), float(high)


def paired_interval(
    before: Sequence[tuple[float, float]],
    after: Sequence[tuple[float, float]],
    *,
    seed: int,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a ratio's increase, Σ/Σ of `after` minus Σ/Σ of `before`.

    Both are numerators and denominators of the same environments in the same order. Pairs are drawn, so a difficulty
    that an environment has for both cancels. Draws in which a denominator is 0 say nothing and are left out.

    >>> paired_interval([(0.0, 1), (0.5, 1)], [(0.25, 1), (0.75, 1)], seed=0)
    (0.25, 0.25)

    Raises:
        ValueError: there is no environment, the columns differ in length, or a ratio is 0/0 in every draw.
    """
    if not 0 < len(before) == len(after):
        raise ValueError(f"expected two columns of one ratio per environment, found {len(before)} and {len(after)}")
    drawn = np.random.default_rng(seed).integers(len(before), size=(RESAMPLES, len(before)))
    sums = [np.asarray(column, float)[drawn].sum(axis=1) for column in (before, after)]
    (above, below), (above_after, below_after) = (each.T for each in sums)
    told = (below != 0) & (below_after != 0)
    if not told.any():
        raise ValueError("no draw has denominators above 0 on both sides; take more environments")
    increases = above_after[told] / below_after[told] - above[told] / below[told]
    low, high = np.quantile(increases, _ENDS)
    return float(low), float(high)


def wilson_interval(passed: int, count: int) -> tuple[float, float]:
    """Return Wilson's interval of a share (Wilson 1927), at 95 %: it holds for few samples and at 0 and 1.

    >>> [round(end, 3) for end in wilson_interval(0, 8)], [round(end, 3) for end in wilson_interval(100, 200)]
    ([0.0, 0.324], [0.431, 0.569])

    Raises:
        ValueError: there are no samples, or fewer than `passed`.
    """
    if not 0 <= passed <= count or not count:
        raise ValueError(f"expected a share of one or more samples, found {passed} of {count}")
    share, spread = passed / count, _Z * _Z / count
    centre = share + spread / 2
    half = _Z * (share * (1 - share) / count + spread / (4 * count)) ** 0.5
    low, high = (centre - half) / (1 + spread), (centre + half) / (1 + spread)
    return max(0.0, low), min(1.0, high)


def stratified_interval(strata: Sequence[Sequence[float]], *, seed: int) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the unweighted mean of the strata's means.

    A stratum is a category; its numbers are one per task, which are drawn within it.

    >>> stratified_interval([[1.0, 1.0], [0.0]], seed=0)
    (0.5, 0.5)

    Raises:
        ValueError: there is no stratum, or an empty one.
    """
    if not strata or not all(map(len, strata)):
        raise ValueError(f"expected strata of one or more tasks, found {list(map(len, strata))}")
    rng = np.random.default_rng(seed)
    means = [
        np.asarray(stratum, float)[rng.integers(len(stratum), size=(RESAMPLES, len(stratum)))].mean(axis=1)
        for stratum in strata
    ]
    low, high = np.quantile(np.mean(means, axis=0), _ENDS)
    return float(low), float(high)


def interval_of_mean(values: Sequence[float], intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the interval of the unweighted mean of independent figures from those of each (MOVER, Zou & Donner 2008).

    Unlike a bootstrap it has a width where nothing, or all, was solved.

    >>> [round(end, 3) for end in interval_of_mean([0.0, 0.0], [wilson_interval(0, 8)] * 2)]
    [0.0, 0.229]

    Raises:
        ValueError: there is no figure, or the columns differ in length.
    """
    if not 0 < len(values) == len(intervals):
        raise ValueError(f"expected an interval for each of one or more figures, found {len(values)}, {len(intervals)}")
    mean = sum(values) / len(values)
    below = sum((value - low) ** 2 for value, (low, _) in zip(values, intervals, strict=True))
    above = sum((high - value) ** 2 for value, (_, high) in zip(values, intervals, strict=True))
    return mean - below**0.5 / len(values), mean + above**0.5 / len(values)
