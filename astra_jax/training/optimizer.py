"""AdamW with global-norm clipping and a learning-rate schedule, without updates that are not finite."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

from astra_jax.config import Frozen
from astra_jax.model.config import Params
from astra_jax.model.lora import joined, learnt
from astra_jax.model.sharding import constrain_params, is_matrix, parameter_path


class OptimizerConfig(Frozen):
    """AdamW (arXiv 1711.05101) and its schedule."""

    learning_rate: float = Field(gt=0)
    """Peak of the learning rate."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Course of the rate after the warm-up: `constant`, or a `cosine` that falls to `final_fraction`."""
    warmup_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps over which the rate climbs linearly from 0."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """End of the cosine as a share of the peak."""
    b1: float = 0.9
    """Decay of Adam's first moments in one update."""
    b2: float = 0.95
    """Decay of Adam's second moments in one update."""
    eps: float = 1e-8
    """Number added to the root of Adam's second moments."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Share of a matrix that one update at a rate of 1 would take away; norms and biases do not decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global norm to which larger gradients are scaled down."""


def may_be_longer(config: OptimizerConfig) -> Collection[str]:
    """Return the keys of a run that may grow: `steps`, if no step's learning rate depends on their number.

    >>> may_be_longer(OptimizerConfig(learning_rate=1.0))
    ('steps',)
    >>> may_be_longer(OptimizerConfig(learning_rate=1.0, warmup_fraction=0.1))
    ()
    """
    return ("steps",) if config.schedule == "constant" and config.warmup_fraction == 0 else ()


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Return the learning rate of step 0 … steps−1.

    >>> rate = learning_rate_schedule(OptimizerConfig(learning_rate=1.0, schedule="cosine", warmup_fraction=0.2), 10)
    >>> [round(float(rate(step)), 2) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    warmup = round(config.warmup_fraction * steps)
    if config.schedule == "cosine":
        main = optax.cosine_decay_schedule(config.learning_rate, max(steps - warmup, 1), alpha=config.final_fraction)
    else:
        main = optax.constant_schedule(config.learning_rate)
    if warmup == 0:
        return main
    return optax.join_schedules([optax.linear_schedule(0.0, config.learning_rate, warmup), main], [warmup])


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Return the optimiser: clipping, then AdamW; weight decay is applied to matrices alone."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            learning_rate_schedule(config, steps),
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=lambda params: jax.tree_util.tree_map_with_path(
                lambda path, _: is_matrix(*parameter_path(path)), params
            ),
        ),
    )


def update_if_finite(
    optimizer: optax.GradientTransformation,
    loss: jax.Array,
    gradients: Params,
    params: Params,
    optimizer_state: optax.OptState,
) -> tuple[Params, optax.OptState, dict[str, jax.Array]]:
    """Make one update of what has `gradients`, or change no bit if loss or the gradients' global norm is not finite.

    Both figures are of the whole batch, so all hosts decide alike. They are returned, with whether the update was
    `applied`.
    """
    grad_norm = optax.tree.norm(gradients)
    is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    before = learnt(params)
    updates, updated_state = optimizer.update(gradients, optimizer_state, before)
    updated = optax.apply_updates(before, updates), updated_state
    # A refused update may contain NaN: nothing of it is kept, not even the optimiser's count.
    kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), updated, (before, optimizer_state))
    after, optimizer_state = constrain_params(kept)
    return joined(params, after), optimizer_state, {"loss": loss, "grad_norm": grad_norm, "applied": is_finite}


def updates_applied(optimizer_state: optax.OptState) -> int:
    """Return the number of applied updates, by which the schedule counts."""
    # Adam and the schedule each have a count, and they agree.
    (count, *_) = (count for _, count in optax.tree.get_all_with_path(optimizer_state, "count"))
    return int(count)


def last_learning_rate(
    config: OptimizerConfig, steps: int, optimizer_state: optax.OptState, applied: jax.Array
) -> float:
    """Return the learning rate of the last step, whether it was `applied` or not."""
    # The step used the rate of the count at its beginning.
    return float(learning_rate_schedule(config, steps)(updates_applied(optimizer_state) - int(applied)))
