"""What an SFT run starts from: mesh, model, tokenizer and batches, checked before anything is made; the first state."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from astra_jax.chat.template import require_chat_template
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.checkpoint import TrainState, load_params
from astra_jax.checkpoints.policy import read_policy
from astra_jax.config import ConfigError
from astra_jax.mesh.placement import host_rows, init_optimizer_state, place_params, require_rows, training_mesh
from astra_jax.model.config import ModelConfig
from astra_jax.model.mimetic_init import mimetic_init
from astra_jax.model.sharding import require_divisible
from astra_jax.sft.batches import SFTBatches
from astra_jax.sft.config import SFTConfig
from astra_jax.training.optimizer import make_optimizer
from astra_jax.training.wandb_run import require_wandb


class Parts(NamedTuple):
    """The parts of a run, none of which holds a weight."""

    mesh: Mesh | None
    model_config: ModelConfig
    tokenizer: Tokenizer


def checked_parts(config: SFTConfig) -> Parts:
    """Return what the run works with; no weight is read or made, and nothing is written.

    Raises:
        ConfigError: the mesh does not fit the devices, the model or the batch; or W&B is wanted and cannot be used.
        CheckpointError, TokenizerError: `init` or `tokenizer` is missing or damaged.
    """
    mesh = training_mesh(config.mesh)
    require_wandb(config.wandb if jax.process_index() == 0 else None)
    for num_rows, _ in config.batch_shapes:
        require_rows(num_rows, config.accumulation, mesh)
    model_config, tokenizer = _model_and_tokenizer(config)
    model_config.require_context(config.length_buckets[-1])
    require_divisible(model_config, mesh)
    return Parts(mesh, model_config, tokenizer)


def _model_and_tokenizer(config: SFTConfig) -> tuple[ModelConfig, Tokenizer]:
    if config.init is not None:
        model_config, tokenizer = read_policy(config.init, overrides=config.model_overrides)
        require_chat_template(config.init, tokenizer)
        return model_config, tokenizer
    if config.model is None or config.tokenizer is None:
        raise ConfigError(
            "SFT needs `init` (a checkpoint), or both `model` and `tokenizer` to start from random weights"
        )
    tokenizer = Tokenizer.load(config.tokenizer)
    config.model.require_vocabulary(tokenizer.vocab_size, config.tokenizer)
    require_chat_template(config.tokenizer, tokenizer)
    return config.model, tokenizer


def batches_of(config: SFTConfig, parts: Parts) -> SFTBatches:
    """Return the run's batches; the whole set is rendered once to know its lengths, which are kept in `out`."""
    return SFTBatches(
        config,
        parts.tokenizer,
        index=config.out / "sample_lengths.npz",
        host_rows=functools.partial(host_rows, mesh=parts.mesh),
    )


def first_state(config: SFTConfig, parts: Parts, steps: int) -> TrainState:
    """Return the state of step 0: the weights of `init`, or random ones, and moments of zero."""
    if config.init is None:
        params = place_params(mimetic_init(parts.model_config, config.seed), parts.mesh)
    else:
        _, params = load_params(config.init, mesh=parts.mesh, overrides=config.model_overrides)
    optimizer = make_optimizer(config.optimizer, steps)
    return TrainState(0, params, init_optimizer_state(optimizer, params, parts.mesh), {})
