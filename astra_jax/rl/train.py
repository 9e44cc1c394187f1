"""Multi-turn GRPO as ASTRA has it: strictly online, no KL term, no entropy term, batch-level token mean.

One step, read from top to bottom in `train_rl`:

    roll out   groups of episodes, tools in the sandbox, until n of them have reward variance   (rollouts)
    learn      group-relative advantages, clipped ratio, one AdamW update                       (rl_loss, rl_step)

`stage.py` begins and ends the run.
"""

from __future__ import annotations

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import optax

from astra_jax.checkpoints.checkpoint import TrainState
from astra_jax.mesh.placement import in_force, in_memory, place_batch, segment_multiple
from astra_jax.model.config import ModelConfig
from astra_jax.model.logprobs import kept_logprobs, token_logprobs
from astra_jax.model.qwen3 import Params, bind
from astra_jax.rl.batch import RLBatch, make_rl_batch
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective, grpo_token_losses
from astra_jax.rl.metrics import rl_metrics
from astra_jax.rl.rollouts import Rollouts
from astra_jax.training.accumulation import loss_and_gradients
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer, update_if_finite
from astra_jax.training.parts import Parts
from astra_jax.training.run import TrainingRun


def objective_of(config: RLConfig) -> Objective:
    """Return what a run's loss is told beside its batch."""
    return Objective(config.rollout.temperature, config.clip_epsilon, config.logprob_chunk_tokens)


def rl_loss(
    params: Params,
    batch: RLBatch,
    *,
    model_config: ModelConfig,
    objective: Objective,
    num_loss_tokens: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the GRPO loss, summed and divided by `num_loss_tokens`, and the policy's log-probs [B, T].

    Without that number, by the batch's own: the mean per sampled token; of other tokens the log-prob is 0. Where a
    token was drawn from the ids that truncation kept, its log-prob is the one among the same ids.
    """
    qwen3 = bind(model_config, params)
    # The head is linear: hidden states divided by the temperature give the logits that tokens were sampled from.
    hidden_BTD = qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT, batch.prefix_ids_BT)
    hidden_BTD /= objective.temperature
    if batch.kept_BTK is None:
        logprobs_BT = token_logprobs(
            hidden_BTD,
            qwen3.output_embedding,
            batch.targets_BT,
            batch.loss_mask_BT > 0,
            chunk_tokens=objective.chunk_tokens,
        )
    else:
        logprobs_BT = kept_logprobs(
            hidden_BTD,
            qwen3.output_embedding,
            batch.targets_BT,
            jnp.asarray(batch.kept_BTK),
            chunk_tokens=objective.chunk_tokens,
        )
    losses_BT = grpo_token_losses(
        logprobs_BT, batch.sampled_logprobs_BT, batch.advantages_BT, clip_epsilon=objective.clip_epsilon
    )
    if num_loss_tokens is None:
        num_loss_tokens = batch.loss_mask_BT.sum()
    return (losses_BT * batch.loss_mask_BT).sum() / num_loss_tokens, logprobs_BT


# Weights and moments are donated: the old ones are never looked at again, and two of each would not fit.
@functools.partial(
    jax.jit,
    static_argnames=("model_config", "optimizer_config", "steps", "objective", "accumulation"),
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
) -> tuple[Params, optax.OptState, dict[str, jax.Array]]:
    """Make one optimiser update on one batch, worked through in `accumulation` parts, if loss and gradients are finite.

    Returns its metrics as well.
    """
    num_loss_tokens = batch.loss_mask_BT.sum()  # of the whole batch: the mean is over tokens, not over parts

    def loss_of(params: Params, part: RLBatch) -> tuple[jax.Array, jax.Array]:
        loss, logprobs_BT = rl_loss(
            params, part, model_config=model_config, objective=objective, num_loss_tokens=num_loss_tokens
        )
        difference_BT = jnp.abs(logprobs_BT - part.sampled_logprobs_BT) * part.loss_mask_BT
        return loss, difference_BT.sum() / num_loss_tokens

    (loss, difference), gradients = loss_and_gradients(loss_of, params, batch, parts=accumulation, has_aux=True)
    optimizer = make_optimizer(optimizer_config, steps)
    params, optimizer_state, metrics = update_if_finite(optimizer, loss, gradients, params, optimizer_state)
    # Sampler and learner compute the same policy by two programs; how far they are apart tells whether ρ is noise.
    return params, optimizer_state, metrics | {"mean_abs_logprob_difference": difference}


async def train_rl(
    config: RLConfig, parts: Parts, state: TrainState, rollouts: Rollouts, run: TrainingRun
) -> TrainState:
    """Learn from `state` on, to the last step; return the state after it.

    Raises:
        BatchFillingStalled: the policy's groups no longer vary (everything solved, or nothing).
        SandboxUnavailable, HostFailed: the sandbox is down, here or at another host, or that host has failed otherwise;
            the run resumes from its last checkpoint.
        NotFinite, Terminated: as `TrainingRun.end_step`; the state is saved.
    """
    objective = objective_of(config)
    for step in range(state.step, config.steps):
        started = time.monotonic()
        if config.optimizer_waits_on_host:
            waiting = in_memory("pinned_host", state.optimizer_state)
            # At once, whoever still knows of them: rollouts need the room.
            for leaf in jax.tree.leaves(state.optimizer_state):
                leaf.delete()
            state = dataclasses.replace(state, optimizer_state=waiting)
        groups, rolled_out = await rollouts.batch(state.params, step=step)
        batch = make_rl_batch(
            groups,
            length_bucket_tokens=config.length_bucket_tokens,
            pad_id=parts.tokenizer.pad_id,
            top_k=config.rollout.top_k,
            episodes_per_row=config.episodes_per_row,
            segment_multiple=segment_multiple(parts.mesh),
        )
        rollout_seconds = time.monotonic() - started
        with in_force(parts.mesh):
            params, optimizer_state, of_step = rl_step(
                state.params,
                in_memory("device", state.optimizer_state),
                place_batch(batch, len(batch.tokens_BT), parts.mesh),
                model_config=parts.model_config,
                optimizer_config=config.optimizer,
                steps=config.steps,
                objective=objective,
                accumulation=config.accumulation,
            )
        # `rl_step` is only dispatched by now; the first figure that is read, in `rl_metrics`, waits for it.
        state = TrainState(step + 1, params, optimizer_state, rollouts.position())
        # A batch of groups that had waited rolled nothing out: then it is told of what was learnt from.
        shown = rolled_out or groups
        metrics = rl_metrics(of_step, shown, rollouts, started=started, rollout_seconds=rollout_seconds)
        rollouts.log_episodes(step, shown)
        run.end_step(state, metrics, batch)
    return state
