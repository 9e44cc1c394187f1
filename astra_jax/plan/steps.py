"""The real jitted steps with the shapes that they would be called with on a mesh; nothing is allocated or compiled."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from astra_jax.engine.programs import Asked, read_tokens, sample_rows
from astra_jax.engine.schedule import Limits
from astra_jax.episodes.rollout import RolloutConfig, decode_limits
from astra_jax.mesh.placement import sharded_shapes
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.flops import forward_flops, matrix_parameters, model_flops
from astra_jax.model.kv_pages import Histories, Pages, empty_pages, pages_shardings
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.ragged_pages import MOVE_TOKENS, sampling_flops
from astra_jax.model.sharding import spec
from astra_jax.model.splash_attention import kernel_flops
from astra_jax.plan.config import PlanConfig, RolloutShape, StepShape
from astra_jax.plan.costs import KernelCosts, Kernels
from astra_jax.rl.batch import RLBatch
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import rl_step
from astra_jax.sft.data import SFTBatch
from astra_jax.sft.train import sft_step
from astra_jax.training.optimizer import make_optimizer


@dataclasses.dataclass(frozen=True)
class AbstractStep:
    """A step before it is compiled; bytes are per chip, FLOPs of the whole pod."""

    work: str
    """What one step does, in words."""
    mesh: Mesh
    trace: Callable[[], jax.stages.Traced]
    bytes_by_category: Mapping[str, int]
    """What the shapes alone say."""
    model_flops: float
    kernels: Kernels
    partitioner_bytes: Mapping[str, float]
    """What the partitioner sends on top of what the program says, by kind and mesh axes."""
    weight_bytes: float
    """Weights that a chip reads: all that its `tensor` shard multiplies with, wherever they are stored."""
    while_trips: int | None
    """Rounds to count of a loop whose end depends on the data."""


def learner_step(name: str, config: PlanConfig, shape: StepShape, mesh: Mesh) -> AbstractStep:
    """Return `sft_step`, or `rl_step` where `name` is "rl_learner", with the shapes of its batch and state."""
    model, steps = config.resolved_model(), 1000  # a schedule needs to know how many; the program is the same
    rows = shape.sequences_per_shard * _rows_shards(mesh)
    params = sharded_shapes(abstract_params(model), mesh)
    optimizer_state = sharded_shapes(jax.eval_shape(make_optimizer(config.optimizer, steps).init, params), mesh)
    static: dict[str, Any] = {
        "model_config": model,
        "optimizer_config": config.optimizer,
        "steps": steps,
    }
    step: Any = sft_step
    batch_type: Any = SFTBatch
    if name == "rl_learner":
        step, batch_type = rl_step, RLBatch
        # A program of any temperature and clip is as large.
        static |= {"objective": Objective(1.0, clip_epsilon=0.2, chunk_tokens=shape.logprob_chunk_tokens)}
    else:
        static |= {"chunk_tokens": shape.logprob_chunk_tokens}
    sharding = NamedSharding(mesh, spec("batch", "sequence"))
    integers = ("tokens_BT", "targets_BT", "segment_ids_BT", "positions_BT")
    batch = batch_type(
        *(
            jax.ShapeDtypeStruct(
                (rows, shape.sequence_tokens), jnp.int32 if field in integers else jnp.float32, sharding=sharding
            )
            for field in batch_type._fields
        )
    )
    local_tokens = shape.sequences_per_shard * shape.sequence_tokens // mesh.shape["context"]
    return AbstractStep(
        work=f"{rows} sequences of {shape.sequence_tokens:,} tokens",
        mesh=mesh,
        trace=functools.partial(step.trace, params, optimizer_state, batch, **static),
        bytes_by_category={
            "parameters": _bytes_per_chip(params),
            "optimiser": _bytes_per_chip(optimizer_state),
            "batch": _bytes_per_chip(batch),
            "gradients": _bytes_per_chip(params),
            "activations": _kept_activation_bytes(model, local_tokens, mesh),
        },
        model_flops=model_flops(model, [shape.sequence_tokens] * rows),
        kernels=_splash(model, mesh, shape.sequence_tokens, shape.sequences_per_shard),
        partitioner_bytes=_partitioner_bytes(model, mesh, local_tokens, trains=True),
        weight_bytes=2 * _matrix_bytes(model, mesh),  # forward and backward
        while_trips=None,
    )


def prefill_step(config: PlanConfig, shape: RolloutShape, mesh: Mesh) -> AbstractStep:
    """Return the rollout engine's reading of prompts, each whole; a run reads long ones in pieces, which need less."""
    model, params = _served(config, mesh)
    limits = _limits(shape, mesh)
    shards, rows = _rows_shards(mesh), limits.first_read_rows
    pages = _pages(model, limits, mesh)
    tables = _by_shard(mesh, rows, limits.pages_for(limits.max_tokens))
    tokens, per_row = _by_shard(mesh, rows, shape.prompt_tokens), _by_shard(mesh, rows)
    copies = _by_shard(mesh, rows, 2)
    prompts = shards * rows
    # Nothing follows the last layer's keys and values. Causal: half of all pairs are attended.
    before_last = model.model_copy(update={"num_layers": model.num_layers - 1})
    flops = forward_flops(before_last, shape.prompt_tokens, shape.prompt_tokens**2 / 2, logits_tokens=0)
    flops += 4.0 * shape.prompt_tokens * model.hidden_size * model.num_kv_heads * model.head_dim
    return AbstractStep(
        work=f"{prompts} prompts of {shape.prompt_tokens:,} tokens",
        mesh=mesh,
        trace=functools.partial(
            read_tokens.trace, model, params, pages, None, tables, per_row, tokens, per_row, copies
        ),
        bytes_by_category={
            "parameters": _bytes_per_chip(params),
            "KV pool": _bytes_per_chip(pages),
            "batch": _bytes_per_chip((tables, per_row, tokens, per_row, copies)),
        },
        model_flops=prompts * flops,
        kernels=_splash(model, mesh, shape.prompt_tokens, rows),
        partitioner_bytes=_partitioner_bytes(model, mesh, rows * shape.prompt_tokens, trains=False),
        weight_bytes=_matrix_bytes(model, mesh),
        while_trips=None,
    )


def decode_step(config: PlanConfig, shape: RolloutShape, mesh: Mesh) -> AbstractStep:
    """Return the rollout engine's sampling; costs are those of one token in every row, behind a whole episode."""
    model, params = _served(config, mesh)
    limits = _limits(shape, mesh)
    prefixes, rows_per_prefix = limits.row_shapes[0]
    rows = prefixes * rows_per_prefix
    pages = _pages(model, limits, mesh)
    per_row, copies = _by_shard(mesh, rows), _by_shard(mesh, rows, 2)
    histories = Histories(
        prefix_tables_DPn=_by_shard(mesh, prefixes, limits.pages_for(shape.prompt_tokens)),
        prefix_pages_DP=_by_shard(mesh, prefixes),
        # What follows a prefix may begin within its last page.
        own_tables_DRn=_by_shard(mesh, rows, limits.pages_for(shape.response_tokens + limits.page_tokens - 1)),
        own_counts_DR=per_row,
    )
    asked = Asked(*(per_row,) * 5, temperature_DR=_by_shard(mesh, rows, dtype=jnp.float32))
    leave_at = jax.ShapeDtypeStruct((), jnp.int32)
    context_tokens = shape.prompt_tokens + shape.response_tokens
    return AbstractStep(
        work=f"a token in each of {rows * _rows_shards(mesh)} rows, {context_tokens:,} tokens cached",
        mesh=mesh,
        trace=functools.partial(
            sample_rows.trace,
            *(model, params, pages, histories, asked, copies, leave_at),
            end_ids=(0, 1),
            max_tokens=limits.sample_tokens,
        ),
        bytes_by_category={
            "parameters": _bytes_per_chip(params),
            "KV pool": _bytes_per_chip(pages),
            "batch": _bytes_per_chip((histories, asked, copies)),
        },
        model_flops=rows * _rows_shards(mesh) * forward_flops(model, 1, context_tokens, logits_tokens=1),
        kernels=_ragged(model, mesh, context_tokens, rows),
        partitioner_bytes=_partitioner_bytes(model, mesh, rows, trains=False),
        weight_bytes=_matrix_bytes(model, mesh),
        while_trips=1,
    )


def _limits(shape: RolloutShape, mesh: Mesh) -> Limits:
    """Return what a run's rollouts would ask of the engine: all prompts and episodes of the shape at once."""
    config = RolloutConfig(
        max_prompt_tokens=shape.prompt_tokens, max_response_tokens=shape.response_tokens, max_turns=1
    )
    with jax.set_mesh(mesh):
        return decode_limits(config, shape.prompts_per_shard * _rows_shards(mesh), shape.episodes_per_prompt)


def _pages(model: ModelConfig, limits: Limits, mesh: Mesh) -> Pages:
    with jax.set_mesh(mesh):
        make = functools.partial(empty_pages, model, _rows_shards(mesh), limits.num_pages, limits.page_tokens)
        pages: Pages = jax.eval_shape(make)
    return _with_shardings(pages, pages_shardings(pages, mesh))


def _by_shard(mesh: Mesh, *shape: int, dtype: Any = jnp.int32) -> Any:
    """Return an array with a leading axis of shards of the batch."""
    return jax.ShapeDtypeStruct((_rows_shards(mesh), *shape), dtype, sharding=NamedSharding(mesh, spec("batch")))


def _served(config: PlanConfig, mesh: Mesh) -> tuple[ModelConfig, Params]:
    """The model as rollouts hold it: weights stored in what the products compute in."""
    model = config.resolved_model()
    model = model.model_copy(update={"param_dtype": model.dtype})
    return model, sharded_shapes(abstract_params(model), mesh)


def _rows_shards(mesh: Mesh) -> int:
    return int(mesh.shape["data"] * mesh.shape["fsdp"])


def _with_shardings(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def _bytes_per_chip(tree: Any) -> int:
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _kept_activation_bytes(model: ModelConfig, tokens: int, mesh: Mesh) -> int:
    """What remat keeps on a chip for the backward pass; without remat all but layer inputs counts as temporaries."""
    heads = model.num_heads // mesh.shape["tensor"]
    itemsize = jnp.dtype(model.dtype).itemsize
    inputs, attended, logsumexp = model.hidden_size * itemsize, heads * model.head_dim * itemsize, heads * 4
    kept = {
        "none": inputs,
        "full": inputs,
        "attention": inputs + attended + logsumexp,
        "offload": logsumexp,
    }
    return model.num_layers * tokens * kept[model.remat]


def _splash(model: ModelConfig, mesh: Mesh, tokens: int, rows: int) -> Kernels:
    context, heads = mesh.shape["context"], model.num_heads // mesh.shape["tensor"]

    def costs(name: str) -> KernelCosts:
        if name == MOVE_TOKENS:
            return KernelCosts(0.0)
        return KernelCosts(rows * kernel_flops(name, tokens, context, heads, model.head_dim))

    return costs


def _ragged(model: ModelConfig, mesh: Mesh, tokens: int, rows: int) -> Kernels:
    tensor = mesh.shape["tensor"]
    heads, kv_heads = model.num_heads // tensor, model.num_kv_heads // tensor
    token_bytes = 2 * kv_heads * model.head_dim * jnp.dtype(model.dtype).itemsize
    # Each row reads all of its pages, those that it shares as well.
    costs = KernelCosts(sampling_flops(rows, tokens, heads, model.head_dim), float(rows * tokens * token_bytes))
    return lambda name: KernelCosts(0.0) if name == MOVE_TOKENS else costs


def _matrix_bytes(model: ModelConfig, mesh: Mesh) -> float:
    return matrix_parameters(model) / mesh.shape["tensor"] * jnp.dtype(model.dtype).itemsize


def _partitioner_bytes(model: ModelConfig, mesh: Mesh, tokens: int, *, trains: bool) -> dict[str, float]:
    """Layers' weights gathered where they are stored in parts, and sums over `tensor` after each branch of a layer.

    Training gathers weights once more for the backward pass, which scatters their gradients and sums over `tensor` too.
    Gradients are sent in what the products compute in, since weights are cast to it first. `tokens` are those that a
    data × fsdp × context shard computes.
    """
    passes = 2 if trains else 1
    itemsize = jnp.dtype(model.dtype).itemsize
    found = {}
    parts, tensor = mesh.shape["fsdp"] * mesh.shape["context"], mesh.shape["tensor"]
    if parts > 1:
        layers = sum(leaf.size for leaf in jax.tree.leaves(abstract_params(model)["layers"]))
        wire = layers / tensor * (parts - 1) / parts
        found["all_gather of weights over fsdp × context"] = passes * wire * itemsize
        if trains:
            found["reduce_scatter of weights over fsdp × context"] = wire * itemsize
    if tensor > 1:
        sums = passes * 2 * model.num_layers * tokens * model.hidden_size * itemsize
        found["all_reduce of activations over tensor"] = sums * 2 * (tensor - 1) / tensor
    return found
