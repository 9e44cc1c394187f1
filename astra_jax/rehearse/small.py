"""The config of a pod made small: a tiny model of the same family, tiny records, a mesh of few devices.

    astra rl configs/paper_rl_14b.toml model={…} mesh.fsdp=2 mesh.context=2 steps=4 …

It stays the pod's own file. What the rehearsal changes are overrides, which it prints.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any, Final

from astra_jax.config import ConfigError
from astra_jax.model.config import ModelConfig
from astra_jax.model.sharding import MESH_AXES, MeshConfig
from astra_jax.rl.config import RLConfig
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.stage import run_sft
from astra_jax.testing import tiny_environment, tiny_model_config, tiny_tokenizer
from synthesis.record_io import write_records
from synthesis.records import Environment, RewardAxes, Task, TaskScores, Trajectory
from synthesis.run.places import publish, stage_of

BUCKET: Final = "gs://bucket"
_RL_STEPS: Final = 7  # two jobs are ended by a signal, which takes up to a step
_SFT_STEPS: Final = 10  # which take less time, and end before a signal comes
_ROW_TOKENS: Final = 512
_GROUP_SIZE: Final = 4


def small_mesh(mesh: MeshConfig, devices: int) -> MeshConfig:
    """Return a mesh of at least so many devices, a power of two; each axis above 1 stays above 1, no other is.

    Axes above 1 get 2, then `context`, `fsdp` or `data`, the first of them above 1, grows.

    >>> small_mesh(MeshConfig(fsdp=8, context=8), 8).shape
    (1, 2, 4, 1)
    >>> small_mesh(MeshConfig(tensor=8), 4).shape
    (2, 1, 1, 2)
    """
    shape = {axis: min(2, size) for axis, size in zip(MESH_AXES, mesh.shape, strict=True)}
    grows = next((axis for axis in ("context", "fsdp", "data") if shape[axis] > 1), "data")
    shape[grows] *= max(1, devices // math.prod(shape.values()))
    return MeshConfig(**shape)


def meshes(config: SFTConfig | RLConfig, devices: int) -> dict[str, MeshConfig]:
    """Return the meshes of a config made small, by their keys, all of one number of devices, at least `devices`.

    Raises:
        ConfigError: the config has no mesh.
    """
    if config.mesh is None:
        raise ConfigError("a run without [mesh] has one device, and no other host to lose; add [mesh], or just run it")
    of_run = {"mesh": config.mesh}
    if isinstance(config, RLConfig) and config.rollout_mesh is not None:
        of_run["rollout_mesh"] = config.rollout_mesh
    devices = max(devices, *(math.prod(small_mesh(mesh, 1).shape) for mesh in of_run.values()), 2)
    return {key: small_mesh(mesh, devices) for key, mesh in of_run.items()}


def mesh_overrides(of_run: dict[str, MeshConfig]) -> list[str]:
    """Return the overrides that set these meshes."""
    pairs = itertools.product(of_run.items(), MESH_AXES)
    return [f"{key}.{axis}={getattr(mesh, axis)}" for (key, mesh), axis in pairs]


def shown(of_run: dict[str, MeshConfig]) -> str:
    """Return the axes above 1 of the learner's mesh, in words."""
    return " × ".join(f"{axis} {size}" for axis, size in of_run["mesh"] if size > 1)


def small_overrides(config: SFTConfig | RLConfig, most_shards: int) -> list[str]:
    """Return the overrides that make a config small but for its meshes, of at most `most_shards` shards of a batch."""
    parts = min(2, config.accumulation)
    values: dict[str, Any] = {
        "model_overrides.dtype": "float32",  # on another mesh bfloat16 would sample other tokens
        "model_overrides.param_dtype": "float32",
        "optimizer.learning_rate": 1e-3,  # so that a lost update is seen
        "accumulation": parts,
        "checkpoint_every_steps": 1,
    }
    if config.model is not None:
        values["model"] = _tiny_model(config).model_dump(exclude_none=True)
    if config.profile_steps is not None:
        values["profile_steps"] = [1, 2]
    if config.init is not None:
        values["init"] = f"{BUCKET}/base/policy"
    if isinstance(config, SFTConfig):
        values |= {} if config.tokenizer is None else {"tokenizer": f"{BUCKET}/tokenizer"}
        values |= {"trajectories": [f"{BUCKET}/trajectories"], "environments": [], "conversations": []}
        values |= {
            "length_buckets": [_ROW_TOKENS],
            "epochs" if config.epochs else "steps": 1 if config.epochs else _SFT_STEPS,
        }
        rows = most_shards * parts
        values |= {"batch_rows": rows} if config.batch_rows else {"batch_tokens": rows * _ROW_TOKENS}
    else:
        sharing = min(2, config.episodes_per_row)
        groups = max(2, most_shards * parts * sharing // _GROUP_SIZE)
        at_once = groups + (config.groups_per_rollout > config.groups_per_step)  # few wait: each step rolls out
        values |= {"environments": f"{BUCKET}/environments", "steps": _RL_STEPS, "log_episodes_every_steps": 1}
        values |= {"group_size": _GROUP_SIZE, "groups_per_step": groups, "groups_per_rollout": at_once}
        values |= {"episodes_per_row": sharing, "length_bucket_tokens": _ROW_TOKENS}
        values |= {"rollout.max_prompt_tokens": 256, "rollout.max_response_tokens": 96, "rollout.max_turns": 6}
        values |= {"rollout.reproducible": True}  # else a late tool may tip a rounding
        # The tiny environments have a certificate, but are solved without skill.
        values |= {} if config.max_attack_f1 is None else {"max_attack_f1": 1.0}
        if config.held_out is not None:
            values |= {"held_out.environments": f"{BUCKET}/held_out", "held_out.num_environments": 2}
    return [f"{key}={_toml(value)}" for key, value in values.items()]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def _tiny_model(config: SFTConfig | RLConfig) -> ModelConfig:
    family = "qwen3" if config.model is None else config.model.family
    return tiny_model_config(tiny_tokenizer().vocab_size).model_copy(update={"family": family})


def write_inputs(config: SFTConfig | RLConfig, most_shards: int, folder: Path) -> None:
    """Write tiny records, enough for every step, and a policy that solves some, into the bucket."""
    known, tokenizer = tiny_environment(), tiny_tokenizer()
    # Questions of different lengths: the tokens of a step tell its samples.
    several = [
        known.model_copy(
            update={"id": f"{known.id}-{number}", "question": f"{known.question}{' ?' * (7 * number % 26)}"}
        )
        for number in range(_SFT_STEPS * most_shards * min(2, config.accumulation))
    ]
    places = {name: stage_of(Path(BUCKET) / name) for name in ("environments", "held_out", "trajectories", "tokenizer")}
    write_records(places["environments"], several[:8], kind="environment")
    write_records(places["held_out"], several[8:], kind="environment")
    write_records(places["trajectories"], map(_trajectory, several), kind="trajectory")
    tokenizer.save(places["tokenizer"], model_max_length=1024)
    for place in places.values():
        publish(place)
    write_records(folder / "known", several[:8], kind="environment")  # learnt, so that groups have reward variance
    values = {"seed": 0, "out": f"{BUCKET}/base", "model": _tiny_model(config), "tokenizer": places["tokenizer"]}
    values |= {"environments": [folder / "known"], "length_buckets": [320], "batch_rows": 4, "steps": 60}
    run_sft(SFTConfig.model_validate({**values, "optimizer": {"learning_rate": 1e-2}}))


def _trajectory(environment: Environment) -> Trajectory:
    scores = TaskScores(clarity=1, realism=1, tool_necessity=1)
    return Trajectory(
        id=environment.id,
        server="rehearsal",
        domain=environment.domain,
        language=environment.language,
        task=Task(id=environment.id, text=environment.question, language="en", mode="server", scores=scores),
        tools=tuple(tool.document for tool in environment.tools),
        messages=tuple(environment.gold_messages()),
        tool_backend="emulator",
        stop_reason="no_tool_call",
        reward=RewardAxes(**dict.fromkeys(RewardAxes.AXES, 1.0)),
        provenance=environment.provenance,
    )
