"""The parts of a training run that hold no weight, checked before anything is made or written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from astra_jax.chat.template import require_chat_template
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.policy import read_policy
from astra_jax.config import ConfigError
from astra_jax.mesh.placement import training_mesh
from astra_jax.model.config import ModelConfig
from astra_jax.training.config import TrainingConfig
from astra_jax.training.wandb_run import require_wandb


class Parts(NamedTuple):
    """The parts of a run that hold no weights."""

    mesh: Mesh | None
    model_config: ModelConfig
    tokenizer: Tokenizer


def checked_parts(config: TrainingConfig, tokenizer_folder: Path | None = None) -> Parts:
    """Return the mesh, model and tokenizer of a run; no weight is read or made, and nothing is written.

    Without `init` the model is the config's own, and the tokenizer that of `tokenizer_folder`.

    Raises:
        ConfigError: the mesh does not fit the devices; the chat template is not Qwen3's; W&B is wanted and cannot be
            used; or there is neither `init` nor both of model and tokenizer.
        CheckpointError, TokenizerError: `init` or the tokenizer is missing or damaged.
    """
    # Only the first host sends anything to W&B; the others may have neither the package nor a key.
    require_wandb(config.wandb if jax.process_index() == 0 else None)
    mesh = training_mesh(config.mesh)
    if config.init is not None:
        model_config, tokenizer = read_policy(config.init, overrides=config.model_overrides)
        if config.model is not None:
            model_config.require_sizes_of(config.model, config.init)
        require_chat_template(config.init, tokenizer)
        return Parts(mesh, model_config, tokenizer)
    if config.model is None or tokenizer_folder is None:
        raise ConfigError(
            "SFT needs `init` (a checkpoint), or both `model` and `tokenizer` to start from random weights"
        )
    tokenizer = Tokenizer.load(tokenizer_folder)
    config.model.require_vocabulary(tokenizer.vocab_size, tokenizer_folder)
    require_chat_template(tokenizer_folder, tokenizer)
    return Parts(mesh, config.model_overrides.of(config.model), tokenizer)
