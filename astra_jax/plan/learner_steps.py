"""The steps that learn, as runs of `astra sft` and `astra rl` call them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from astra_jax.mesh.placement import padded_tokens, sharded_shapes
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.flops import model_flops
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import spec
from astra_jax.model.splash_attention import kernel_flops
from astra_jax.plan.abstract_step import AbstractStep, bytes_per_chip, matrix_bytes, partitioner_bytes, rows_shards
from astra_jax.plan.costs import KernelCosts, Kernels
from astra_jax.rl.batch import RLBatch, row_tokens
from astra_jax.rl.config import RLConfig
from astra_jax.rl.train import objective_of, rl_step
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.data import SFTBatch
from astra_jax.sft.train import sft_step
from astra_jax.training.config import TrainingConfig
from astra_jax.training.optimizer import make_optimizer

_STEPS = 1000  # a schedule needs to know how many; the program is the same


def sft_steps(config: SFTConfig, model: ModelConfig, mesh: Mesh) -> dict[str, AbstractStep]:
    """Return `sft_step` for every shape of a batch."""
    shapes = config.batch_shapes
    static = {"chunk_tokens": config.logprob_chunk_tokens, "accumulation": config.accumulation}
    return {
        "sft" if len(shapes) == 1 else f"sft_{tokens}": _learner_step(
            functools.partial(sft_step.trace, **static),
            SFTBatch,
            config,
            config.accumulation,
            model,
            mesh,
            rows,
            tokens,
        )
        for rows, tokens in shapes
    }


def rl_learner_step(config: RLConfig, model: ModelConfig, mesh: Mesh) -> AbstractStep:
    """Return `rl_step` for a batch in which an episode has the full length; no longer one can occur."""
    trace = functools.partial(rl_step.trace, objective=objective_of(config), accumulation=config.accumulation)
    rows = config.groups_per_step * config.group_size
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    tokens = row_tokens(longest, config.length_bucket_tokens)
    return _learner_step(trace, RLBatch, config, config.accumulation, model, mesh, rows, tokens, config.rollout.top_k)


def learner_state(config: TrainingConfig, model: ModelConfig, mesh: Mesh) -> tuple[Params, Any]:
    """Return the shapes of a learner's weights and of its optimiser's state."""
    params = sharded_shapes(abstract_params(model), mesh)
    return params, sharded_shapes(jax.eval_shape(make_optimizer(config.optimizer, _STEPS).init, params), mesh)


def splash(model: ModelConfig, mesh: Mesh, tokens: int, rows: int) -> Kernels:
    """Return what the attention kernel of so many rows costs."""
    context, heads = mesh.shape["context"], model.num_heads // mesh.shape["tensor"]
    return lambda name: KernelCosts(rows * kernel_flops(name, tokens, context, heads, model.head_dim))


def _learner_step(
    trace: Any,
    batch_type: Any,
    config: TrainingConfig,
    parts: int,
    model: ModelConfig,
    mesh: Mesh,
    rows: int,
    longest_tokens: int,
    top_k: int | None = None,
) -> AbstractStep:
    tokens = padded_tokens(longest_tokens, mesh)
    params, optimizer_state = learner_state(config, model, mesh)
    sharding = NamedSharding(mesh, spec("batch", "sequence"))
    integers = ("tokens_BT", "targets_BT", "segment_ids_BT", "positions_BT")
    batch = batch_type(
        *(
            jax.ShapeDtypeStruct((rows, tokens), jnp.int32 if field in integers else jnp.float32, sharding=sharding)
            for field in batch_type._fields
            if field not in batch_type._field_defaults
        )
    )
    if top_k is not None:
        batch = batch._replace(kept_BTK=jax.ShapeDtypeStruct((rows, tokens, top_k), jnp.int32, sharding=sharding))
    rows_of_part = rows // rows_shards(mesh) // parts
    local_tokens = rows_of_part * tokens // mesh.shape["context"]
    in_parts = f", in {parts} parts" if parts > 1 else ""
    return AbstractStep(
        work=f"{rows} sequences of {tokens:,} tokens{in_parts}",
        mesh=mesh,
        trace=functools.partial(
            trace,
            params,
            optimizer_state,
            batch,
            model_config=model,
            optimizer_config=config.optimizer,
            steps=_STEPS,
        ),
        bytes_by_category={
            "parameters": bytes_per_chip(params),
            "optimiser": bytes_per_chip(optimizer_state),
            "batch": bytes_per_chip(batch),
            # Those of a part beside the sum of those before it.
            "gradients": bytes_per_chip(params) * (2 if parts > 1 else 1),
            "activations": _kept_activation_bytes(model, local_tokens, mesh),
        },
        resident_bytes={},
        model_flops=model_flops(model, [tokens] * rows),
        kernels=splash(model, mesh, tokens, rows_of_part),
        partitioner_bytes=partitioner_bytes(model, mesh, local_tokens * parts, trains=True, parts=parts),
        weight_bytes=2 * parts * matrix_bytes(model, mesh),  # forward and backward
        while_trips=None,
        tokens=rows * tokens,
    )


def _kept_activation_bytes(model: ModelConfig, tokens: int, mesh: Mesh) -> int:
    """What remat keeps on a chip for the backward pass; without remat all but layer inputs counts as temporaries."""
    heads = model.num_heads // mesh.shape["tensor"]
    itemsize = jnp.dtype(model.dtype).itemsize
    inputs, attended, logsumexp = model.hidden_size * itemsize, heads * model.head_dim * itemsize, heads * 4
    kept: Mapping[str, int] = {
        "none": inputs,
        "full": inputs,
        "attention": inputs + attended + logsumexp,
        "offload": logsumexp,
    }
    return model.num_layers * tokens * kept[model.remat]
