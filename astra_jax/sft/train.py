"""Supervised fine-tuning: trajectories and gold episodes in, a checkpoint out. The whole step is `sft_step`."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import jax
import optax
from pydantic import BaseModel, ConfigDict, Field

from astra_jax.checkpoint import Checkpoints, TrainState
from astra_jax.metrics import MetricsLog, report_progress
from astra_jax.model.config import ModelConfig
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.mimetic_init import mimetic_init
from astra_jax.model.qwen3 import Params, bind
from astra_jax.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from astra_jax.policy import Policy, load_policy, save_policy
from astra_jax.sft.data import (
    SFTBatch,
    SFTSample,
    batch_schedule,
    gold_sample,
    make_batch,
    split_by_length,
    trajectory_samples,
)
from astra_jax.tokenizer import Tokenizer
from synthesis.record_io import RecordSource
from synthesis.records import Environment, Trajectory


class SFTConfig(BaseModel):
    """What to learn from, for how long, and where to write."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    steps: int = Field(gt=0)
    out: Path
    init: Path | None = None
    """A checkpoint folder to start from; without it, `model` starts from random weights with `tokenizer`."""
    model: ModelConfig | None = None
    tokenizer: Path | None = None
    trajectories: tuple[Path, ...] = ()
    """Record directories of trajectories."""
    environments: tuple[Path, ...] = ()
    """Record directories of environments, whose gold episodes are learnt."""
    irrelevant_per_band: int = Field(default=0, ge=0)
    """Distractors of each band that a gold episode shows."""
    length_buckets: tuple[int, ...]
    """Lengths in tokens that batches are padded to; a sample over the largest is dropped and counted."""
    batch_tokens: int = Field(gt=0)
    """Tokens per step, padding included."""
    short_first_epochs: int = Field(default=0, ge=0)
    """Epochs at the start that go from short samples to long ones."""
    optimizer: OptimizerConfig
    checkpoint_every_steps: int = Field(default=100, gt=0)
    logprob_chunk_tokens: int = Field(default=1024, gt=0)


def sft_loss(params: Params, model: ModelConfig, batch: SFTBatch, chunk_tokens: int) -> jax.Array:
    """Mean negative log-likelihood per token that the assistant said, over the whole batch."""
    qwen3 = bind(model, params)
    hidden_BTD = qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    logprobs_BT = token_logprobs(hidden_BTD, qwen3.output_embedding, batch.targets_BT, chunk_tokens=chunk_tokens)
    return -(logprobs_BT * batch.loss_mask_BT).sum() / batch.loss_mask_BT.sum()


@functools.partial(jax.jit, static_argnames=("model", "optimizer", "steps", "chunk_tokens"), donate_argnums=(0, 1))
def sft_step(
    params: Params,
    optimizer_state: optax.OptState,
    batch: SFTBatch,
    *,
    model: ModelConfig,
    optimizer: OptimizerConfig,
    steps: int,
    chunk_tokens: int,
) -> tuple[Params, optax.OptState, dict[str, jax.Array]]:
    """One optimiser update on one batch."""
    loss, gradients = jax.value_and_grad(sft_loss)(params, model, batch, chunk_tokens)
    updates, optimizer_state = make_optimizer(optimizer, steps).update(gradients, optimizer_state, params)
    metrics = {"loss": loss, "grad_norm": optax.tree.norm(gradients)}
    return optax.apply_updates(params, updates), optimizer_state, metrics


def train_sft(config: SFTConfig) -> dict[str, Any]:
    """Run SFT to its last step, from the newest whole checkpoint of `out` if there is one; return closing figures."""
    policy = _initial_policy(config)
    samples, dropped = split_by_length(_samples(config, policy.tokenizer), config.length_buckets[-1])
    schedule = batch_schedule(
        [len(sample.ids) for sample in samples],
        length_buckets=config.length_buckets,
        batch_tokens=config.batch_tokens,
        steps=config.steps,
        seed=config.seed,
        short_first_epochs=config.short_first_epochs,
    )
    checkpoints = Checkpoints(config.out / "checkpoints", policy.model, keep_weights=2)
    optimizer_state = make_optimizer(config.optimizer, config.steps).init(policy.params)
    # Both committed to one device, as a step returns them: else its second call would compile it again.
    params, optimizer_state = jax.device_put((policy.params, optimizer_state), jax.devices()[0])
    state = TrainState(0, params, optimizer_state, jax.random.key(config.seed), {})
    state = checkpoints.restore_latest(like=state) or state
    params, optimizer_state = state.params, state.optimizer_state
    log = MetricsLog(config.out / "metrics.jsonl", first_step=state.step)
    learning_rate = learning_rate_schedule(config.optimizer, config.steps)
    loss = float("nan")
    for step in range(state.step, config.steps):
        started = time.monotonic()
        chosen = [samples[index] for index in schedule[step]]
        batch = make_batch(
            chosen,
            length_buckets=config.length_buckets,
            batch_tokens=config.batch_tokens,
            pad_id=policy.tokenizer.pad_id,
        )
        params, optimizer_state, metrics = sft_step(
            params,
            optimizer_state,
            batch,
            model=policy.model,
            optimizer=config.optimizer,
            steps=config.steps,
            chunk_tokens=config.logprob_chunk_tokens,
        )
        loss = float(metrics["loss"])
        line = {
            "loss": loss,
            "grad_norm": float(metrics["grad_norm"]),
            "learning_rate": float(learning_rate(step)),
            "tokens": int(batch.segment_ids_BT.sum()),
            "seconds": round(time.monotonic() - started, 4),
        }
        log.write(step, line)
        report_progress("sft", step, config.steps, line, ("loss", "learning_rate", "seconds"))
        if (step + 1) % config.checkpoint_every_steps == 0 or step + 1 == config.steps:
            rng = jax.random.key(config.seed)
            checkpoints.save(TrainState(step + 1, params, optimizer_state, rng, {"step": step + 1}))
    save_policy(Policy(policy.model, params, policy.tokenizer), config.out / "policy")
    return {"steps": config.steps, "loss": loss, "samples": len(samples), "dropped_over_length": dropped}


def _initial_policy(config: SFTConfig) -> Policy:
    if config.init is not None:
        return load_policy(config.init)
    if config.model is None or config.tokenizer is None:
        raise ValueError(
            "SFT needs `init` (a checkpoint), or both `model` and `tokenizer` to start from random weights"
        )
    return Policy(config.model, mimetic_init(config.model, config.seed), Tokenizer.load(config.tokenizer))


def _samples(config: SFTConfig, tokenizer: Tokenizer) -> list[SFTSample]:
    samples: list[SFTSample] = []
    for directory in config.trajectories:
        for trajectory in RecordSource(directory, Trajectory):
            samples.extend(trajectory_samples(trajectory, tokenizer))
    for directory in config.environments:
        for environment in RecordSource(directory, Environment):
            samples.append(
                gold_sample(environment, tokenizer, irrelevant_per_band=config.irrelevant_per_band, seed=config.seed)
            )
    return samples
