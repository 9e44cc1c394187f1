"""`astra plan`: compiles the real training steps for a pod that is not there and says what they need.

libtpu's ahead-of-time compiler runs on any Linux machine: it takes `pip install libtpu` and `PLAN_ENVIRONMENT`, set
before JAX is imported. The steps are `sft_step` and `rl_step` themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import BaseModel, ConfigDict, Field

from astra_jax.model.config import QWEN3_PRESETS, ModelConfig, Params
from astra_jax.model.flops import model_flops
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import MeshConfig, make_mesh, param_shardings, require_divisible, spec
from astra_jax.model.splash_attention import block_tokens, kernel_flops
from astra_jax.optimizer import OptimizerConfig, make_optimizer
from astra_jax.plan.chips import Chip, chip_of
from astra_jax.plan.costs import Costs, step_costs
from astra_jax.rl.train import RLBatch, rl_step
from astra_jax.sft.data import SFTBatch
from astra_jax.sft.train import sft_step

_GIB = 2**30


class StepShape(BaseModel):
    """The batch of one step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequence_tokens: int = Field(gt=0)
    """The compiled length: a multiple of what the mesh and the kernel need."""
    sequences_per_shard: int = Field(default=1, gt=0)
    """Rows of the batch on each of the data × fsdp shards."""
    logprob_chunk_tokens: int = Field(default=256, gt=0)


class PlanConfig(BaseModel):
    """What to compile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | ModelConfig
    """A preset such as qwen3-14b, or a whole model."""
    model_overrides: dict[str, Any] = {}
    """Keys of the model to change: yarn, dtype, param_dtype, remat."""
    mesh: MeshConfig
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-6)
    sft: StepShape | None = None
    rl_learner: StepShape | None = None

    def resolved_model(self) -> ModelConfig:
        """The model to compile; raises ValueError for an unknown preset."""
        if isinstance(self.model, ModelConfig):
            base = self.model
        elif self.model in QWEN3_PRESETS:
            base = QWEN3_PRESETS[self.model]
        else:
            raise ValueError(f"model: expected one of {', '.join(QWEN3_PRESETS)}, found {self.model!r}")
        return ModelConfig.model_validate(base.model_dump() | self.model_overrides)


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """One compiled step; bytes and seconds are per chip and step."""

    peak_bytes: int
    bytes_by_category: dict[str, int]
    compiled_flops: float
    """Of the whole pod, recompute included."""
    model_flops: float
    """Of the whole pod: forward plus twice that for backward, causal attention counted once."""
    collective_bytes: dict[str, float]
    """By kind and mesh axes. Those marked "weights" are what the partitioner adds to gather weights and scatter their
    gradients, from their sizes; the others are in the program."""
    roofline_seconds: dict[str, float]
    compile_seconds: float

    @property
    def bound(self) -> str:
        return max(self.roofline_seconds, key=lambda name: self.roofline_seconds[name])


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `astra plan` found out."""

    topology: str
    chips: int
    hbm_bytes: int
    steps: dict[str, StepPlan]

    @property
    def fits(self) -> bool:
        return all(step.peak_bytes <= self.hbm_bytes for step in self.steps.values())

    def to_json(self) -> dict[str, Any]:
        """The machine-readable answer."""
        return {
            "topology": self.topology,
            "chips": self.chips,
            "fits": self.fits,
            "steps": {
                name: {
                    "peak_gib_per_chip": step.peak_bytes / _GIB,
                    "by_category_gib": {key: value / _GIB for key, value in step.bytes_by_category.items()},
                    "compiled_flops": step.compiled_flops,
                    "model_flops": step.model_flops,
                    "collective_bytes": step.collective_bytes,
                    "roofline_seconds": step.roofline_seconds,
                    "bound": step.bound,
                    "compile_seconds": step.compile_seconds,
                }
                for name, step in self.steps.items()
            },
        }

    def render(self) -> str:
        """The same for people."""
        lines = [f"{self.topology}: {self.chips} chips of {self.hbm_bytes / _GIB:.0f} GiB"]
        for name, step in self.steps.items():
            verdict = "fits" if step.peak_bytes <= self.hbm_bytes else "DOES NOT FIT"
            lines.append(f"\n{name}: peak {step.peak_bytes / _GIB:.2f} GiB per chip, {verdict}")
            lines += [f"  {category:<28}{size / _GIB:8.2f} GiB" for category, size in step.bytes_by_category.items()]
            ratio = step.compiled_flops / step.model_flops
            lines.append(
                f"  FLOPs compiled / model      {step.compiled_flops:.3g} / {step.model_flops:.3g} = {ratio:.2f}"
            )
            lines += [f"  {kind:<40}{size / _GIB:8.2f} GiB sent" for kind, size in step.collective_bytes.items()]
            lines += [f"  {name:<28}{seconds:8.2f} s at best" for name, seconds in step.roofline_seconds.items()]
            lines.append(f"  bound by {step.bound}")
            if verdict != "fits":
                lines.append(f"  {_advice(step)}")
        return "\n".join(lines)


_ADVICE = {
    "parameters": "shard over more chips (mesh.fsdp) or set param_dtype to bfloat16",
    "optimiser": "shard over more chips (mesh.fsdp)",
    "gradients": "shard over more chips (mesh.fsdp) or set param_dtype to bfloat16",
    "activations": "split sequences over more chips (mesh.context), or set remat to full",
    "batch": "lower sequences_per_shard",
    "temporaries": "lower logprob_chunk_tokens or sequences_per_shard, or split sequences further (mesh.context)",
}


def _advice(step: StepPlan) -> str:
    needs = {name: size for name, size in step.bytes_by_category.items() if name in _ADVICE}
    largest = max(needs, key=lambda name: needs[name])
    return f"the largest category is {largest}: {_ADVICE[largest]}"


def plan(config: PlanConfig, topology: str) -> Plan:
    """Compiles each step that the config has for `topology` (e.g. v5p:4x4x4).

    Raises ValueError before anything is compiled when the mesh does not fit the topology, the model or the sequence.
    """
    chip = chip_of(topology)
    model = config.resolved_model()
    require_divisible(model, config.mesh)
    shapes = {"sft": config.sft, "rl_learner": config.rl_learner}
    for shape in filter(None, shapes.values()):
        model.require_context(shape.sequence_tokens)
        block_tokens(shape.sequence_tokens, config.mesh.context)
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    mesh = make_mesh(config.mesh, devices)
    steps = {
        name: _plan_step(name, config, model, shape, mesh, chip) for name, shape in shapes.items() if shape is not None
    }
    return Plan(topology, len(devices), int(chip.hbm_bytes), steps)


def _plan_step(name: str, config: PlanConfig, model: ModelConfig, shape: StepShape, mesh: Mesh, chip: Chip) -> StepPlan:
    rows = shape.sequences_per_shard * config.mesh.data * config.mesh.fsdp
    step, batch = _step_and_batch(name, config, model, shape, rows, mesh)
    params = _placed(abstract_params(model), param_shardings(abstract_params(model), mesh))
    optimizer_state = _abstract_optimizer_state(config.optimizer, params, mesh)
    out_shardings = (*jax.tree.map(lambda leaf: leaf.sharding, (params, optimizer_state)), None)
    flops_of_kernel = functools.partial(
        _flops_of_kernel, model=model, mesh=config.mesh, tokens=shape.sequence_tokens, rows=shape.sequences_per_shard
    )
    started = time.monotonic()
    with jax.set_mesh(mesh):
        costs = step_costs(step, params, optimizer_state, batch, mesh_shape=mesh.shape, kernels=flops_of_kernel)
        jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=out_shardings)
        memory: Any = jitted.lower(params, optimizer_state, batch).compile().memory_analysis()
    compile_seconds = time.monotonic() - started
    collective_bytes = _collective_bytes(costs, model, params, config.mesh)
    peak = memory.peak_memory_in_bytes
    by_category = {
        "parameters": _bytes_per_chip(params),
        "optimiser": _bytes_per_chip(optimizer_state),
        "batch": _bytes_per_chip(batch),
        "gradients": _bytes_per_chip(params),
        "activations": _kept_activation_bytes(model, shape, config.mesh),
    }
    by_category["temporaries"] = max(0, peak - sum(by_category.values()))
    by_category["headroom"] = int(chip.hbm_bytes) - peak
    return StepPlan(
        peak_bytes=peak,
        bytes_by_category=by_category,
        compiled_flops=costs.flops * mesh.size,
        model_flops=model_flops(model, rows, shape.sequence_tokens),
        collective_bytes=collective_bytes,
        roofline_seconds={
            "compute": costs.flops / chip.flops_per_second,
            "hbm": costs.hbm_bytes / chip.hbm_bytes_per_second,
            "interconnect": sum(collective_bytes.values()) / chip.interconnect_bytes_per_second,
        },
        compile_seconds=compile_seconds,
    )


def _step_and_batch(
    name: str, config: PlanConfig, model: ModelConfig, shape: StepShape, rows: int, mesh: Mesh
) -> tuple[Callable[..., Any], Any]:
    def array(dtype: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, spec("batch", "sequence"))
        return jax.ShapeDtypeStruct((rows, shape.sequence_tokens), dtype, sharding=sharding)

    static: dict[str, Any] = {
        "model": model,
        "optimizer": config.optimizer,
        "steps": 1000,
        "chunk_tokens": shape.logprob_chunk_tokens,
    }
    integers = ("tokens_BT", "targets_BT", "segment_ids_BT", "positions_BT")
    step: Any
    batch_type: Any
    if name == "sft":
        step, batch_type = sft_step, SFTBatch
    else:
        step, batch_type = rl_step, RLBatch
        static |= {"temperature": 1.0, "clip_epsilon": 0.2}
    arrays = {field: array(jnp.int32 if field in integers else jnp.float32) for field in batch_type._fields}
    return functools.partial(step.__wrapped__, **static), batch_type(**arrays)


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def _abstract_optimizer_state(optimizer: OptimizerConfig, params: Params, mesh: Mesh) -> Any:
    """Moments live where their parameters live, counters everywhere."""
    state = jax.eval_shape(make_optimizer(optimizer, 1000).init, params)
    shardings = param_shardings(params, mesh)

    def place(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding: Any = shardings
        keys = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        for key in keys:
            sharding = sharding[key]
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding if keys else NamedSharding(mesh, PartitionSpec())
        )

    return jax.tree_util.tree_map_with_path(place, state)


def _bytes_per_chip(tree: Any) -> int:
    shard_bytes = (
        int(jnp.prod(jnp.array(leaf.sharding.shard_shape(leaf.shape)))) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
    return sum(shard_bytes)


def _kept_activation_bytes(model: ModelConfig, shape: StepShape, mesh: MeshConfig) -> int:
    """The input of every layer, which remat keeps; without remat the rest is counted as temporaries."""
    tokens = shape.sequences_per_shard * shape.sequence_tokens // mesh.context
    return model.num_layers * tokens * model.hidden_size * jnp.dtype(model.dtype).itemsize


def _flops_of_kernel(name: str, *, model: ModelConfig, mesh: MeshConfig, tokens: int, rows: int) -> float:
    heads = model.num_heads // mesh.tensor
    return rows * kernel_flops(name, tokens, mesh.context, heads, model.head_dim)


def _collective_bytes(costs: Costs, model: ModelConfig, params: Params, mesh: MeshConfig) -> dict[str, float]:
    """What the program says, and the weights of the layers: gathered for forward and backward, scattered once."""
    found: dict[str, float] = {
        f"{kind} over {axes}": size for (kind, axes), size in sorted(costs.collective_bytes.items())
    }
    parts = mesh.fsdp * mesh.context
    if parts > 1:
        numbers = sum(leaf.size for leaf in jax.tree.leaves(params["layers"])) / mesh.tensor
        wire = numbers * (parts - 1) / parts
        found["all_gather of weights over fsdp × context"] = 2 * wire * jnp.dtype(model.dtype).itemsize
        found["reduce_scatter of weights over fsdp × context"] = wire * jnp.dtype(model.param_dtype).itemsize
    return found
