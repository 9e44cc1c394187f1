"""Advantages are the group-relative ones of GRPO, and a group without variance has none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.rl.advantage import group_advantages, reward_std

rewards_strategy = st.lists(st.floats(0, 1), min_size=2, max_size=16)


def reference(rewards: list[float]) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / std for reward in rewards]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(rewards_strategy.filter(lambda rewards: max(rewards) - min(rewards) > 1e-6))
def test_advantages_equal_the_definition(rewards):
    found, mean = group_advantages(rewards), math.fsum(rewards) / len(rewards)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference(rewards), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found * reward_std(rewards), [x - mean for x in rewards], rtol=1e-5, atol=1e-7)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(0, 1), st.integers(2, 16))
def test_equal_rewards_are_degenerate_after_any_rounding(reward, size):
    """The mean of three times 0.1 is not 0.1 in floating point; the group is degenerate all the same."""
    assert reward_std([reward] * size) == 0
    with pytest.raises(ValueError, match="without reward variance"):
        group_advantages([reward] * size)
