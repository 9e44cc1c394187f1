"""What an RL run starts from: mesh, model and tokenizer, checked before anything is made; the first state."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax.sharding import Mesh

from astra_jax.chat.template import require_chat_template
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.checkpoint import TrainState, load_params
from astra_jax.checkpoints.policy import read_policy
from astra_jax.config import ConfigError
from astra_jax.mesh.placement import init_optimizer_state, require_prompts, require_rows, training_mesh
from astra_jax.model.config import ModelConfig
from astra_jax.model.sharding import require_divisible
from astra_jax.rl.config import RLConfig
from astra_jax.training.optimizer import make_optimizer
from astra_jax.training.wandb_run import require_wandb


class Parts(NamedTuple):
    """The parts of a run, none of which holds a weight."""

    mesh: Mesh | None
    model_config: ModelConfig
    tokenizer: Tokenizer


def checked_parts(config: RLConfig) -> Parts:
    """Return what the run works with; no weight is read, and nothing is written.

    Raises:
        ConfigError: the mesh does not fit the devices, the model or the batch; there are several hosts; or W&B is
            wanted and cannot be used.
        CheckpointError, TokenizerError: `init` is missing or damaged.
    """
    require_one_host()
    require_wandb(config.wandb)
    mesh = training_mesh(config.mesh)
    require_rows(config.groups_per_step * config.group_size, 1, mesh)
    require_prompts(config.groups_per_rollout, mesh)
    model_config, tokenizer = read_policy(config.init, overrides=config.model_overrides)
    require_chat_template(config.init, tokenizer)
    require_divisible(model_config, mesh)
    return Parts(mesh, model_config, tokenizer)


def require_one_host() -> None:
    """Raises ConfigError where this process is one of several hosts of a job."""
    if jax.process_count() > 1:
        raise ConfigError(f"expected one host, found {jax.process_count()}: episodes are not rolled out over hosts yet")


def first_state(config: RLConfig, mesh: Mesh | None) -> TrainState:
    """Return the state of step 0: the weights of `init`, and moments of zero."""
    _, params = load_params(config.init, mesh=mesh, overrides=config.model_overrides)
    optimizer = make_optimizer(config.optimizer, config.steps)
    return TrainState(0, params, init_optimizer_state(optimizer, params, mesh), {})
