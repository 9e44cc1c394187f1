"""`astra plan`: compiles the steps of a run for a pod that is not there, and tells their memory and time.

It takes the run's own config, and the run's own functions, checks, rows, meshes and types. libtpu's ahead-of-time
compiler runs on any Linux machine: it takes `pip install libtpu` and `PLAN_ENVIRONMENT`, set before JAX is imported.

Decided: docs/decisions/plan.md, “The plan compiles the run's own programs from the run's own config”.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from astra_jax.checkpoints.checkpoint import read_model
from astra_jax.config import ConfigError, load_config, read_toml
from astra_jax.mesh.layouts import rollout_mesh
from astra_jax.mesh.placement import training_mesh
from astra_jax.model.config import ModelConfig
from astra_jax.model.sharding import num_slices
from astra_jax.plan.abstract_step import AbstractStep
from astra_jax.plan.chips import Chip, chip_of, slices_and_kind
from astra_jax.plan.compiled_memory import CompilerMissing, compiled_memory
from astra_jax.plan.costs import Costs, jaxpr_costs
from astra_jax.plan.learner_steps import rl_learner_step, sft_steps
from astra_jax.plan.rollout_steps import episodes_in_flight, rollout_steps
from astra_jax.rl import stage as rl_stage
from astra_jax.rl.config import RLConfig
from astra_jax.sft import stage as sft_stage
from astra_jax.sft.config import SFTConfig

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """One compiled step; bytes and seconds are per chip and step."""

    work: str
    """The work of one step, in words."""
    peak_bytes: int
    """Peak of the program, and bytes on the chip beside it."""
    host_bytes: int
    """Bytes offloaded to the host's memory."""
    bytes_by_category: dict[str, int]
    compiled_flops: float
    """FLOPs of the whole pod, recompute included."""
    model_flops: float
    """FLOPs that the model needs on the whole pod: causal attention counted once, no recompute."""
    collective_bytes: dict[str, float]
    """Bytes sent, by kind and mesh axes. The partitioner adds transfers of weights and activations, by their sizes; the
    others are in the program."""
    roofline_seconds: dict[str, float]
    tokens: int
    """Tokens of the whole pod: sampled, read or learnt from."""
    compile_seconds: float
    from_cache: bool
    """Whether this program was compiled for this topology before; then the seconds are those of the look-up."""

    @property
    def bound(self) -> str:
        """The longest of the rooflines: `compute`, `hbm`, `interconnect` or `network between slices`."""
        return max(self.roofline_seconds, key=lambda name: self.roofline_seconds[name])

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole pod, at best."""
        return self.tokens / self.roofline_seconds[self.bound]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The answer of `astra plan`."""

    topology: str
    chips: int
    hbm_bytes: int
    host_memory_bytes: float
    """Memory of a host, the share of one chip."""
    libtpu: str
    """The version of the TPU compiler."""
    compiled_for: str
    """The topology that the programs are compiled for: TPUs stand in for GPUs."""
    steps: dict[str, StepPlan]
    rollouts: str | None = None
    """Episodes in flight, in words; None for a run without rollouts."""

    @property
    def fits(self) -> bool:
        """Whether every step fits into the memory of a chip, and what waits on the host into a host's."""
        return all(map(self._fits, self.steps.values()))

    def _fits(self, step: StepPlan) -> bool:
        return step.peak_bytes <= self.hbm_bytes and step.host_bytes <= self.host_memory_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the machine-readable answer."""
        return {
            "topology": self.topology,
            "chips": self.chips,
            "libtpu": self.libtpu,
            "compiled_for": self.compiled_for,
            "fits": self.fits,
            "rollouts": self.rollouts,
            "steps": {
                name: {
                    **dataclasses.asdict(step),
                    "peak_gib_per_chip": step.peak_bytes / _GIB,
                    "host_gib_per_chip": step.host_bytes / _GIB,
                    "by_category_gib": {key: value / _GIB for key, value in step.bytes_by_category.items()},
                    "bound": step.bound,
                    "tokens_per_second": step.tokens_per_second,
                }
                for name, step in self.steps.items()
            },
        }

    def render(self) -> str:
        """Return the same for people."""
        lines = [
            f"{self.topology}: {self.chips} chips of {self.hbm_bytes / _GIB:.0f} GiB; compiled by libtpu {self.libtpu}"
        ]
        if self.compiled_for != self.topology:
            lines.append(
                f"compiled for TPUs in their place ({self.compiled_for}): weights, moments and pages are the same on a "
                "GPU; temporaries and the kernels' time are not"
            )
        if self.rollouts is not None:
            lines.append(self.rollouts)
        for name, step in self.steps.items():
            verdict = "fits" if self._fits(step) else "DOES NOT FIT"
            lines.append(f"\n{name}, {step.work}: peak {step.peak_bytes / _GIB:.2f} GiB per chip, {verdict}")
            lines += [f"  {category:<28}{size / _GIB:8.2f} GiB" for category, size in step.bytes_by_category.items()]
            if step.host_bytes:
                share = "" if math.isinf(self.host_memory_bytes) else f" of {self.host_memory_bytes / _GIB:.0f}"
                lines.append(f"  {'in the host’s memory':<28}{step.host_bytes / _GIB:8.2f}{share} GiB")
            flops, needed = step.compiled_flops, step.model_flops
            lines.append(f"  FLOPs compiled / model      {flops:.3g} / {needed:.3g} = {flops / needed:.3f}")
            lines += [f"  {kind:<44}{size / _GIB:8.2f} GiB sent" for kind, size in step.collective_bytes.items()]
            lines += [f"  {name:<28}{seconds:8.3g} s at best" for name, seconds in step.roofline_seconds.items()]
            lines.append(f"  bound by {step.bound}, {step.tokens_per_second:,.0f} tokens/s at best")
            source = "known from an earlier run" if step.from_cache else "compiled"
            lines.append(f"  {source} in {step.compile_seconds:.0f} s")
            if step.host_bytes > self.host_memory_bytes:
                lines.append(
                    "  the host's memory is too small: set model_overrides.remat to full, or raise accumulation"
                )
            elif verdict != "fits":
                needs = {name: size for name, size in step.bytes_by_category.items() if name in _ADVICE}
                largest = max(needs, key=lambda name: needs[name])
                lines.append(f"  the largest category is {largest}: {_ADVICE[largest]}")
        return "\n".join(lines)


_IN_BFLOAT16 = "set model_overrides.param_dtype to bfloat16"
_OF_POOL = (
    "lower groups_per_rollout or rollout.max_response_tokens, or rollout.kv_share, or take more chips "
    "(rollout_mesh.data)"
)
_ADVICE = {
    "parameters": f"shard over more chips (mesh.fsdp; rollout_mesh.tensor), or {_IN_BFLOAT16}",
    "parameters of the learner": f"shard over more chips (mesh.fsdp), or {_IN_BFLOAT16}",
    "optimiser": "shard over more chips (mesh.fsdp), or for a rollout set optimizer_waits_on_host",
    "gradients": f"shard over more chips (mesh.fsdp), or {_IN_BFLOAT16}",
    "activations": "set model_overrides.remat to offload or full, raise accumulation or mesh.context",
    "KV pool": _OF_POOL,
    "KV pool of other layers": _OF_POOL,
    "batch": "raise accumulation, or take more chips",
    "temporaries": "lower logprob_chunk_tokens, raise accumulation, or split sequences further (mesh.context)",
}


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> SFTConfig | RLConfig:
    """Read the config of a run, but no file that it names; a run that rolls out is RL, one with lengths of samples SFT.

    Raises:
        ConfigError: as `load_config`; or it is neither.
    """
    keys = read_toml(path)
    if "rollout" in keys and "length_buckets" not in keys:
        return load_config(RLConfig, path, overrides, is_fetched=False)
    if "length_buckets" in keys and "rollout" not in keys:
        return load_config(SFTConfig, path, overrides, is_fetched=False)
    raise ConfigError(
        f"{path} has neither or both of length_buckets (`astra sft`) and rollout (`astra rl`); name a config with one"
    )


def plan(config: SFTConfig | RLConfig, topology: str) -> Plan:
    """Compile each step of a run with this config on `topology` (e.g. v5p:4x4x4, h100:8).

    Raises:
        ConfigError: before anything is compiled: there is no such topology, or the run would refuse its config there.
        CheckpointError: the config names no `model`, and `init` is not there.
        CompilerMissing: libtpu is not installed.
    """
    chip, compiled_for = chip_of(topology)
    model_of(config)  # raises before the compiler is looked for
    devices = devices_of(compiled_for)
    abstract_steps = learner_of(config, devices)
    rollouts = None
    if isinstance(config, RLConfig):
        abstract_steps = {**rollouts_of(config, devices), **abstract_steps}
        rollouts = episodes_in_flight(config)
    return Plan(
        topology=topology,
        chips=len(devices),
        hbm_bytes=int(chip.hbm_bytes),
        host_memory_bytes=chip.host_bytes,
        libtpu=importlib.metadata.version("libtpu"),
        compiled_for=compiled_for,
        steps={name: plan_step(name, step, compiled_for, chip) for name, step in abstract_steps.items()},
        rollouts=rollouts,
    )


def learner_of(config: SFTConfig | RLConfig, devices: Sequence[jax.Device]) -> dict[str, AbstractStep]:
    """Return the learner's steps before they are compiled.

    Raises:
        ConfigError: the run would refuse this layout.
        CheckpointError: as `plan`.
    """
    model, mesh = model_of(config), training_mesh(config.mesh, devices)
    assert mesh is not None  # on TPU there is always one
    if isinstance(config, SFTConfig):
        sft_stage.require_layout(config, model, mesh)
        return sft_steps(config, model, mesh)
    rl_stage.require_layout(config, model, mesh)
    return {"rl_learner": rl_learner_step(config, model, mesh)}


def rollouts_of(config: RLConfig, devices: Sequence[jax.Device]) -> dict[str, AbstractStep]:
    """Return the steps of a rollout before they are compiled.

    Raises:
        ConfigError, CheckpointError: as `learner_of`.
    """
    model, mesh = model_of(config), training_mesh(config.mesh, devices)
    decode_mesh = rollout_mesh(config.rollout_mesh, mesh)
    assert mesh is not None
    assert decode_mesh is not None
    rl_stage.require_layout(config, model, mesh)
    return rollout_steps(config, model, decode_mesh, mesh)


def model_of(config: SFTConfig | RLConfig) -> ModelConfig:
    """Return the model of a run.

    Raises:
        ConfigError: the config names none.
        CheckpointError: `init` is not there.
    """
    if config.model is not None:
        return config.model_overrides.of(config.model)
    if config.init is None:
        raise ConfigError(
            "neither `model` nor `init` is set; set `model` to a preset such as qwen3-14b or sizes, or `init` to a "
            "checkpoint"
        )
    return config.model_overrides.of(read_model(config.init))


def devices_of(topology: str) -> Sequence[jax.Device]:
    """Return the devices of a topology, which are there in name only.

    Raises:
        CompilerMissing: libtpu is not installed.
        ConfigError: there is no such topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise CompilerMissing("the TPU compiler libtpu is not installed: pip install 'astra-jax[plan]'")
    slices, kind, sizes = slices_and_kind(topology)
    several = {"num_slices": slices} if slices > 1 else {}
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=f"{kind}:{sizes}", **several).devices
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"there is no topology {topology!r}: {str(error).splitlines()[0]}") from error


@dataclasses.dataclass(frozen=True)
class Traced:
    """A step that was traced and not compiled; bytes and seconds are per chip and step."""

    flops: float
    collective_bytes: dict[str, float]
    roofline_seconds: dict[str, float]

    @property
    def seconds(self) -> float:
        """The longest of its rooflines."""
        return max(self.roofline_seconds.values())


def traced(step: AbstractStep, chip: Chip) -> tuple[Traced, jax.stages.Traced]:
    """Trace a step and count its costs, which takes seconds where a compilation takes minutes."""
    with jax.set_mesh(step.mesh):
        program = step.trace()
        of_call = jaxpr_costs(
            program.jaxpr.jaxpr, mesh_shape=step.mesh.shape, kernels=step.kernels, while_trips=step.while_trips
        )
    costs = Costs()
    costs.add(of_call, step.calls)
    collective_bytes = {f"{kind} over {axes}": size for (kind, axes), size in sorted(costs.collective_bytes.items())}
    collective_bytes |= step.partitioner_bytes
    # Whatever goes over `data` is counted as if all of it crossed from slice to slice.
    crosses = num_slices(step.mesh.devices.flat) > 1
    crossing = sum(size for name, size in collective_bytes.items() if crosses and "data" in name.partition(" over ")[2])
    between = {"network between slices": crossing / chip.between_slices_bytes_per_second} if crossing else {}
    # `costs` counts each weight as if one chip read it, which is corrected here.
    hbm_bytes = costs.hbm_bytes + step.weight_bytes * (1 - step.mesh.shape["tensor"] / step.mesh.size)
    seconds = {
        "compute": costs.flops / chip.flops_per_second,
        "hbm": hbm_bytes / chip.hbm_bytes_per_second,
        "interconnect": (sum(collective_bytes.values()) - crossing) / chip.interconnect_bytes_per_second,
        **between,
    }
    return Traced(costs.flops, collective_bytes, seconds), program


def plan_step(name: str, step: AbstractStep, topology: str, chip: Chip) -> StepPlan:
    """Compile one step."""
    print(f"astra: {name}, {step.work}: compiling, which may take minutes", file=sys.stderr)
    started = time.monotonic()
    found, program = traced(step, chip)
    # The device is there in name only, yet its client is the compiler, and knows its version.
    compiler = f"jax {jax.__version__} {step.mesh.devices.flat[0].client.platform_version}"
    with jax.set_mesh(step.mesh):
        memory, from_cache = compiled_memory(program.lower(), topology=topology, compiler=compiler)
    peak_bytes = memory.peak_bytes + sum(step.resident_bytes.values())
    # The compiler tells one peak; bytes that follow from shapes are subtracted, and the rest is called temporaries.
    temporaries = max(0, memory.peak_bytes - sum(step.bytes_by_category.values()))
    return StepPlan(
        work=step.work,
        peak_bytes=peak_bytes,
        host_bytes=memory.host_bytes + step.host_bytes,
        bytes_by_category={
            **step.bytes_by_category,
            "temporaries": temporaries,
            **step.resident_bytes,
            "headroom": int(chip.hbm_bytes) - peak_bytes,
        },
        compiled_flops=found.flops * step.mesh.size,
        model_flops=step.model_flops,
        collective_bytes=found.collective_bytes,
        roofline_seconds=found.roofline_seconds,
        tokens=step.tokens,
        compile_seconds=time.monotonic() - started,
        from_cache=from_cache,
    )
