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

from astra_jax.engine.sampling import slot_keys
from astra_jax.engine.step import decode_messages, prefill_prompts
from astra_jax.mesh.placement import sharded_shapes
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.flops import forward_flops, matrix_parameters, model_flops
from astra_jax.model.kv_cache import cache_shardings
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import spec
from astra_jax.model.splash_attention import kernel_flops
from astra_jax.plan.config import PlanConfig, RolloutShape, StepShape
from astra_jax.plan.costs import KernelFlops
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
    kernels: KernelFlops
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
        kernels=_kernels(model, mesh, shape.sequence_tokens, shape.sequences_per_shard),
        partitioner_bytes=_partitioner_bytes(model, mesh, local_tokens, trains=True),
        weight_bytes=2 * _matrix_bytes(model, mesh),  # forward and backward
        while_trips=None,
    )


def prefill_step(config: PlanConfig, shape: RolloutShape, mesh: Mesh) -> AbstractStep:
    """Return the rollout engine's reading of all prompts, which makes the KV pool."""
    model, params = _served(config, mesh)
    tokens_PS, counts_P = _prompts(shape, mesh)
    prompts = tokens_PS.shape[0]
    with jax.set_mesh(mesh):
        keys = _slot_keys(prompts * shape.episodes_per_prompt, mesh)
        args = (model, params, tokens_PS, counts_P, keys, shape.response_tokens)
        cache = prefill_prompts.eval_shape(*args).cache
    attended = shape.prompt_tokens**2 / 2  # causal: half of all pairs
    return AbstractStep(
        work=f"{prompts} prompts of {shape.prompt_tokens:,} tokens",
        mesh=mesh,
        trace=functools.partial(prefill_prompts.trace, *args),
        bytes_by_category={
            "parameters": _bytes_per_chip(params),
            "KV pool": _bytes_per_chip(_with_shardings(cache, cache_shardings(cache, mesh))),
            "batch": _bytes_per_chip((tokens_PS, counts_P)),
        },
        model_flops=prompts * forward_flops(model, shape.prompt_tokens, attended, logits_tokens=0),
        kernels=_kernels(model, mesh, shape.prompt_tokens, shape.prompts_per_shard),
        partitioner_bytes=_partitioner_bytes(model, mesh, shape.prompts_per_shard * shape.prompt_tokens, trains=False),
        weight_bytes=_matrix_bytes(model, mesh),
        while_trips=None,
    )


def decode_step(config: PlanConfig, shape: RolloutShape, mesh: Mesh) -> AbstractStep:
    """Return the rollout engine's loop that samples; costs are those of one token in every slot, at a full cache."""
    model, params = _served(config, mesh)
    tokens_PS, counts_P = _prompts(shape, mesh)
    episodes_per_shard = shape.prompts_per_shard * shape.episodes_per_prompt
    episodes = episodes_per_shard * _rows_shards(mesh)
    with jax.set_mesh(mesh):
        # Prefill is traced for the shape of its cache alone: the loop begins with what prefill leaves.
        keys_E = _slot_keys(episodes, mesh)
        slots: Any = prefill_prompts.eval_shape(model, params, tokens_PS, counts_P, keys_E, shape.response_tokens)
    cache = _with_shardings(slots.cache, cache_shardings(slots.cache, mesh))
    by_row = NamedSharding(mesh, spec("batch"))
    hidden_ED = jax.ShapeDtypeStruct(
        (episodes, model.hidden_size), model.dtype, sharding=NamedSharding(mesh, spec("batch", "hidden"))
    )
    running_E = jax.ShapeDtypeStruct((episodes,), jnp.bool, sharding=by_row)
    context_tokens = shape.prompt_tokens + shape.response_tokens
    slots = slots._replace(cache=cache, hidden_ED=hidden_ED, keys_E=keys_E)
    return AbstractStep(
        work=f"a token in each of {episodes} slots, {context_tokens:,} tokens cached",
        mesh=mesh,
        trace=functools.partial(
            decode_messages.trace,
            *(model, params, slots, running_E, 1.0, 0),
            end_ids=(0, 1),
            max_response_tokens=shape.response_tokens,
        ),
        bytes_by_category={
            "parameters": _bytes_per_chip(params),
            "KV pool": _bytes_per_chip(cache),
            "batch": _bytes_per_chip((hidden_ED, running_E)),
        },
        model_flops=episodes * forward_flops(model, 1, context_tokens, logits_tokens=1),
        kernels=_kernels(model, mesh, 1, episodes_per_shard),
        partitioner_bytes=_partitioner_bytes(model, mesh, episodes_per_shard, trains=False),
        weight_bytes=_matrix_bytes(model, mesh),
        while_trips=1,
    )


def _slot_keys(count: int, mesh: Mesh) -> Any:
    keys = jax.eval_shape(functools.partial(slot_keys, 0, 0, count))
    return jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=NamedSharding(mesh, spec("batch")))


def _served(config: PlanConfig, mesh: Mesh) -> tuple[ModelConfig, Params]:
    """The model as rollouts hold it: weights stored in what the products compute in."""
    model = config.resolved_model()
    model = model.model_copy(update={"param_dtype": model.dtype})
    return model, sharded_shapes(abstract_params(model), mesh)


def _prompts(shape: RolloutShape, mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    prompts = shape.prompts_per_shard * _rows_shards(mesh)
    return (
        jax.ShapeDtypeStruct(
            (prompts, shape.prompt_tokens), jnp.int32, sharding=NamedSharding(mesh, spec("batch", "sequence"))
        ),
        jax.ShapeDtypeStruct((prompts,), jnp.int32, sharding=NamedSharding(mesh, spec("batch"))),
    )


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


def _kernels(model: ModelConfig, mesh: Mesh, tokens: int, rows: int) -> KernelFlops:
    context, heads = mesh.shape["context"], model.num_heads // mesh.shape["tensor"]
    return lambda name: rows * kernel_flops(name, tokens, context, heads, model.head_dim)


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
