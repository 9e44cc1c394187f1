"""The SFT stage whole: its parts are checked, the run is opened, `train_sft` trains, the policy is written.

Here the config is taken apart; below, each part is given what it needs.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.sharding import Mesh

from astra_jax.chat.template import require_chat_template
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.checkpoint import TrainState, load_params
from astra_jax.checkpoints.policy import read_policy
from astra_jax.config import ConfigError
from astra_jax.mesh.placement import host_rows, init_optimizer_state, place_params, require_rows, training_mesh
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import init_params
from astra_jax.model.sharding import require_divisible
from astra_jax.sft.batches import SFTBatches
from astra_jax.sft.config import SFTConfig, open_sft_run
from astra_jax.sft.metrics import LOSSES, SHOWN
from astra_jax.sft.train import train_sft
from astra_jax.training.optimizer import make_optimizer
from astra_jax.training.parts import Parts
from astra_jax.training.run import TrainingRun
from astra_jax.training.wandb_run import require_wandb


def run_sft(config: SFTConfig) -> dict[str, Any]:
    """Run SFT to its last step, from the newest whole checkpoint of `out` if there is one; return closing figures.

    Where there are several hosts, each calls this with the same config, on one file system. A run that is finished is
    not run again: its closing figures are returned, with `already_complete`.

    Raises:
        ConfigError, CheckpointError, TokenizerError: as `checked_parts`, before anything is written.
        DestinationRefused, RecordDirectoryError: as `open_sft_run`, before anything is written.
        ConversationUnreadable: a line of a file of conversations is none; the run's record is taken back.
        NotFinite, Terminated: as `train_sft`; the state is saved.
    """
    parts = checked_parts(config)
    record = open_sft_run(config)
    if record.figures is not None:
        return record.figures
    with record.begun():  # taken back where the data is refused
        batches = batches_of(config, parts)
    steps = len(batches)
    with TrainingRun("sft", config, parts, num_steps=steps, shown=SHOWN) as run:
        state = run.restore(lambda: first_state(config, parts, steps))
        state = train_sft(config, parts, state, batches, run)
    dropped = {"samples": batches.num_samples, "dropped_over_length": batches.num_dropped_over_length}
    losses = {name: loss for name in ("loss", *LOSSES) if (loss := run.closing_metric(name)) is not None}
    figures = {"steps": steps, **losses, **dropped}
    data = (*config.trajectories, *config.environments, *config.conversations)
    return run.finish(state, record, data=data, figures=figures)


def checked_parts(config: SFTConfig) -> Parts:
    """Return what the run works with; no weight is read or made, and nothing is written.

    Raises:
        ConfigError: the mesh does not fit the devices, the model or the batch; samples may exceed the model's context;
            the chat template is not Qwen3's; or W&B is wanted and cannot be used.
        CheckpointError, TokenizerError: `init` or `tokenizer` is missing or damaged.
    """
    mesh = training_mesh(config.mesh)
    # Only the first host sends anything to W&B; the others may have neither the package nor a key.
    require_wandb(config.wandb if jax.process_index() == 0 else None)
    model_config, tokenizer = _model_and_tokenizer(config)
    require_layout(config, model_config, mesh)
    return Parts(mesh, model_config, tokenizer)


def require_layout(config: SFTConfig, model_config: ModelConfig, mesh: Mesh | None) -> None:
    """See to it that batches and weights of a run can be laid over its mesh.

    Raises:
        ConfigError: the mesh does not divide them; or samples may exceed the model's context.
    """
    for num_rows, _ in config.batch_shapes:
        require_rows(num_rows, config.accumulation, mesh)
    model_config.require_context(config.length_buckets[-1])
    require_divisible(model_config, mesh)


def _model_and_tokenizer(config: SFTConfig) -> tuple[ModelConfig, Tokenizer]:
    if config.init is not None:
        model_config, tokenizer = read_policy(config.init, overrides=config.model_overrides)
        if config.model is not None:
            model_config.require_sizes_of(config.model, config.init)
        require_chat_template(config.init, tokenizer)
        return model_config, tokenizer
    if config.model is None or config.tokenizer is None:
        raise ConfigError(
            "SFT needs `init` (a checkpoint), or both `model` and `tokenizer` to start from random weights"
        )
    tokenizer = Tokenizer.load(config.tokenizer)
    config.model.require_vocabulary(tokenizer.vocab_size, config.tokenizer)
    require_chat_template(config.tokenizer, tokenizer)
    return config.model_overrides.of(config.model), tokenizer


def batches_of(config: SFTConfig, parts: Parts) -> SFTBatches:
    """Return the run's batches; the whole set is rendered once to know its lengths, which are kept in `out`.

    Raises:
        RecordDirectoryError: a record directory is missing, damaged, or of another kind or schema version.
        ConfigError: no sample is short enough.
    """
    return SFTBatches(
        config,
        parts.tokenizer,
        index=config.out / "sample_lengths.npz",
        host_rows=functools.partial(host_rows, mesh=parts.mesh),
    )


def first_state(config: SFTConfig, parts: Parts, steps: int) -> TrainState:
    """Return the state of step 0: the weights of `init`, or random ones, and moments of zero.

    Raises:
        CheckpointError: the weights of `init` are missing or damaged.
        ConfigError: the mesh does not fit the model.
    """
    if config.init is None:
        # Every host draws the whole model from the seed and keeps its part: this is for models small enough for that.
        params = place_params(init_params(parts.model_config, config.seed), parts.mesh)
    else:
        _, params = load_params(config.init, mesh=parts.mesh, overrides=config.model_overrides)
    optimizer = make_optimizer(config.optimizer, steps)
    return TrainState(0, params, init_optimizer_state(optimizer, params, parts.mesh), {})
