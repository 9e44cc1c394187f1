"""`astra plan`: compiles the real steps for a pod that is not there and says what they need.

libtpu's ahead-of-time compiler runs on any Linux machine: it takes `pip install libtpu` and `PLAN_ENVIRONMENT`, set
before JAX is imported. The steps are `sft_step`, `rl_step` and the rollout engine's own prefill and decode.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

from astra_jax.config import ConfigError
from astra_jax.model.sharding import make_mesh
from astra_jax.plan.chips import Chip, chip_of
from astra_jax.plan.compiled_memory import CompiledMemory, CompilerMissing, compiled_memory
from astra_jax.plan.config import PlanConfig
from astra_jax.plan.costs import Costs, jaxpr_costs
from astra_jax.plan.not_yet_runnable import not_yet_runnable
from astra_jax.plan.steps import AbstractStep, decode_step, learner_step, prefill_step

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """One compiled step; bytes and seconds are per chip and step."""

    work: str
    """What one step does, in words."""
    peak_bytes: int
    host_bytes: int
    """Offloaded to the host's memory."""
    bytes_by_category: dict[str, int]
    compiled_flops: float
    """Of the whole pod, recompute included."""
    model_flops: float
    """Of the whole pod, what the model needs: causal attention counted once, no recompute."""
    collective_bytes: dict[str, float]
    """By kind and mesh axes. Those of weights and activations are what the partitioner adds, from their sizes; the
    others are in the program."""
    roofline_seconds: dict[str, float]
    compile_seconds: float
    compile_cpu_seconds: float
    from_cache: bool
    """Whether this program was compiled for this topology before; then the seconds are those of finding that out."""

    @property
    def bound(self) -> str:
        """What the step spends the most time on at best: `compute`, `hbm` or `interconnect`."""
        return max(self.roofline_seconds, key=lambda name: self.roofline_seconds[name])


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `astra plan` found out."""

    topology: str
    chips: int
    hbm_bytes: int
    libtpu: str
    """The version of the TPU compiler."""
    steps: dict[str, StepPlan]
    not_yet_runnable: dict[str, str]
    """Steps that no run can have today, and why."""

    @property
    def fits(self) -> bool:
        """Whether every step fits into the memory of a chip."""
        return all(step.peak_bytes <= self.hbm_bytes for step in self.steps.values())

    def to_json(self) -> dict[str, Any]:
        """Return the machine-readable answer."""
        return {
            "topology": self.topology,
            "chips": self.chips,
            "libtpu": self.libtpu,
            "fits": self.fits,
            "not_yet_runnable": self.not_yet_runnable,
            "steps": {
                name: {
                    "work": step.work,
                    "peak_gib_per_chip": step.peak_bytes / _GIB,
                    "host_gib_per_chip": step.host_bytes / _GIB,
                    "by_category_gib": {key: value / _GIB for key, value in step.bytes_by_category.items()},
                    "compiled_flops": step.compiled_flops,
                    "model_flops": step.model_flops,
                    "collective_bytes": step.collective_bytes,
                    "roofline_seconds": step.roofline_seconds,
                    "bound": step.bound,
                    "compile_seconds": step.compile_seconds,
                    "compile_cpu_seconds": step.compile_cpu_seconds,
                    "from_cache": step.from_cache,
                }
                for name, step in self.steps.items()
            },
        }

    def render(self) -> str:
        """Return the same for people."""
        lines = [
            f"{self.topology}: {self.chips} chips of {self.hbm_bytes / _GIB:.0f} GiB; compiled by libtpu {self.libtpu}"
        ]
        for name, step in self.steps.items():
            verdict = "fits" if step.peak_bytes <= self.hbm_bytes else "DOES NOT FIT"
            lines.append(f"\n{name}, {step.work}: peak {step.peak_bytes / _GIB:.2f} GiB per chip, {verdict}")
            if name in self.not_yet_runnable:
                lines.append(f"  NO RUN CAN HAVE THIS STEP YET: {self.not_yet_runnable[name]}")
            lines += [f"  {category:<28}{size / _GIB:8.2f} GiB" for category, size in step.bytes_by_category.items()]
            if step.host_bytes:
                lines.append(f"  {'in the host’s memory':<28}{step.host_bytes / _GIB:8.2f} GiB")
            ratio = step.compiled_flops / step.model_flops
            lines.append(
                f"  FLOPs compiled / model      {step.compiled_flops:.3g} / {step.model_flops:.3g} = {ratio:.3f}"
            )
            lines += [f"  {kind:<44}{size / _GIB:8.2f} GiB sent" for kind, size in step.collective_bytes.items()]
            lines += [f"  {name:<28}{seconds:8.3g} s at best" for name, seconds in step.roofline_seconds.items()]
            lines.append(f"  bound by {step.bound}")
            source = "known from an earlier run" if step.from_cache else "compiled"
            lines.append(f"  {source} in {step.compile_seconds:.0f} s ({step.compile_cpu_seconds:.0f} CPU s)")
            if verdict != "fits":
                lines.append(f"  {_advice(step)}")
        return "\n".join(lines)


_ADVICE = {
    "parameters": "shard over more chips (mesh.fsdp; rollout_mesh.tensor) or set param_dtype to bfloat16",
    "optimiser": "shard over more chips (mesh.fsdp)",
    "gradients": "shard over more chips (mesh.fsdp) or set param_dtype to bfloat16",
    "activations": "set remat to offload or full, or split sequences over more chips (mesh.context)",
    "KV pool": "lower prompts_per_shard, episodes_per_prompt or response_tokens, or take more chips",
    "batch": "lower sequences_per_shard",
    "temporaries": "lower logprob_chunk_tokens, sequences_per_shard or prompts_per_shard, or split sequences further "
    "(mesh.context)",
}


def _advice(step: StepPlan) -> str:
    needs = {name: size for name, size in step.bytes_by_category.items() if name in _ADVICE}
    largest = max(needs, key=lambda name: needs[name])
    return f"the largest category is {largest}: {_ADVICE[largest]}"


def plan(config: PlanConfig, topology: str) -> Plan:
    """Compile each step that the config has for `topology` (e.g. v5p:4x4x4).

    Raises:
        ConfigError: before anything is compiled: a mesh does not fit the topology, the model or a sequence, or a
            sequence exceeds the model's context.
        CompilerMissing: libtpu is not installed.
    """
    try:
        chip = chip_of(topology)
        config.require_plannable()
        devices = _devices(topology)
        abstract_steps = _abstract_steps(config, devices)
    except ValueError as error:  # a plan has no data that could be at fault: it is the config or the topology
        raise ConfigError(str(error)) from error
    steps = {name: _plan_step(step, topology, chip) for name, step in abstract_steps.items()}
    return Plan(
        topology=topology,
        chips=len(devices),
        hbm_bytes=int(chip.hbm_bytes),
        libtpu=importlib.metadata.version("libtpu"),
        steps=steps,
        not_yet_runnable=not_yet_runnable(config),
    )


def _devices(topology: str) -> Sequence[jax.Device]:
    if importlib.util.find_spec("libtpu") is None:
        raise CompilerMissing("expected the TPU compiler libtpu, found none: pip install 'astra-jax[plan]'")
    try:
        devices: Sequence[jax.Device] = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"there is no topology {topology!r}: {str(error).splitlines()[0]}") from error
    return devices


def _abstract_steps(config: PlanConfig, devices: Sequence[jax.Device]) -> dict[str, AbstractStep]:
    steps = {}
    for name, learner_shape in (("sft", config.sft), ("rl_learner", config.rl_learner)):
        if learner_shape is not None:
            steps[name] = learner_step(name, config, learner_shape, make_mesh(config.mesh, devices))
    for name, make, shape in (("prefill", prefill_step, config.prefill), ("decode", decode_step, config.decode)):
        if shape is not None:
            steps[name] = make(config, shape, make_mesh(config.rollout_mesh, devices))
    return steps


def _plan_step(step: AbstractStep, topology: str, chip: Chip) -> StepPlan:
    started, cpu_started = time.monotonic(), time.process_time()
    with jax.set_mesh(step.mesh):
        traced = step.trace()
        costs = jaxpr_costs(
            traced.jaxpr.jaxpr, mesh_shape=step.mesh.shape, kernels=step.kernels, while_trips=step.while_trips
        )
        # The device is there in name only, yet its client is the compiler, and knows its version.
        compiler = f"jax {jax.__version__} {step.mesh.devices.flat[0].client.platform_version}"
        memory, from_cache = compiled_memory(traced.lower(), topology=topology, compiler=compiler)
    collective_bytes = {f"{kind} over {axes}": size for (kind, axes), size in sorted(costs.collective_bytes.items())}
    collective_bytes |= step.partitioner_bytes
    return StepPlan(
        work=step.work,
        peak_bytes=memory.peak_bytes,
        host_bytes=memory.host_bytes,
        bytes_by_category=_by_category(step, memory, chip),
        compiled_flops=costs.flops * step.mesh.size,
        model_flops=step.model_flops,
        collective_bytes=collective_bytes,
        roofline_seconds={
            "compute": costs.flops / chip.flops_per_second,
            "hbm": _hbm_bytes(step, costs) / chip.hbm_bytes_per_second,
            "interconnect": sum(collective_bytes.values()) / chip.interconnect_bytes_per_second,
        },
        compile_seconds=time.monotonic() - started,
        compile_cpu_seconds=time.process_time() - cpu_started,
        from_cache=from_cache,
    )


def _by_category(step: AbstractStep, memory: CompiledMemory, chip: Chip) -> dict[str, int]:
    # The compiler tells one peak; what the shapes account for is taken off, and the rest is called temporaries.
    known = dict(step.bytes_by_category)
    known["temporaries"] = max(0, memory.peak_bytes - sum(known.values()))
    known["headroom"] = int(chip.hbm_bytes) - memory.peak_bytes
    return known


def _hbm_bytes(step: AbstractStep, costs: Costs) -> float:
    """Operands and results of products; weights are counted there as if each were read by one chip only."""
    counted_once = step.weight_bytes * step.mesh.shape["tensor"] / step.mesh.size
    return costs.hbm_bytes + step.weight_bytes - counted_once
