"""The whole SFT stage: it checks its parts, opens the run, trains by `train_sft`, and writes the policy."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.mesh.placement import host_rows, place_params, require_rows
from astra_jax.metrics_file import last_metric
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.qwen3 import init_params
from astra_jax.model.sharding import require_divisible
from astra_jax.sft.batches import SFTBatches
from astra_jax.sft.config import SFTConfig, open_sft_run
from astra_jax.sft.train import LOSSES, SHOWN, train_sft
from astra_jax.training.run import Parts, TrainingRun, checked_parts


def run_sft(config: SFTConfig) -> dict[str, Any]:
    """Run SFT to its last step, from the newest whole checkpoint of `out` if there is one; return closing figures.

    Where there are several hosts, each calls this with the same config, on one file system. A finished run is not run
    again: its closing figures are returned, with `already_complete`.

    Raises:
        ConfigError, CheckpointError, TokenizerError, DestinationRefused, RecordDirectoryError: before anything is
            written.
        ConversationUnreadable: a line of a file is not a conversation; the run's record is taken back.
        NotFinite, Terminated: the state is saved.
    """
    parts = checked_parts(config, config.tokenizer)
    require_layout(config, parts.model_config, parts.mesh)
    record = open_sft_run(config)
    if record.figures is not None:
        return record.figures
    with record.begun():  # taken back if the data is refused
        batches = batches_of(config, parts)
    steps = len(batches)
    with TrainingRun("sft", config, parts, num_steps=steps, shown=SHOWN) as run:
        state = run.restore(lambda: first_params(config, parts))
        state = train_sft(config, parts, state, batches, run)
    state = dataclasses.replace(state, optimizer_state=())  # whose memory `init` needs
    state = dataclasses.replace(state, params=mean_with_init(config, parts, state.params))
    dropped = {"samples": batches.num_samples, "dropped_over_length": batches.num_dropped_over_length}
    losses = {
        name: loss
        for name in ("loss", *LOSSES, "held_out_loss")
        if (loss := last_metric(run.metrics, name)) is not None
    }
    figures = {"steps": steps, **losses, **dropped}
    data = (*config.trajectories, *config.environments, *config.conversations)
    return run.finish(state, record, data=data, figures=figures)


def require_layout(config: SFTConfig, model_config: ModelConfig, mesh: Mesh | None) -> None:
    """Raise ConfigError unless the batches and weights of a run fit its mesh and the model's context."""
    for num_rows, _ in config.batch_shapes:
        require_rows(num_rows, config.accumulation, mesh)
    model_config.require_context(config.length_buckets[-1])
    require_divisible(model_config, mesh)


def batches_of(config: SFTConfig, parts: Parts) -> SFTBatches:
    """Return the run's batches; the whole set is rendered once to measure its lengths."""
    return SFTBatches(config, parts.tokenizer, host_rows=functools.partial(host_rows, mesh=parts.mesh))


def first_params(config: SFTConfig, parts: Parts) -> Params:
    """Return the weights of `init`, or random ones."""
    if config.init is None:
        # Every host draws the whole model from the seed and keeps its part: the model must be small enough for that.
        return place_params(init_params(parts.model_config, config.seed), parts.mesh)
    return load_params(config.init, mesh=parts.mesh, overrides=config.model_overrides)[1]


def mean_with_init(config: SFTConfig, parts: Parts, learnt: Params) -> Params:
    """Return (1 − `init_share`) × the learnt weights + `init_share` × those of `init` (WiSE-FT, arXiv 2109.01903)."""
    share = config.init_share
    return learnt if share == 0 else _mean(learnt, first_params(config, parts), second_share=share)


@functools.partial(jax.jit, donate_argnames="one")
def _mean(one: Params, second: Params, second_share: float) -> Params:
    def mean(one: jax.Array, second: jax.Array) -> jax.Array:
        both = (1 - second_share) * one.astype(jnp.float32) + second_share * second.astype(jnp.float32)
        return both.astype(one.dtype)

    return jax.tree.map(mean, one, second)
