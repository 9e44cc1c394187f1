"""Multi-turn GRPO as ASTRA has it: strictly online, no KL term, no entropy term, batch-level token mean.

One step, read from top to bottom in `train_rl`:

    roll out   groups of episodes, tools in the sandbox, until n of them have reward variance   (rollouts)
    learn      group-relative advantages, clipped ratio, one AdamW update                       (rl_loss, rl_step)

`stage.py` begins and ends the run.
"""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp
import optax

from astra_jax.checkpoints.checkpoint import TrainState
from astra_jax.mesh.placement import in_force, place_batch
from astra_jax.model.config import ModelConfig
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import Params, bind
from astra_jax.rl.batch import RLBatch, make_rl_batch
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective, grpo_token_losses
from astra_jax.rl.metrics import rl_metrics
from astra_jax.rl.rollouts import Rollouts
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer, update_if_finite
from astra_jax.training.parts import Parts
from astra_jax.training.run import TrainingRun


def rl_loss(
    params: Params, batch: RLBatch, *, model_config: ModelConfig, objective: Objective
) -> tuple[jax.Array, jax.Array]:
    """Return the mean GRPO loss per sampled token over the whole batch, and the policy's log-probs [B, T]."""
    qwen3 = bind(model_config, params)
    # The head is linear: hidden states divided by the temperature give the logits that tokens were sampled from.
    hidden_BTD = qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT) / objective.temperature
    logprobs_BT = token_logprobs(
        hidden_BTD, qwen3.output_embedding, batch.targets_BT, chunk_tokens=objective.chunk_tokens
    )
    losses_BT = grpo_token_losses(
        logprobs_BT, batch.sampled_logprobs_BT, batch.advantages_BT, clip_epsilon=objective.clip_epsilon
    )
    return (losses_BT * batch.loss_mask_BT).sum() / batch.loss_mask_BT.sum(), logprobs_BT


# Weights and moments are donated: the old ones are never looked at again, and two of each would not fit.
@functools.partial(
    jax.jit,
    static_argnames=("model_config", "optimizer_config", "steps", "objective"),
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
) -> tuple[Params, optax.OptState, dict[str, jax.Array]]:
    """Make one optimiser update on one batch, if its loss and gradients are finite; return its metrics as well."""
    loss_of = functools.partial(rl_loss, batch=batch, model_config=model_config, objective=objective)
    (loss, logprobs_BT), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    optimizer = make_optimizer(optimizer_config, steps)
    params, optimizer_state, metrics = update_if_finite(optimizer, loss, gradients, params, optimizer_state)
    # Sampler and learner compute the same policy by two programs; how far they are apart tells whether ρ is noise.
    difference_BT = jnp.abs(logprobs_BT - batch.sampled_logprobs_BT) * batch.loss_mask_BT
    metrics["mean_abs_logprob_difference"] = difference_BT.sum() / batch.loss_mask_BT.sum()
    return params, optimizer_state, metrics


async def train_rl(
    config: RLConfig, parts: Parts, state: TrainState, rollouts: Rollouts, run: TrainingRun
) -> TrainState:
    """Learn from `state` on, to the last step; return the state after it.

    Raises:
        BatchFillingStalled: the policy's groups no longer vary (everything solved, or nothing).
        SandboxUnavailable: the sandbox is down; the run resumes from its last checkpoint.
        NotFinite, Terminated: as `TrainingRun.end_step`; the state is saved.
    """
    objective = Objective(config.rollout.temperature, config.clip_epsilon, config.logprob_chunk_tokens)
    for step in range(state.step, config.steps):
        started = time.monotonic()
        groups, rolled_out = await rollouts.batch(state.params, step=step)
        batch = make_rl_batch(groups, length_bucket_tokens=config.length_bucket_tokens, pad_id=parts.tokenizer.pad_id)
        rollout_seconds = time.monotonic() - started
        with in_force(parts.mesh):
            params, optimizer_state, of_step = rl_step(
                state.params,
                state.optimizer_state,
                place_batch(batch, len(batch.tokens_BT), parts.mesh),
                model_config=parts.model_config,
                optimizer_config=config.optimizer,
                steps=config.steps,
                objective=objective,
            )
        # `rl_step` is only dispatched by now; the first figure that is read, in `rl_metrics`, waits for it.
        state = TrainState(step + 1, params, optimizer_state, rollouts.position())
        # A batch of groups that had waited rolled nothing out: then it is told of what was learnt from.
        shown = rolled_out or groups
        metrics = rl_metrics(of_step, shown, rollouts, started=started, rollout_seconds=rollout_seconds)
        rollouts.log_episodes(step, shown)
        run.end_step(state, metrics, batch)
    return state
