"""The objective of RL: the loss of each token, the paper's GRPO unless a config names another function.

ASTRA's: clipped ratio, batch-level token mean, no KL term, no entropy term. Another objective is a function of the user
(docs/variants.md); the trainer sums its losses over the sampled tokens and divides by their number in the whole batch.

Decided: docs/decisions/rl.md, “Variants of the objective, the reward and the curriculum are functions”.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from astra_jax.config import ConfigError
from astra_jax.named_functions import function_named

TokenLosses = Callable[..., jax.Array]


def grpo_token_losses(
    policy_logprobs_BT: jax.Array,
    sampled_logprobs_BT: jax.Array,
    advantages_BT: jax.Array,
    *,
    clip_epsilon: float,
) -> jax.Array:
    """Return the loss of each token, −min(ρA, clip(ρ, 1−ε, 1+ε)A) with ρ = π(token) / π_sampled(token); float32 [B, T].

    The mean over the active tokens of the whole batch is the loss: divide their sum by the global count once
    (DAPO, arXiv 2503.14476, eq. 8), never row by row.

    >>> zero = jnp.zeros((1, 1))
    >>> float(grpo_token_losses(zero, zero, jnp.full((1, 1), 2.0), clip_epsilon=0.2)[0, 0])
    -2.0
    """
    # ρ is 1, but for rounding, on tokens of the learning policy itself; the clip is for groups that have waited.
    ratio_BT = jnp.exp(policy_logprobs_BT - sampled_logprobs_BT)
    clipped_BT = jnp.clip(ratio_BT, 1 - clip_epsilon, 1 + clip_epsilon)
    return -jnp.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


OBJECTIVES: Final[Mapping[str, TokenLosses]] = {"grpo": grpo_token_losses}
"""Built-in objectives by their names in configs."""
OPTIONAL_COLUMNS: Final = ("reward_std_BT", "episode_weights_BT")
"""Columns of a batch (`RLBatch`) that are laid out only for an objective with a parameter of that name."""
_GIVEN: Final = (
    *("policy_logprobs_BT", "sampled_logprobs_BT", "advantages_BT"),
    *OPTIONAL_COLUMNS,
    "clip_epsilon",
)


def objective_named(name: str, folder: Path | None = None) -> TokenLosses:
    """Return the objective that a config names; `folder` is the folder of the config.

    Raises:
        ValueError: there is no such function, or it has other parameters than the trainer can give.
    """
    function = function_named(name, OBJECTIVES, folder)
    parameters = _parameters(function)
    if others := [parameter for parameter in parameters if parameter not in _GIVEN]:
        raise ValueError(f"an objective takes some of {', '.join(_GIVEN)}: rename or leave out {', '.join(others)}")
    if "policy_logprobs_BT" not in parameters:
        raise ValueError("an objective takes policy_logprobs_BT, without which nothing is learnt: add the parameter")
    return function


def _parameters(function: TokenLosses) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"its parameters cannot be read ({error}): name a function that is written in Python"
        ) from error


class Objective(NamedTuple):
    """The part of the loss that is the same for all batches of a run."""

    temperature: float
    """Temperature at which the tokens were sampled."""
    clip_epsilon: float
    """ε: half the width of the range that the ratio is clipped to."""
    chunk_tokens: int
    """Tokens whose logits exist at once."""
    token_losses: TokenLosses = grpo_token_losses
    """Function of the loss of each token."""

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """The optional arrays of a batch that the function asks for."""
        return tuple(name for name in OPTIONAL_COLUMNS if name in _parameters(self.token_losses))

    def losses(self, policy_logprobs_BT: jax.Array, given: Mapping[str, Any]) -> jax.Array:
        """Return the loss of each token from the policy's log-probs and the arrays of a batch by name; [B, T].

        Raises:
            ConfigError: the function returns another shape.
        """
        values = {**given, "policy_logprobs_BT": policy_logprobs_BT, "clip_epsilon": self.clip_epsilon}
        losses_BT = self.token_losses(**{name: values[name] for name in _parameters(self.token_losses)})
        if jnp.shape(losses_BT) != policy_logprobs_BT.shape:
            raise ConfigError(
                f"the objective returned an array of shape {jnp.shape(losses_BT)} for tokens of shape "
                f"{policy_logprobs_BT.shape}; return one loss for each token"
            )
        return losses_BT
