"""Supervised fine-tuning: trajectories and gold episodes in, a checkpoint out. The whole step is `sft_step`."""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from pydantic import Field

from astra_jax.chat.template import require_chat_template
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.checkpoint import Checkpoints, TrainState, load_params
from astra_jax.checkpoints.policy import Policy, read_policy, save_policy
from astra_jax.checkpoints.provenance import training_stage
from astra_jax.config import ConfigError
from astra_jax.mesh.placement import (
    host_folder,
    host_rows,
    in_force,
    init_optimizer_state,
    place_batch,
    place_params,
    require_rows,
    training_mesh,
)
from astra_jax.model.config import ModelConfig, ModelOverrides
from astra_jax.model.flops import model_flops_utilisation
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.mimetic_init import mimetic_init
from astra_jax.model.qwen3 import Params, bind
from astra_jax.model.sharding import MeshConfig, constrain, constrain_params, require_divisible
from astra_jax.sft.batches import SFTBatches, SFTDataConfig
from astra_jax.sft.data import SFTBatch
from astra_jax.training.metrics import MetricsLog, Progress, last_metric
from astra_jax.training.not_finite import NotFiniteSteps
from astra_jax.training.optimizer import (
    OptimizerConfig,
    learning_rate_schedule,
    make_optimizer,
    update_if_finite,
    updates_applied,
)
from astra_jax.training.run_record import SFT_RUN, RunRecord, digest_of_policy, digest_of_records, open_run
from astra_jax.training.termination import Terminated, Termination
from astra_jax.training.wandb_run import WandbConfig, require_wandb
from synthesis.fingerprint import digest, digest_of_files

_MAY_CHANGE = (
    "mesh",
    "accumulation",
    "checkpoint_every_steps",
    "keep_weights",
    "max_not_finite_steps",
    "logprob_chunk_tokens",
    "model.remat",
    "model_overrides.remat",
    "wandb",
)
"""Keys of the config that may change when a run resumes: where it works, in what memory, and what it keeps."""
_SOURCES = (
    "astra_jax/chat/format.py",
    "astra_jax/training/optimizer.py",
    "astra_jax/sft/batches.py",
    "astra_jax/sft/data.py",
    "astra_jax/sft/sample_source.py",
    "astra_jax/sft/schedule.py",
    "astra_jax/sft/train.py",
)
"""Files that decide what is learnt: samples, their order, loss and step."""


class SFTConfig(SFTDataConfig):
    """What to learn from, for how long, and where to write."""

    out: Path
    init: Path | None = None
    """A policy folder to start from; without it, `model` starts from random weights with `tokenizer`."""
    model_overrides: ModelOverrides = ModelOverrides()
    """What changes of the model of `init`: numerics, remat, rope scaling."""
    model: ModelConfig | None = None
    tokenizer: Path | None = None
    optimizer: OptimizerConfig
    accumulation: int = Field(default=1, gt=0)
    """Parts that a batch is worked through in, one after the other: the same update in less memory."""
    mesh: MeshConfig | None = None
    """Which devices, of all hosts; without it, the first alone."""
    max_not_finite_steps: int = Field(default=5, gt=0)
    """Steps in a row whose loss or gradient is not finite, and that are therefore not applied, before the run stops."""
    checkpoint_every_steps: int = Field(default=100, gt=0)
    keep_weights: int | None = Field(default=None, gt=0)
    """Checkpoints whose weights are kept; without it all, for analysis. Optimiser state is kept for the newest two."""
    logprob_chunk_tokens: int = Field(default=256, gt=0)
    wandb: WandbConfig | None = None
    """Where Weights & Biases shows the run, live; without it, nowhere. Needs the extra `astra-jax[wandb]`."""


def sft_loss(
    params: Params, model: ModelConfig, batch: SFTBatch, num_loss_tokens: jax.Array, chunk_tokens: int
) -> jax.Array:
    """Negative log-likelihood of what the assistant said, summed and divided by `num_loss_tokens`."""
    qwen3 = bind(model, params)
    hidden_BTD = qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    logprobs_BT = token_logprobs(hidden_BTD, qwen3.output_embedding, batch.targets_BT, chunk_tokens=chunk_tokens)
    return -(logprobs_BT * batch.loss_mask_BT).sum() / num_loss_tokens


def loss_and_gradients(
    params: Params, model: ModelConfig, batch: SFTBatch, *, chunk_tokens: int, accumulation: int
) -> tuple[jax.Array, Params]:
    """Mean loss per token that the assistant said, over the whole batch, and its gradients.

    With `accumulation` = n the batch is worked through in n parts, part i with the rows i, i + n, …: so no row moves to
    another device.
    """
    num_loss_tokens = batch.loss_mask_BT.sum()
    of_part = jax.value_and_grad(sft_loss)
    if accumulation == 1:
        return of_part(params, model, batch, num_loss_tokens, chunk_tokens)
    parts_PBT = jax.tree.map(lambda x_BT: x_BT.reshape(-1, accumulation, x_BT.shape[1]).swapaxes(0, 1), batch)

    def add_part(total: tuple[jax.Array, Params], part: SFTBatch) -> tuple[tuple[jax.Array, Params], None]:
        part = jax.tree.map(lambda x_BT: constrain(x_BT, "batch", "sequence"), part)
        return jax.tree.map(jnp.add, total, of_part(params, model, part, num_loss_tokens, chunk_tokens)), None

    nothing = (jnp.zeros(()), constrain_params(jax.tree.map(jnp.zeros_like, params)))
    return jax.lax.scan(add_part, nothing, parts_PBT)[0]


@functools.partial(
    jax.jit,
    static_argnames=("model", "optimizer", "steps", "chunk_tokens", "accumulation"),
    donate_argnames=("params", "optimizer_state"),
)
def sft_step(
    params: Params,
    optimizer_state: optax.OptState,
    batch: SFTBatch,
    *,
    model: ModelConfig,
    optimizer: OptimizerConfig,
    steps: int,
    chunk_tokens: int,
    accumulation: int = 1,
) -> tuple[Params, optax.OptState, dict[str, jax.Array]]:
    """One optimiser update on one batch, if its loss and gradients are finite."""
    loss, gradients = loss_and_gradients(params, model, batch, chunk_tokens=chunk_tokens, accumulation=accumulation)
    return update_if_finite(make_optimizer(optimizer, steps), loss, gradients, params, optimizer_state)


def train_sft(config: SFTConfig) -> dict[str, Any]:
    """Run SFT to its last step, from the newest whole checkpoint of `out` if there is one; return closing figures.

    Where there are several hosts, each calls this with the same config, on one file system.

    A run that is finished is not run again: its closing figures are returned, with `already_complete`.

    Raises:
        Terminated: after SIGTERM or Ctrl-C, when the state is saved.
        DestinationRefused: `out` is something else than a run, or one that was begun with another config.
        ConfigError: the mesh does not fit the devices, the model or the batch; or W&B is wanted and cannot be used.
        NotFinite: `max_not_finite_steps` steps in a row could not be applied; the state is saved.
    """
    mesh = training_mesh(config.mesh)
    wandb = config.wandb if jax.process_index() == 0 else None
    require_wandb(wandb)
    for num_rows, _ in config.batch_shapes:
        require_rows(num_rows, config.accumulation, mesh)
    model, tokenizer = _model_and_tokenizer(config)
    model.require_context(config.length_buckets[-1])
    require_divisible(model, mesh)
    run = _open_run(config)
    if run.figures is not None:
        return run.figures
    run.begin()
    batches = SFTBatches(
        config,
        tokenizer,
        index=config.out / "sample_lengths.npz",
        host_rows=functools.partial(host_rows, mesh=mesh),
    )
    steps = len(batches)
    metrics_path = host_folder(config.out) / "metrics.jsonl"
    optimizer = make_optimizer(config.optimizer, steps)
    learning_rate = learning_rate_schedule(config.optimizer, steps)
    progress = Progress("sft", steps, ("loss", "learning_rate", "tokens_per_second"))
    not_finite = NotFiniteSteps("sft", host_folder(config.out), most_in_a_row=config.max_not_finite_steps)
    with (
        Termination() as termination,
        Checkpoints(config.out / "checkpoints", model, keep_weights=config.keep_weights) as checkpoints,
    ):
        state = checkpoints.restore_latest(optimizer, mesh=mesh) or _first_state(config, model, optimizer, mesh)
        params, optimizer_state = state.params, state.optimizer_state
        with (
            in_force(mesh),
            contextlib.closing(batches.from_position(state.data_position)) as made_ahead,
            MetricsLog(
                metrics_path,
                first_step=state.step,
                wandb=wandb,
                hyperparameters=config.model_dump(mode="json"),
            ) as log,
        ):
            for step in range(state.step, steps):
                started = time.monotonic()
                host_batch = next(made_ahead)
                batch = place_batch(host_batch, batches.num_rows(step), mesh)
                data_seconds = time.monotonic() - started
                params, optimizer_state, metrics = sft_step(
                    params,
                    optimizer_state,
                    batch,
                    model=model,
                    optimizer=config.optimizer,
                    steps=steps,
                    chunk_tokens=config.logprob_chunk_tokens,
                    accumulation=config.accumulation,
                )
                # Reading them waits for the step.
                loss, grad_norm, applied = (metrics[name].item() for name in ("loss", "grad_norm", "applied"))
                seconds = time.monotonic() - started
                segment_tokens = batches.segment_tokens(step)
                tokens = int(np.sum(segment_tokens))
                line = {
                    "loss": loss,
                    "grad_norm": grad_norm,
                    "applied": int(applied),
                    "learning_rate": float(learning_rate(updates_applied(optimizer_state) - applied)),
                    "tokens": tokens,
                    "seconds": round(seconds, 4),
                    "data_seconds": round(data_seconds, 4),
                    "tokens_per_second": round(tokens / seconds, 1),
                }
                devices = 1 if mesh is None else mesh.size
                if (mfu := model_flops_utilisation(model, segment_tokens, seconds, devices=devices)) is not None:
                    line["mfu"] = round(mfu, 4)
                log.write(step, line)
                progress.report(step, line)
                not_finite.note(step, line, host_batch)
                is_last, is_ended = step + 1 == steps, termination.asked() or not_finite.are_too_many
                if is_last or is_ended or (step + 1) % config.checkpoint_every_steps == 0:
                    checkpoints.save(
                        TrainState(step + 1, params, optimizer_state, state.rng, batches.position(step + 1))
                    )
                if not_finite.are_too_many or (is_ended and not is_last):
                    checkpoints.wait()
                    if not_finite.are_too_many:
                        raise not_finite.error()
                    raise Terminated("sft", step + 1, termination.signum)
    stage = training_stage("SFT", config, (*config.trajectories, *config.environments))
    save_policy(Policy(model, params, tokenizer), config.out / "policy", trained_from=config.init, stage=stage)
    figures = {"samples": batches.num_samples, "dropped_over_length": batches.num_dropped_over_length}
    return run.finish({"steps": steps, "loss": last_metric(metrics_path, "loss"), **figures})


def _open_run(config: SFTConfig) -> RunRecord:
    """The record of the run in `out`; refused if it was begun with something else."""
    contents = {
        "trajectories": digest([digest_of_records(directory) for directory in config.trajectories]),
        "environments": digest([digest_of_records(directory) for directory in config.environments]),
    }
    if config.init is not None:
        contents["init"] = digest_of_policy(config.init)
    if config.tokenizer is not None:
        contents["tokenizer"] = digest_of_files([config.tokenizer / "tokenizer.json"])
    return open_run(
        SFT_RUN,
        config,
        config.out,
        product="policy/params.whole.json",
        contents=contents,
        may_change=_MAY_CHANGE,
        sources=_SOURCES,
    )


def _model_and_tokenizer(config: SFTConfig) -> tuple[ModelConfig, Tokenizer]:
    """What is trained; no weight is read or made."""
    if config.init is not None:
        model, tokenizer = read_policy(config.init, overrides=config.model_overrides)
        require_chat_template(config.init, tokenizer)
        return model, tokenizer
    if config.model is None or config.tokenizer is None:
        raise ConfigError(
            "SFT needs `init` (a checkpoint), or both `model` and `tokenizer` to start from random weights"
        )
    tokenizer = Tokenizer.load(config.tokenizer)
    config.model.require_vocabulary(tokenizer.vocab_size, config.tokenizer)
    require_chat_template(config.tokenizer, tokenizer)
    return config.model, tokenizer


def _first_state(
    config: SFTConfig, model: ModelConfig, optimizer: optax.GradientTransformation, mesh: Mesh | None
) -> TrainState:
    """The state of a run that starts: the weights of `init`, or random ones."""
    if config.init is None:
        params = place_params(mimetic_init(model, config.seed), mesh)
    else:
        _, params = load_params(config.init, mesh=mesh, overrides=config.model_overrides)
    return TrainState(0, params, init_optimizer_state(optimizer, params, mesh), jax.random.key(config.seed), {})
