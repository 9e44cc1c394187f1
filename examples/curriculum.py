"""A curriculum: environments that the policy always or never solves are rolled out every second epoch only.

    astra rl configs/tiny_rl.toml curriculum=examples.curriculum:sometimes_solved

When the turn of an environment comes in an epoch, and it has finished episodes, the function says whether it is rolled
out. It is told the environment's record since the run began: `episodes`, `solved`, `solved_rate`, `reward_sum` and
`last_epoch`, the last epoch in which it was rolled out.
"""

from astra_jax.rl.solved_rates import EnvironmentRate

LEAST_SOLVED_RATE, MOST_SOLVED_RATE = 0.2, 0.8


def sometimes_solved(rate: EnvironmentRate, epoch: int) -> bool:
    """Roll out an environment that is solved sometimes, and any other one if it sat out the epoch before.

    A policy that learns may have left an old rate behind, so no environment is left out for good.

    >>> hard = EnvironmentRate(episodes=8, solved=1, last_epoch=3)
    >>> [sometimes_solved(hard, epoch) for epoch in (4, 5)]
    [False, True]
    """
    return rate.last_epoch != epoch - 1 or LEAST_SOLVED_RATE <= rate.solved_rate <= MOST_SOLVED_RATE
