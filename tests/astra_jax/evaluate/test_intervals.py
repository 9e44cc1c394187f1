"""Bootstrap intervals draw environments, with all of their episodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.evaluate.intervals import RESAMPLES, clustered_interval, paired_interval

groups = st.lists(st.lists(st.floats(0, 1, width=32), min_size=0, max_size=4), min_size=1, max_size=6)


@settings(max_examples=5, deadline=None)
@given(groups, st.integers(0, 5))
def test_the_interval_is_that_of_a_direct_computation(by_environment: list[list[float]], seed: int) -> None:
    """Environment by environment, episode by episode, resample by resample."""
    drawn = np.random.default_rng(seed).integers(len(by_environment), size=(RESAMPLES, len(by_environment)))
    means = []
    for resample in drawn:
        episodes = [value for environment in resample for value in by_environment[environment]]
        means.append(sum(episodes) / len(episodes) if episodes else 0.0)
    sums, counts = [sum(group) for group in by_environment], [len(group) for group in by_environment]
    found = clustered_interval(sums, counts, seed=seed)
    np.testing.assert_allclose(found, np.quantile(means, [0.025, 0.975]), rtol=1e-12, atol=1e-12)


def test_episodes_that_repeat_one_another_make_it_no_narrower() -> None:
    one_each = clustered_interval([0.0, 1.0] * 40, [1] * 80, seed=2)
    assert clustered_interval([0.0, 8.0] * 40, [8] * 80, seed=2) == pytest.approx(one_each)


def test_a_paired_interval_draws_an_environment_once_for_both_sides():
    rng = np.random.default_rng(5)
    before = [(float(above), 4.0) for above in rng.integers(0, 4, size=40)]
    # A gain that is equal in every environment has no uncertainty, however far apart environments are.
    after = [(above + 1, below) for above, below in before]
    assert paired_interval(before, after, seed=1) == pytest.approx((0.25, 0.25), abs=1e-12)
    # The same numbers, of other environments, are not.
    low, high = paired_interval(before, after[1:] + after[:1], seed=1)
    assert low < 0.2 < 0.3 < high


def test_a_paired_interval_is_that_of_a_plain_loop_over_draws():
    rng = np.random.default_rng(2)
    before, after = ([tuple(map(float, row)) for row in rng.integers(0, 5, size=(7, 2))] for _ in range(2))
    found = []
    for draw in np.random.default_rng(9).integers(7, size=(RESAMPLES, 7)):
        sums = [sum(column[index][side] for index in draw) for column in (before, after) for side in (0, 1)]
        if sums[1] and sums[3]:
            found.append(sums[2] / sums[3] - sums[0] / sums[1])
    expected = np.quantile(np.array(found, np.float64), [0.025, 0.975])
    assert paired_interval(before, after, seed=9) == pytest.approx(tuple(expected), rel=1e-12)


def test_an_interval_of_nothing_is_refused():
    for columns, found in ((([], []), "0 and 0"), (([1.0], [1, 1]), "1 and 2")):
        with pytest.raises(ValueError, match=f"found {found}$"):
            clustered_interval(*columns, seed=0)
    for columns, found in ((([], []), "0 and 0"), (([(1, 1)], [(1, 1)] * 2), "1 and 2")):
        with pytest.raises(ValueError, match=f"found {found}$"):
            paired_interval(*columns, seed=0)
    with pytest.raises(ValueError, match=r"^no draw has denominators above 0 on both sides; take more environments$"):
        paired_interval([(0, 0)], [(1, 1)], seed=0)
