"""A policy: a model's shape, its weights and its tokenizer, as one checkpoint folder.

policy/
  params/, params.json, params.whole.json     Orbax arrays, the ModelConfig, and the manifest that makes them whole
  tokenizer.json, tokenizer_config.json       with the chat template
  provenance.json                             the base model and every stage of training since
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import Mesh

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.checkpoint import NO_OVERRIDES, load_params, read_model, save_params
from astra_jax.checkpoints.hf import copy_companions
from astra_jax.checkpoints.provenance import TrainingStage, read_provenance
from astra_jax.mesh.layouts import laid_out_for_decoding
from astra_jax.model.config import DType, ModelConfig, ModelOverrides
from astra_jax.model.qwen3 import Params
from synthesis.run.places import fetch, publish


@dataclass(frozen=True)
class Policy:
    """A model with its weights and tokenizer: it samples episodes, and it learns."""

    model_config: ModelConfig
    params: Params
    tokenizer: Tokenizer


def save_policy(
    policy: Policy, folder: Path, *, trained_from: Path | None = None, stage: TrainingStage | None = None
) -> None:
    """Write a policy folder; where there are several hosts, each calls this and writes its part.

    The files beside the weights of `trained_from`, such as generation settings, are copied; `stage` is added to its
    provenance.

    Raises:
        ProvenanceError: the provenance of `trained_from` is damaged.
        OSError: the disk is full or not writable.
    """
    if jax.process_index() == 0:
        policy.tokenizer.save(folder, model_max_length=policy.model_config.context_tokens)
        if trained_from is not None:
            copy_companions(trained_from, folder)
        if stage is not None:
            read_provenance(trained_from).then(stage).write(folder)
        publish(folder)
    # The weights come last: their manifest makes the folder a policy, and then every other file is there.
    save_params(folder, policy.model_config, policy.params)
    fetch(folder)


def load_policy(folder: Path, *, mesh: Mesh | None = None, overrides: ModelOverrides = NO_OVERRIDES) -> Policy:
    """Read a policy folder, the weights over `mesh` or onto the first device.

    Raises:
        CheckpointError: the weights are missing or damaged.
        TokenizerError: the tokenizer is missing or is not a Qwen3 one.
        ConfigError: the tokenizer has more tokens than the model's vocabulary, or the mesh does not fit the model.
    """
    _, tokenizer = read_policy(folder)
    model, params = load_params(folder, mesh=mesh, overrides=overrides)
    return Policy(model, params, tokenizer)


def load_for_sampling(folder: Path, *, mesh: Mesh | None = None, dtype: DType | None = None) -> Policy:
    """Read a policy folder for episodes alone: weights in the type that the model computes in, laid out for decoding.

    Raises:
        CheckpointError, TokenizerError, ConfigError: as `load_policy`.
    """
    policy = load_policy(folder, mesh=mesh, overrides=ModelOverrides(dtype=dtype, param_dtype=dtype))
    params = laid_out_for_decoding(policy.model_config, mesh, policy.params)
    return dataclasses.replace(policy, params=params)


def read_policy(folder: Path, *, overrides: ModelOverrides = NO_OVERRIDES) -> tuple[ModelConfig, Tokenizer]:
    """Read the model and tokenizer of a policy folder, without its weights.

    Raises:
        CheckpointError: the folder has no weights, or their description is damaged.
        TokenizerError: the tokenizer is missing or is not a Qwen3 one.
        ConfigError: the tokenizer has more tokens than the model's vocabulary.
    """
    model, tokenizer = overrides.of(read_model(folder)), Tokenizer.load(folder)
    model.require_vocabulary(tokenizer.vocab_size, folder)
    return model, tokenizer
