"""Supervised fine-tuning: trajectories and gold episodes in, a checkpoint out.

The loss is `sft_loss`, one update `sft_step`, all of them `train_sft`. `training/run.py` surrounds a step (metrics,
checkpoints, signals), `sft/batches.py` says which rows it learns from, `sft/stage.py` begins and ends the run.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from astra_jax.checkpoints.checkpoint import TrainState
from astra_jax.mesh.hosts import host_goes_on
from astra_jax.mesh.placement import in_force, place_batch
from astra_jax.model.config import ModelConfig
from astra_jax.model.flops import model_flops, utilisation
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import Params, bind
from astra_jax.sft.batches import SFTBatches
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.data import KINDS, SFTBatch
from astra_jax.training.accumulation import loss_and_gradients
from astra_jax.training.optimizer import OptimizerConfig, last_learning_rate, make_optimizer, update_if_finite
from astra_jax.training.run import Parts, TrainingRun

LOSSES: Final = tuple(f"loss_{kind}" for kind in KINDS)
"""Names of the losses by kind of row, in the order of `KINDS`."""
SHOWN: Final = (*LOSSES, "learning_rate", "tokens_per_second")
"""Figures of a progress line, without the loss of all kinds together, which follows the mix of kinds in a step."""


def sft_loss(
    params: Params, batch: SFTBatch, *, model_config: ModelConfig, num_loss_tokens: jax.Array, chunk_tokens: int
) -> tuple[jax.Array, jax.Array]:
    """Return the negative log-likelihood of the assistant's tokens, summed and divided by `num_loss_tokens`.

    Returns that of each token [B, T] as well, not divided.
    """
    qwen3 = bind(model_config, params)
    hidden_BTD = qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    logprobs_BT = token_logprobs(
        hidden_BTD, qwen3.output_embedding, batch.targets_BT, batch.loss_mask_BT > 0, chunk_tokens=chunk_tokens
    )
    losses_BT = -logprobs_BT * batch.loss_mask_BT
    return losses_BT.sum() / num_loss_tokens, losses_BT


def _by_kind(values_BT: jax.Array, batch: SFTBatch) -> jax.Array:
    """Sum values over the tokens of each of `KINDS`."""
    kinds = range(1, 1 + len(KINDS))
    return jnp.stack([jnp.where(batch.kinds_BT == kind, values_BT, 0).sum() for kind in kinds])


# Weights and moments are donated: the old ones are never read again, and two of each would not fit.
@functools.partial(
    jax.jit,
    static_argnames=("model_config", "optimizer_config", "steps", "chunk_tokens", "accumulation"),
    donate_argnames=("params", "optimizer_state"),
)
def sft_step(
    params: Params,
    optimizer_state: optax.OptState,
    batch: SFTBatch,
    *,
    model_config: ModelConfig,
    optimizer_config: OptimizerConfig,
    steps: int,
    chunk_tokens: int,
    accumulation: int = 1,
) -> tuple[Params, optax.OptState, dict[str, jax.Array]]:
    """Make one optimiser update on one batch, worked through in `accumulation` parts, if loss and gradients are finite.

    Returns the new weights and moments, and the metrics: loss, its number of tokens, both as sums by kind of row,
    gradient norm, and whether the update was `applied`.
    """
    num_loss_tokens = batch.loss_mask_BT.sum()  # of the whole batch: the mean is over tokens, not over parts
    loss_of = functools.partial(
        sft_loss, model_config=model_config, num_loss_tokens=num_loss_tokens, chunk_tokens=chunk_tokens
    )
    (loss, losses_BT), gradients = loss_and_gradients(loss_of, params, batch, parts=accumulation)
    optimizer = make_optimizer(optimizer_config, steps)
    params, optimizer_state, metrics = update_if_finite(optimizer, loss, gradients, params, optimizer_state)
    has_loss_BT = batch.loss_mask_BT > 0
    by_kind = {"loss_by_kind": _by_kind(losses_BT, batch), "loss_tokens_by_kind": _by_kind(has_loss_BT, batch)}
    return params, optimizer_state, metrics | by_kind | {"loss_tokens": has_loss_BT.sum()}


@functools.partial(jax.jit, static_argnames=("model_config", "chunk_tokens"))
def loss_and_tokens(
    params: Params, batch: SFTBatch, *, model_config: ModelConfig, chunk_tokens: int
) -> tuple[jax.Array, jax.Array]:
    """Return the summed loss of a batch, and its number of tokens."""
    loss, _ = sft_loss(
        params, batch, model_config=model_config, num_loss_tokens=jnp.ones(()), chunk_tokens=chunk_tokens
    )
    return loss, (batch.loss_mask_BT > 0).sum()


def held_out_metrics(config: SFTConfig, parts: Parts, params: Params, batches: SFTBatches) -> dict[str, float]:
    """Return the loss per token on the samples that are held out; nothing if there are none."""
    started = time.monotonic()
    found = [
        loss_and_tokens(
            params,
            place_batch(batch, num_rows, parts.mesh),
            model_config=parts.model_config,
            chunk_tokens=config.logprob_chunk_tokens,
        )
        for batch, num_rows in batches.held_out()
    ]
    if not found:
        return {}
    loss, tokens = (sum(map(float, sums)) for sums in zip(*found, strict=True))
    return {"held_out_loss": loss / tokens, "held_out_seconds": round(time.monotonic() - started, 3)}


def sft_metrics(
    of_step: Mapping[str, jax.Array],
    segment_tokens: Sequence[int],
    model_config: ModelConfig,
    *,
    learning_rate: float,
    seconds: float,
    data_seconds: float,
    num_devices: int,
) -> dict[str, Any]:
    """Return the figures of a step's update, of its tokens without padding, and of its time.

    A kind of row without a learnt token in the step has no loss.
    """
    sums, counts = (of_step[name].tolist() for name in ("loss_by_kind", "loss_tokens_by_kind"))
    tokens, loss_tokens = int(np.sum(segment_tokens)), int(of_step["loss_tokens"])
    # Padding is no work that the model needs, nor are logits that no loss reads.
    flops = model_flops(model_config, segment_tokens, logits_tokens=loss_tokens)
    mfu = utilisation(flops, seconds, devices=num_devices)
    return {
        "loss": of_step["loss"].item(),
        **{name: loss / count for name, loss, count in zip(LOSSES, sums, counts, strict=True) if count},
        "grad_norm": of_step["grad_norm"].item(),
        "applied": int(of_step["applied"]),
        "learning_rate": learning_rate,
        "tokens": tokens,
        "loss_tokens": loss_tokens,
        "seconds": round(seconds, 4),
        "data_seconds": round(data_seconds, 4),
        "tokens_per_second": round(tokens / seconds, 1),
        **({} if mfu is None else {"mfu": round(mfu, 4)}),
    }


def train_sft(config: SFTConfig, parts: Parts, state: TrainState, batches: SFTBatches, run: TrainingRun) -> TrainState:
    """Learn from `state` on, to the last batch; return the state after it."""
    steps = len(batches)
    with in_force(parts.mesh), contextlib.closing(batches.from_step(state.step)) as made_ahead:
        for step in range(state.step, steps):
            started = time.monotonic()
            batch = place_batch(next(made_ahead), batches.num_rows(step), parts.mesh)
            # The step's wait for its batch: next to nothing as long as the threads keep ahead.
            data_seconds = time.monotonic() - started
            host_goes_on()  # to a program of all hosts
            params, optimizer_state, of_step = sft_step(
                state.params,
                state.optimizer_state,
                batch,
                model_config=parts.model_config,
                optimizer_config=config.optimizer,
                steps=steps,
                chunk_tokens=config.logprob_chunk_tokens,
                accumulation=config.accumulation,
            )
            state = TrainState(step + 1, params, optimizer_state, {})
            # Reading the rate waits for the step, so it comes before the clock is read.
            learning_rate = last_learning_rate(config.optimizer, steps, optimizer_state, of_step["applied"])
            metrics = sft_metrics(
                of_step,
                batches.segment_tokens(step),
                parts.model_config,
                learning_rate=learning_rate,
                seconds=time.monotonic() - started,
                data_seconds=data_seconds,
                num_devices=1 if parts.mesh is None else parts.mesh.size,
            )
            if state.step % config.checkpoint_every_steps == 0 or state.step == steps:
                metrics |= held_out_metrics(config, parts, params, batches)
            run.end_step(state, metrics)
    return state
