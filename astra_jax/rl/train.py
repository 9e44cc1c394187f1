"""Multi-turn GRPO as ASTRA has it: strictly online, no KL term, no entropy term, batch-level token mean.

One step, read from top to bottom in `train_rl`:

    roll out   groups of episodes, tools in the sandbox, until n of them have reward variance   (rollouts)
    learn      group-relative advantages, clipped ratio, one AdamW update               (rl_loss, rl_step)
    evaluate   every `every_steps`: held-out environments; keep the best policy           (held_out)

`stage.py` begins and ends the run.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax

from astra_jax.checkpoints.checkpoint import TrainState
from astra_jax.mesh.placement import in_force, in_memory, on_host, place_batch, segment_multiple
from astra_jax.model.config import ModelConfig
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import Params, bind
from astra_jax.model.sharding import constrain
from astra_jax.rl.batch import RLBatch, by_episode, make_rl_batch
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective, objective_named
from astra_jax.rl.held_out import HeldOut
from astra_jax.rl.metrics import filling_metrics, rl_metrics, time_metrics
from astra_jax.rl.rollouts import Rollouts
from astra_jax.training.accumulation import loss_and_gradients
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer, update_if_finite
from astra_jax.training.run import Parts, TrainingRun


def objective_of(config: RLConfig) -> Objective:
    """Return the objective of a run, which is the same for all batches."""
    return Objective(
        config.rollout.temperature, config.clip_epsilon, config.logprob_chunk_tokens, objective_named(config.objective)
    )


def policy_logprobs(params: Params, batch: RLBatch, *, model_config: ModelConfig, objective: Objective) -> jax.Array:
    """Return the policy's log-probs of the sampled tokens, and 0 for others; float32 [B, T]."""
    qwen3 = bind(model_config, params)
    # The head is linear: hidden states divided by the temperature give logits divided by it.
    hidden_BTD = qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT, batch.prefix_ids_BT)
    hidden_BTD /= objective.temperature
    return token_logprobs(
        hidden_BTD,
        qwen3.output_embedding,
        batch.targets_BT,
        batch.loss_mask_BT > 0,
        chunk_tokens=objective.chunk_tokens,
    )


def rl_loss(
    params: Params,
    batch: RLBatch,
    *,
    model_config: ModelConfig,
    objective: Objective,
    num_sampled: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the loss, summed over sampled tokens and divided by `num_sampled`, and the policy's log-probs [B, T].

    `num_sampled` is the number of sampled tokens in the whole batch; by default, in `batch`.
    """
    logprobs_BT = policy_logprobs(params, batch, model_config=model_config, objective=objective)
    losses_BT = objective.losses(logprobs_BT, batch._asdict())
    if num_sampled is None:
        num_sampled = batch.loss_mask_BT.sum()
    return (losses_BT * batch.loss_mask_BT).sum() / num_sampled, logprobs_BT


# Weights and moments are donated: the old ones are never read again, and two of each would not fit.
@functools.partial(
    jax.jit,
    static_argnames=("model_config", "optimizer_config", "steps", "objective", "accumulation", "packing"),
    donate_argnames=("params", "optimizer_state"),
)
def rl_step(
    params: Params,
    optimizer_state: optax.OptState,
    batch: RLBatch,
    *,
    model_config: ModelConfig,
    optimizer_config: OptimizerConfig,
    steps: int,
    objective: Objective,
    accumulation: int = 1,
    packing: bool = False,
) -> tuple[Params, optax.OptState, dict[str, jax.Array], jax.Array]:
    """Make one optimiser update on one batch, computed in `accumulation` parts, if loss and gradients are finite.

    With `packing`, parts without loss are skipped. Returns the step's metrics, and the log-probs of the sampled tokens
    before the update [B, T].
    """
    num_sampled = batch.loss_mask_BT.sum()  # of the whole batch: the mean is over tokens, not over parts

    loss_of = functools.partial(rl_loss, model_config=model_config, objective=objective, num_sampled=num_sampled)
    (loss, logprobs_BT), gradients = loss_and_gradients(loss_of, params, batch, parts=accumulation, skips_empty=packing)
    optimizer = make_optimizer(optimizer_config, steps)
    params, optimizer_state, metrics = update_if_finite(optimizer, loss, gradients, params, optimizer_state)
    # Sampler and learner compute the same policy by two programs; their difference shows whether ρ is noise.
    difference_BT = jnp.abs(logprobs_BT - batch.sampled_logprobs_BT) * batch.loss_mask_BT
    metrics["mean_abs_logprob_difference"] = difference_BT.sum() / num_sampled
    return params, optimizer_state, metrics, constrain(logprobs_BT, "batch", "sequence")


def moments_on_host(state: TrainState) -> TrainState:
    """Return a state whose optimiser state is in the host's memory only."""
    if all(leaf.sharding.memory_kind == "pinned_host" for leaf in jax.tree.leaves(state.optimizer_state)):
        return state
    waiting = in_memory("pinned_host", state.optimizer_state)
    # Deleted at once, even if another reference exists: rollouts need the memory.
    for leaf in jax.tree.leaves(state.optimizer_state):
        leaf.delete()
    return dataclasses.replace(state, optimizer_state=waiting)


async def train_rl(
    config: RLConfig,
    parts: Parts,
    state: TrainState,
    rollouts: Rollouts,
    run: TrainingRun,
    held_out: HeldOut | None = None,
) -> TrainState:
    """Learn from `state` on, to the last step; return the state after it."""
    objective = objective_of(config)

    async def evaluated(
        held_out: HeldOut, state: TrainState, metrics: dict[str, Any]
    ) -> tuple[TrainState, dict[str, Any]]:
        if config.optimizer_waits_on_host:
            state = moments_on_host(state)
        # If a signal ends the evaluation, it begins anew when the run resumes.
        unfinished = dataclasses.replace(state, unfinished_line=metrics)
        metrics = metrics | await run.unless_it_ends(unfinished, held_out.evaluate(state))
        return dataclasses.replace(state, unfinished_line=None), metrics

    if held_out is not None and state.unfinished_line is not None:
        state, metrics = await evaluated(held_out, state, state.unfinished_line)
        run.end_step(state, metrics)
    for step in range(state.step, config.steps):
        started = time.monotonic()
        if config.optimizer_waits_on_host:
            state = moments_on_host(state)
        # A run that resumes from `state` fills the batch again: the state has no groups of an unfinished batch.
        groups, rolled_out = await run.unless_it_ends(state, rollouts.batch(state.params, step=step))
        batch, placed = make_rl_batch(
            groups,
            length_bucket_tokens=config.length_bucket_tokens,
            pad_id=parts.tokenizer.pad_id,
            episodes_per_row=config.episodes_per_row,
            segment_multiple=segment_multiple(parts.mesh),
            optional_columns=objective.optional_columns,
            num_rows=config.rows_per_update,
            packed_parts=config.accumulation if config.packing else None,
        )
        rollout_seconds = time.monotonic() - started
        with in_force(parts.mesh):
            params, optimizer_state, of_step, logprobs_BT = rl_step(
                state.params,
                in_memory("device", state.optimizer_state),
                place_batch(batch, len(batch.tokens_BT), parts.mesh),
                model_config=parts.model_config,
                optimizer_config=config.optimizer,
                steps=config.steps,
                objective=objective,
                accumulation=config.accumulation,
                packing=config.packing,
            )
        # `rl_step` has only been dispatched; `rl_metrics` reads its first figure and waits for it.
        state = TrainState(step + 1, params, optimizer_state, rollouts.position())
        # If a batch had only groups that waited, nothing was rolled out: the figures are those of the batch.
        shown = rolled_out or groups
        metrics = rl_metrics(of_step, shown, rollouts.filling.errors) | filling_metrics(groups, rollouts, step=step)
        metrics |= time_metrics(
            batch,
            rollouts.filling,
            parts.model_config,
            started=started,
            rollout_seconds=rollout_seconds,
            num_devices=1 if parts.mesh is None else parts.mesh.size,
        )
        if rollouts.is_logged(step):
            episodes = [episode for group in groups for episode in group.group]
            rollouts.log_episodes(step, shown, by_episode(on_host(logprobs_BT, parts.mesh), episodes, placed))
        if held_out is not None and held_out.is_due(state.step):
            state, metrics = await evaluated(held_out, state, metrics)
        run.end_step(state, metrics)
    return state
