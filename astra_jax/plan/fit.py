"""The layout of a run that is quickest on a topology, by the plan's own clock: `astra plan --fit`.

The recipe stays: batches, lengths, groups, rates. What may change is where arrays lie and what is computed twice:

    learner     mesh (fsdp × context), parts of a batch, remat
    sampling    rollout_mesh (data × tensor), the share of pages, whether the moments wait on the host

Each layout is traced, which tells its FLOPs, its traffic and the bytes that follow from shapes. Then layouts are
compiled, the quickest first, until one fits with its temporaries.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from astra_jax.config import ConfigError, parse_config
from astra_jax.model.config import ModelConfig, RematPolicy
from astra_jax.model.sharding import MeshConfig, num_slices
from astra_jax.plan.abstract_step import AbstractStep
from astra_jax.plan.chips import Chip, chip_of
from astra_jax.plan.plan import devices_of, learner_of, model_of, plan_step, rollouts_of, traced
from astra_jax.rl.config import RLConfig
from astra_jax.sft.config import SFTConfig

_REMATS: Final[tuple[RematPolicy, ...]] = ("none", "full", "offload")
_ROOM: Final = 0.95
"""Share of the memory that a layout may take: the rest is for what no compiler tells."""
_MOST_COMPILED: Final = 4
_LEAST_MLP_WIDTHS: Final = 12
"""Values per token and width of an MLP that are alive at once in a layer's backward pass: 14 to 18 as compiled for RL
and SFT of 14B and 32B on v5p."""
_KEYS: Final = ("mesh", "accumulation", "model_overrides", "rollout_mesh", "rollout", "optimizer_waits_on_host")


@dataclasses.dataclass(frozen=True)
class Layout:
    """A layout that was traced."""

    words: str
    changes: dict[str, Any]
    seconds: float
    """Seconds at best of the steps that it decides."""
    known_bytes: int
    """Bytes per chip without temporaries, at the step that needs most."""
    host_bytes: int = 0
    """Bytes per chip that wait on the host, as far as shapes tell them."""


def fitted(config: SFTConfig | RLConfig, topology: str) -> tuple[SFTConfig | RLConfig, list[str]]:
    """Return the config with the quickest layout that fits, and the lines of what was tried.

    Raises:
        ConfigError: none fits, or there is no such topology.
        CheckpointError, CompilerMissing: as `plan.plan`.
    """
    chip, compiled_for = chip_of(topology)
    devices, room = devices_of(compiled_for), int(_ROOM * chip.hbm_bytes)
    _require_context(config)  # what no layout would mend is said before any is tried
    layouts = list(_learner_layouts(config, devices, chip))
    config, lines = _first_that_fits(config, layouts, compiled_for, chip, room)
    if isinstance(config, RLConfig):
        layouts = list(_rollout_layouts(config, devices, chip, room))
        config, tried = _first_that_fits(config, layouts, compiled_for, chip, room)
        lines += tried
    return config, lines


def written(text: str, config: SFTConfig | RLConfig, topology: str) -> str:
    """Return a config's text with the layout of another config of the same recipe; its other lines stay as they are.

    Raises:
        ConfigError: the text says something else than the config in another key, or cannot be changed line by line.
    """
    values = config.model_dump(mode="json", include=set(_KEYS), exclude_none=True, exclude_defaults=True)
    lines: list[str] = []
    is_replaced = False
    for line in text.splitlines():
        header, key = re.match(r"\[+([\w-]+)", line), re.match(r"([\w-]+)[\w.-]* *=", line)
        if header is not None:
            is_replaced = header[1] in _KEYS
        # Keys behind a header are those of its table.
        in_table = any(each.startswith("[") for each in lines) or is_replaced
        if is_replaced or (not in_table and key is not None and key[1] in _KEYS):
            continue
        lines.append(line)
    first_table = next((place for place, line in enumerate(lines) if line.startswith("[")), len(lines))
    chosen = [f"{key} = {_toml(values[key])}" for key in _KEYS if key in values]
    by_fit = f"# By `astra plan --fit` for {topology}:"
    made = "\n".join([*lines[:first_table], by_fit, *chosen, "", *lines[first_table:]]) + "\n"
    try:
        said = parse_config(type(config), tomllib.loads(made), where="the fitted config")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file is written in a way that --fit does not understand: {error}") from None
    if said != config:
        raise ConfigError("the config has keys that its file does not; write them into the file before --fit")
    return made


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


def _require_context(config: SFTConfig | RLConfig) -> None:
    model = model_of(config)
    if isinstance(config, RLConfig):
        model.require_context(config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)
    else:
        model.require_context(config.length_buckets[-1])


def _learner_layouts(config: SFTConfig | RLConfig, devices: Sequence[jax.Device], chip: Chip) -> Iterator[Layout]:
    slices = num_slices(devices)
    of_slice = len(devices) // slices
    for context in _powers_of_2(of_slice):
        mesh = MeshConfig(data=slices, fsdp=of_slice // context, context=context)
        rows = config.rows_per_update if isinstance(config, RLConfig) else min(rows for rows, _ in config.batch_shapes)
        # One row on each shard at a time takes the least memory; a batch of fewer rows than shards fits none.
        parts, left = divmod(rows, mesh.data * mesh.fsdp)
        if left or parts == 0:
            continue
        for remat in _REMATS:
            overrides = config.model_overrides.model_copy(update={"remat": remat})
            changes = {"mesh": mesh, "accumulation": parts, "model_overrides": overrides}
            words = f"learner: fsdp {mesh.fsdp} × context {context}, {parts} parts, remat {remat}"
            if isinstance(config, RLConfig):  # whatever it was, it would be over these devices
                changes["rollout_mesh"] = None
            with contextlib.suppress(ConfigError):  # the run would refuse this layout
                changed = config.model_copy(update=changes)
                steps = learner_of(changed, devices)
                found = _layout(words, changes, list(steps.values()), chip)
                model = model_of(changed)
                yield dataclasses.replace(
                    found,
                    known_bytes=found.known_bytes + max(_least_temporaries(model, step) for step in steps.values()),
                    host_bytes=max(_offloaded_bytes(model, step) for step in steps.values()),
                )


def _rollout_layouts(config: RLConfig, devices: Sequence[jax.Device], chip: Chip, room: int) -> Iterator[Layout]:
    for tensor in _powers_of_2(len(devices) // num_slices(devices)):
        for waits in (False, True):
            mesh = MeshConfig(data=len(devices) // tensor, tensor=tensor)
            changes: dict[str, Any] = {"rollout_mesh": mesh, "optimizer_waits_on_host": waits}
            words = f"sampling: data {mesh.data} × tensor {tensor}" + (", moments wait on the host" if waits else "")
            with contextlib.suppress(ConfigError):
                found = _decode(config, changes, devices, chip, words)
                # Fewer pages make room; episodes then wait for one another, in proportion at worst.
                pool = sum(size for name, size in _bytes_of(found[1]).items() if name.startswith("KV pool"))
                free = int(0.9 * room) - (found[0].known_bytes - pool)
                if pool > free > 0:
                    share = math.floor(1e4 * config.rollout.kv_share * free / pool) / 1e4
                    changes["rollout"] = config.rollout.model_copy(update={"kv_share": share})
                    found = _decode(config, changes, devices, chip, f"{words}, kv_share {share}")
                    slower = found[0].seconds * config.rollout.kv_share / share
                    found = (dataclasses.replace(found[0], seconds=slower), found[1])
                yield found[0]


def _decode(
    config: RLConfig, changes: dict[str, Any], devices: Sequence[jax.Device], chip: Chip, words: str
) -> tuple[Layout, AbstractStep]:
    step = rollouts_of(config.model_copy(update=changes), devices)["decode"]
    return _layout(words, dict(changes), [step], chip), step


def _layout(words: str, changes: dict[str, Any], steps: Sequence[AbstractStep], chip: Chip) -> Layout:
    seconds = sum(traced(step, chip)[0].seconds for step in steps)
    return Layout(words, changes, seconds, max(sum(_bytes_of(step).values()) for step in steps))


def _tokens_of_part(model: ModelConfig, step: AbstractStep) -> float:
    """Return the tokens that a chip computes at a time, from the bytes that remat keeps of each on the chip."""
    itemsize = jnp.dtype(model.dtype).itemsize
    # Attention's log-sum-exps alone, or the layer's input.
    offloads = model.remat == "offload"
    kept = model.num_heads // step.mesh.shape["tensor"] * 4 if offloads else model.hidden_size * itemsize
    return step.bytes_by_category["activations"] / (model.num_layers * kept)


def _least_temporaries(model: ModelConfig, step: AbstractStep) -> int:
    """Return bytes that a learner's step surely takes beside those of its shapes: fewer layouts are compiled so."""
    tensor = step.mesh.shape["tensor"]
    widths = _LEAST_MLP_WIDTHS * model.intermediate_size / tensor
    if model.remat == "none":  # the inputs of all matrices of all layers
        widths += model.num_layers * (3 * model.hidden_size + 2 * model.intermediate_size / tensor)
    return int(_tokens_of_part(model, step) * widths * jnp.dtype(model.dtype).itemsize)


def _offloaded_bytes(model: ModelConfig, step: AbstractStep) -> int:
    """Return the bytes that wait in the host's memory for the backward pass: `model.remat`, `offload`."""
    if model.remat != "offload":
        return 0
    of_layer = 2 * model.hidden_size + model.num_heads // step.mesh.shape["tensor"] * model.head_dim
    return int(_tokens_of_part(model, step) * model.num_layers * of_layer * jnp.dtype(model.dtype).itemsize)


def _bytes_of(step: AbstractStep) -> dict[str, int]:
    return {**step.bytes_by_category, **step.resident_bytes}


def _first_that_fits(
    config: SFTConfig | RLConfig, layouts: Sequence[Layout], compiled_for: str, chip: Chip, room: int
) -> tuple[SFTConfig | RLConfig, list[str]]:
    """Compile the quickest layouts, in order, until one fits."""
    devices = devices_of(compiled_for)
    # Of layouts that are equally quick within a percent: first those that copy no moments, then by memory.
    order = sorted(
        layouts,
        key=lambda layout: (
            round(math.log(layout.seconds) * 100),
            bool(layout.changes.get("optimizer_waits_on_host")),
            layout.known_bytes,
        ),
    )
    host_room = _ROOM * chip.host_bytes

    def may_fit(layout: Layout) -> bool:
        return layout.known_bytes <= room and layout.host_bytes <= host_room

    fitting = [layout for layout in order if may_fit(layout)]
    # The last attempt is the layout that takes least, however slow.
    if len(fitting) > _MOST_COMPILED:
        least = min(fitting, key=lambda layout: layout.known_bytes)
        tried = [*[each for each in fitting if each is not least][: _MOST_COMPILED - 1], least]
        order = [layout for layout in order if not may_fit(layout) or layout in tried]
    lines = []
    for layout in order:
        about = f"{layout.words}: {layout.seconds:.3g} s at best"
        if not may_fit(layout):
            also = f" and {_gib(layout.host_bytes)} on the host" if layout.host_bytes else ""
            lines.append(f"{about}, {_gib(layout.known_bytes)} and more{also}: does not fit")
            continue
        changed = config.model_copy(update=layout.changes)
        steps = learner_of(changed, devices)
        if isinstance(changed, RLConfig) and "mesh" not in layout.changes:
            steps = rollouts_of(changed, devices)
        plans = [plan_step(name, step, compiled_for, chip) for name, step in steps.items()]
        peak, on_host = max(plan.peak_bytes for plan in plans), max(plan.host_bytes for plan in plans)
        fits = peak <= room and on_host <= host_room
        also = f" and {_gib(on_host)} on the host" if on_host else ""
        lines.append(f"{about}, {_gib(peak)}{also}: {'chosen' if fits else 'does not fit'}")
        print(f"astra: {lines[-1]}", file=sys.stderr)
        if fits:
            return changed, lines
    needs = "; ".join(lines) or "no layout has a row for each of its shards"
    raise ConfigError(
        f"no layout that was tried fits {_gib(room)} per chip: {needs}; take more chips, or a smaller batch or model"
    )


def _powers_of_2(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if most % 2**power == 0]


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
