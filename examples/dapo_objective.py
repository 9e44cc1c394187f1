"""Other objectives: DAPO's wider clip above 1, and three more that are as short.

    astra rl configs/tiny_rl.toml objective=examples.dapo_objective:dapo

An objective returns the loss of each token, [B, T]. The trainer sums the losses of sampled tokens and divides by their
number in the whole batch. A function is given the arrays that its parameters name.
"""

import jax
import jax.numpy as jnp

CLIP_EPSILON_HIGH = 0.28
IMPORTANCE_CAP = 2.0


def clipped(ratio_BT: jax.Array, advantages_BT: jax.Array, low: float, high: float) -> jax.Array:
    """Return −min(ρA, clip(ρ, 1 − low, 1 + high)A) for each token."""
    return -jnp.minimum(ratio_BT * advantages_BT, jnp.clip(ratio_BT, 1 - low, 1 + high) * advantages_BT)


def dapo(policy_logprobs_BT, sampled_logprobs_BT, advantages_BT, clip_epsilon):
    """DAPO (arXiv 2503.14476, section 3.1): tokens that gain may move further than tokens that lose."""
    ratio_BT = jnp.exp(policy_logprobs_BT - sampled_logprobs_BT)
    return clipped(ratio_BT, advantages_BT, clip_epsilon, CLIP_EPSILON_HIGH)


def dr_grpo(policy_logprobs_BT, sampled_logprobs_BT, advantages_BT, reward_std_BT, clip_epsilon):
    """Dr. GRPO (arXiv 2503.20783): advantages are not divided by the standard deviation of their group's rewards."""
    ratio_BT = jnp.exp(policy_logprobs_BT - sampled_logprobs_BT)
    return clipped(ratio_BT, advantages_BT * reward_std_BT, clip_epsilon, clip_epsilon)


def first_grpo(policy_logprobs_BT, sampled_logprobs_BT, advantages_BT, episode_weights_BT, clip_epsilon):
    """GRPO as published (arXiv 2402.03300): each episode weighs the same, however long it is."""
    ratio_BT = jnp.exp(policy_logprobs_BT - sampled_logprobs_BT)
    return clipped(ratio_BT, advantages_BT, clip_epsilon, clip_epsilon) * episode_weights_BT


def importance_weighted(policy_logprobs_BT, sampled_logprobs_BT, advantages_BT):
    """Truncated importance weights correct the difference between the sampler's and the learner's log-probs."""
    fixed_BT = jax.lax.stop_gradient(policy_logprobs_BT)
    weights_BT = jnp.minimum(jnp.exp(fixed_BT - sampled_logprobs_BT), IMPORTANCE_CAP)
    return -weights_BT * jnp.exp(policy_logprobs_BT - fixed_BT) * advantages_BT
