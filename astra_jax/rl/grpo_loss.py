"""The GRPO objective as ASTRA uses it: clipped ratio, batch-level token mean, no KL term, no entropy term.

Beside it, each off by default: a higher clip for tokens that gain (DAPO), truncated importance weights for what sampler
and learner differ by, the mean over episodes of their token means (GRPO as it was published).

Decided: docs/decisions/rl.md, “Variants of the objective are off by default, and each has a float64 reference”.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Objective(NamedTuple):
    """What the loss is told beside its batch."""

    temperature: float
    """At which the tokens were sampled."""
    clip_epsilon: float
    chunk_tokens: int
    """Tokens whose logits exist at once."""
    clip_epsilon_high: float | None = None
    """ε of ratios above 1, where it is another."""
    importance_cap: float | None = None
    """C: the most that a token's importance weight may be; None: no weights, the ratio is to the sampler's policy."""


def grpo_token_losses(
    policy_logprobs_BT: jax.Array,
    sampled_logprobs_BT: jax.Array,
    advantages_BT: jax.Array,
    *,
    clip_epsilon: float,
    clip_epsilon_high: float | None = None,
    importance_cap: float | None = None,
    start_logprobs_BT: jax.Array | None = None,
) -> jax.Array:
    """Return the loss of each token, −w·min(ρA, clip(ρ, 1−ε, 1+ε_high)A); float32 [B, T].

    Without an importance cap ρ = π(token) / π_sampled(token) and w = 1. With the cap C the two things that a ratio
    corrects are told apart: ρ = π / π_start is what the updates of this step have changed, and
    w = min(π_start / π_sampled, C), without gradient, what sampler and learner differ by (truncated importance
    sampling; decoupled PPO, arXiv 2110.00641, has the same two). π_start is the policy before the step's first update,
    and without `start_logprobs_BT` the policy itself.

    The mean over the active tokens of the whole batch is the loss: divide their sum by the global count once
    (DAPO, arXiv 2503.14476, eq. 8; ε_high is its section 3.1), never row by row.

    >>> zero = jnp.zeros((1, 1))
    >>> float(grpo_token_losses(zero, zero, jnp.full((1, 1), 2.0), clip_epsilon=0.2)[0, 0])
    -2.0
    """
    if importance_cap is None:
        base_BT, weights_BT = sampled_logprobs_BT, jnp.ones(())
    else:
        # Until a step's first update, the policy that it began with is this one.
        base_BT = jax.lax.stop_gradient(policy_logprobs_BT) if start_logprobs_BT is None else start_logprobs_BT
        weights_BT = jnp.minimum(jnp.exp(base_BT - sampled_logprobs_BT), importance_cap)
    # ρ is 1 but for rounding where the policy that learns has sampled; the clip is for groups that have waited.
    ratio_BT = jnp.exp(policy_logprobs_BT - base_BT)
    high = clip_epsilon if clip_epsilon_high is None else clip_epsilon_high
    clipped_BT = jnp.clip(ratio_BT, 1 - clip_epsilon, 1 + high)
    return -weights_BT * jnp.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
