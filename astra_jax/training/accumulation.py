"""The gradients of a batch in parts, one after the other: the same figures in less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from astra_jax.model.lora import joined, learnt
from astra_jax.model.qwen3 import Params
from astra_jax.model.sharding import constrain, constrain_params

Batch = TypeVar("Batch", bound=tuple)
"""A NamedTuple of arrays [B, T, …], among them `loss_mask_BT`, or None where it has none."""


def loss_and_gradients(
    loss_of: Callable[..., Any],
    params: Params,
    batch: Batch,
    *,
    parts: int,
    skips_empty: bool = False,
) -> tuple[Any, Params]:
    """Sum `loss_of(params, part)` and its gradients over the `parts` of a batch; part i has the rows i, i + parts, ….

    Gradients are those of what a run learns: all parameters, or adapters alone. No row moves to another device. A
    loss that is a mean must divide by the number of tokens of the whole batch: a mean of the parts' means would
    weigh short parts too much. `loss_of` returns the loss and a figure of each token [B, T] of its part. With
    `skips_empty` nothing is computed for a part that has no loss, and its tokens have the figure 0.

    Returns the loss and the tokens' figures, in the order of the batch, and the gradients.
    """
    of_learnt = learnt(params)
    of_part: Any = jax.value_and_grad(lambda learnt, part: loss_of(joined(params, learnt), part), has_aux=True)
    if parts == 1:
        return of_part(of_learnt, batch)

    def add_part(total: tuple[Any, Params], part: Batch) -> tuple[tuple[Any, Params], jax.Array]:
        def added() -> tuple[tuple[Any, Params], jax.Array]:
            pinned = jax.tree.map(lambda x_BT: constrain(x_BT, "batch", "sequence"), part)
            (loss, figures_BT), gradients = of_part(of_learnt, pinned)
            return jax.tree.map(jnp.add, total, (loss, gradients)), figures_BT

        if not skips_empty:
            return added()
        has_loss = (part.loss_mask_BT > 0).any()  # type: ignore[attr-defined]  # both batches have one
        return jax.lax.cond(has_loss, added, lambda: (total, jnp.zeros(no_figures_BT.shape, no_figures_BT.dtype)))

    of_parts = jax.tree.map(lambda x_BT: x_BT.reshape(-1, parts, *x_BT.shape[1:]).swapaxes(0, 1), batch)
    # Zeros have no place by themselves: constrained, the sum that the scan carries lies where the parameters lie.
    shapes = jax.eval_shape(of_part, of_learnt, jax.tree.map(lambda x_PBT: x_PBT[0], of_parts))
    (_, no_figures_BT), _ = shapes
    (loss, _), gradients = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (loss, gradients), figures_PBT = jax.lax.scan(add_part, (loss, constrain_params(gradients)), of_parts)
    return (loss, figures_PBT.swapaxes(0, 1).reshape(-1, figures_PBT.shape[-1])), gradients
