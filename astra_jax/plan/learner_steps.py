"""The learner's steps of `astra sft` and `astra rl`, ready to be compiled for a plan."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from astra_jax.mesh.placement import padded_tokens, segment_multiple, sharded_shapes, shards_of
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.context_parallel import balance
from astra_jax.model.flops import training_flops
from astra_jax.model.logprobs import token_chunk
from astra_jax.model.lora import learnt
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import spec
from astra_jax.model.splash_attention import Segments, kernel_flops
from astra_jax.plan.abstract_step import AbstractStep, bytes_per_chip, matrix_bytes, partitioner_bytes
from astra_jax.plan.costs import KernelCosts, Kernels
from astra_jax.rl.batch import RLBatch, row_tokens, segment_starts
from astra_jax.rl.config import RLConfig
from astra_jax.rl.train import objective_of, rl_step
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.data import SFTBatch
from astra_jax.sft.train import sft_step
from astra_jax.training.config import TrainingConfig
from astra_jax.training.optimizer import make_optimizer

_STEPS = 1000  # steps of the learning rate's schedule; the size of the program does not depend on it


class _Rows(NamedTuple):
    """Rows of a batch at its full length; no longer batch can occur."""

    num_rows: int
    segment_ids_T: np.ndarray
    prefix_ids_T: np.ndarray | None
    is_active_T: np.ndarray
    """Whether the loss reads the log-prob of each token."""
    attended: float
    """Pairs of query and key that the mask of a row lets through."""


def sft_steps(config: SFTConfig, model: ModelConfig, mesh: Mesh) -> dict[str, AbstractStep]:
    """Return `sft_step` for every shape of a batch."""
    shapes = config.batch_shapes
    trace = functools.partial(
        sft_step.trace, chunk_tokens=config.logprob_chunk_tokens, accumulation=config.accumulation
    )
    return {
        "sft" if len(shapes) == 1 else f"sft_{tokens}": _learner_step(
            trace, SFTBatch, config, model, mesh, _one_segment(rows, tokens, tokens, mesh)
        )
        for rows, tokens in shapes
    }


def rl_learner_step(config: RLConfig, model: ModelConfig, mesh: Mesh) -> AbstractStep:
    """Return `rl_step` for a batch of full length."""
    objective = objective_of(config)
    trace = functools.partial(
        rl_step.trace, objective=objective, accumulation=config.accumulation, packing=config.packing
    )
    rows, optional = _full_rows(config, mesh), objective.optional_columns
    return _learner_step(trace, RLBatch, config, model, mesh, rows, optional=optional)


def _one_segment(num_rows: int, tokens: int, row_tokens: int, mesh: Mesh, *, first_active: int = 0) -> _Rows:
    place_T = np.arange(padded_tokens(row_tokens, mesh))
    is_active_T = (place_T >= first_active) & (place_T < tokens - 1)
    return _Rows(num_rows, (place_T < tokens).astype(np.int32), None, is_active_T, tokens**2 / 2)


def _full_rows(config: RLConfig, mesh: Mesh) -> _Rows:
    prompt, response = config.rollout.max_prompt_tokens, config.rollout.max_response_tokens
    num_rows, bucket = config.rows_per_update, config.length_bucket_tokens
    if config.episodes_per_row == 1:
        longest = prompt + response
        return _one_segment(num_rows, longest, row_tokens(longest, bucket), mesh, first_active=prompt - 1)
    # The segments that `segments_of_row` makes.
    lengths = [prompt - 1, *[response] * config.episodes_per_row]
    starts = segment_starts(lengths, multiple=segment_multiple(mesh))
    segment_ids_T = np.zeros(padded_tokens(row_tokens(starts[-1] + lengths[-1], bucket), mesh), np.int32)
    for segment, (start, length) in enumerate(zip(starts, lengths, strict=True), start=1):
        segment_ids_T[start : start + length] = segment
    attended = prompt**2 / 2 + config.episodes_per_row * (response * prompt + response**2 / 2)
    return _Rows(num_rows, segment_ids_T, np.sign(segment_ids_T), segment_ids_T > 1, attended)


def learner_state(config: TrainingConfig, model: ModelConfig, mesh: Mesh) -> tuple[Params, Any]:
    """Return the shapes of a learner's weights, adapters among them, and of its optimiser's state."""
    params = sharded_shapes(abstract_params(model.with_lora(config.lora)), mesh)
    moments = jax.eval_shape(make_optimizer(config.optimizer, _STEPS).init, learnt(params))
    return params, sharded_shapes(moments, mesh)


def splash(model: ModelConfig, mesh: Mesh, tokens: int, rows: int, segments: Segments | None = None) -> Kernels:
    """Return the costs of the attention kernel for `rows` rows.

    With segments, which have prefixes, the program is a loop over rows, and its kernel computes one row.
    """
    context, heads = mesh.shape["context"], model.num_heads // mesh.shape["tensor"]
    times = rows if segments is None else 1
    return lambda name: KernelCosts(times * kernel_flops(name, tokens, context, heads, model.head_dim, segments))


def _learner_step(
    trace: Any,
    batch_type: Any,
    config: SFTConfig | RLConfig,
    model: ModelConfig,
    mesh: Mesh,
    rows: _Rows,
    optional: Sequence[str] = (),
) -> AbstractStep:
    model = model.with_lora(config.lora)
    tokens, parts = len(rows.segment_ids_T), config.accumulation
    params, optimizer_state = learner_state(config, model, mesh)
    sharding = NamedSharding(mesh, spec("batch", "sequence"))

    def per_token(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows.num_rows, tokens), dtype, sharding=sharding)

    integers = ("tokens_BT", "targets_BT", "segment_ids_BT", "positions_BT")
    required = [field for field in batch_type._fields if field not in batch_type._field_defaults]
    batch = batch_type(*(per_token(jnp.int32 if field in integers else jnp.float32) for field in required))
    batch = batch._replace(**{field: per_token(jnp.float32) for field in optional})
    if rows.prefix_ids_T is not None:
        batch = batch._replace(prefix_ids_BT=per_token(jnp.int32))
    segments = None if rows.prefix_ids_T is None else (rows.segment_ids_T, rows.prefix_ids_T)
    rows_of_part = rows.num_rows // shards_of(mesh) // parts
    local_tokens = rows_of_part * tokens // mesh.shape["context"]
    in_parts = f", in {parts} parts" if parts > 1 else ""
    num_active = int(rows.is_active_T.sum())
    flops = training_flops(model, int((rows.segment_ids_T > 0).sum()), rows.attended, logits_tokens=num_active)
    return AbstractStep(
        work=f"{rows.num_rows} rows of {tokens:,} tokens, {num_active:,} of them learnt{in_parts}",
        mesh=mesh,
        trace=functools.partial(
            trace, params, optimizer_state, batch, model_config=model, optimizer_config=config.optimizer, steps=_STEPS
        ),
        bytes_by_category={
            "parameters": bytes_per_chip(params),
            "optimiser": bytes_per_chip(optimizer_state),
            "batch": bytes_per_chip(batch),
            # Gradients of one part, beside the sum of the gradients before it.
            "gradients": bytes_per_chip(learnt(params)) * (2 if parts > 1 else 1),
            "activations": _kept_activation_bytes(model, local_tokens, mesh),
        },
        resident_bytes={},
        model_flops=rows.num_rows * flops,
        kernels=splash(model, mesh, tokens, rows_of_part, segments),
        partitioner_bytes=partitioner_bytes(model, mesh, local_tokens * parts, trains=True, parts=parts),
        weight_bytes=2 * parts * matrix_bytes(model, mesh),  # forward and backward
        while_trips=_head_chunks(rows, rows_of_part, mesh),
        tokens=rows.num_rows * num_active,
    )


def _head_chunks(rows: _Rows, count: int, mesh: Mesh) -> int:
    """Return the chunks of active tokens on the busiest device; the compiled loop over them has no fixed end."""
    context = mesh.shape["context"]
    of_shards = balance({"active": rows.is_active_T[None]}, context)["active"].reshape(context, -1)
    chunk = min(token_chunk(count * of_shards.shape[1]), count * of_shards.shape[1])
    return -(-count * int(of_shards.sum(axis=1).max()) // chunk)


def _kept_activation_bytes(model: ModelConfig, tokens: int, mesh: Mesh) -> int:
    """Return the bytes that remat keeps per chip; without remat all but layer inputs counts as temporaries."""
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
