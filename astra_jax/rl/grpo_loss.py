"""The GRPO objective as ASTRA uses it: clipped ratio, batch-level token mean, no KL term, no entropy term."""

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


def grpo_token_losses(
    policy_logprobs_BT: jax.Array, sampled_logprobs_BT: jax.Array, advantages_BT: jax.Array, *, clip_epsilon: float
) -> jax.Array:
    """Return the loss of each token, −min(ρA, clip(ρ, 1−ε, 1+ε)A) with ρ = π(token) / π_sampled(token); float32 [B, T].

    The mean over the active tokens of the whole batch is the loss: divide their sum by the global count once
    (DAPO, arXiv 2503.14476, eq. 8), never row by row.

    >>> zero = jnp.zeros((1, 1))
    >>> float(grpo_token_losses(zero, zero, jnp.full((1, 1), 2.0), clip_epsilon=0.2)[0, 0])
    -2.0
    """
    # ρ is 1 but for rounding where the policy that learns has sampled; the clip is for groups that have waited.
    ratio_BT = jnp.exp(policy_logprobs_BT - sampled_logprobs_BT)
    clipped_BT = jnp.clip(ratio_BT, 1 - clip_epsilon, 1 + clip_epsilon)
    return -jnp.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
