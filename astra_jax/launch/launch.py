"""The files of a run on a pod: a JobSet for Kubernetes, or a script for Compute Engine.

Nothing is sent anywhere: the text names the image, the config and the secrets, and holds no secret. So it can be read,
changed and kept before it costs anything.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jinja2

from astra_jax.config import ConfigError
from astra_jax.launch.machines import machines_of
from astra_jax.model.sharding import MeshConfig
from astra_jax.rl.config import RLConfig
from astra_jax.sft.config import SFTConfig
from synthesis.run.places import address_of

Place = Literal["gke", "compute-engine"]
_TEMPLATES: dict[Place, str] = {"gke": "jobset.yaml.jinja", "compute-engine": "instance_group.sh.jinja"}
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def launch_text(
    config: SFTConfig | RLConfig,
    text: str,
    overrides: Sequence[str],
    *,
    place: Place,
    topology: str,
    slices: int = 1,
    image: str,
    name: str,
    sandbox: str | None = None,
) -> str:
    """Return what `kubectl apply -f -` or a shell is given to start a run.

    Args:
      text: the config's file, which every host gets as it is.
      overrides: `key=value` of the command, which every host gets too.
      image: the container's image, with this package installed.
      name: of the job and all that belongs to it.
      sandbox: address of a running sandbox; without one each host starts its own.

    Raises:
        ConfigError: the topology is unknown; a mesh has another number of chips, or the batch does not fit it; a path
            is on this machine; the name is none that a cluster takes; or Compute Engine has no such groups.
    """
    machines = machines_of(topology)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"expected a name of at most 40 small letters, digits and '-', found {name!r}")
    if place == "compute-engine" and (slices > 1 or not machines.has_groups):
        found = f"--slices {slices}" if slices > 1 else topology
        raise ConfigError(f"a group of machines is one slice of v5p or v6e, found {found}; use --on gke")
    _require_chips(config, machines.hosts * machines.chips_per_host, topology, slices)
    if here := [f"{key} = {str(path)!r}" for key, path in _paths(config.model_dump()) if address_of(path) is None]:
        raise ConfigError(f"hosts share only a bucket: give a URL such as gs://BUCKET/… for {', '.join(here)}")
    command = ["astra", "sft" if isinstance(config, SFTConfig) else "rl", "/config/config.toml", *overrides]
    if isinstance(config, RLConfig) and sandbox is not None:
        command += ["--sandbox", sandbox]
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"json": lambda x: json.dumps(x, ensure_ascii=False), "quoted": shlex.quote}
    template = Path(__file__).with_name(_TEMPLATES[place]).read_text(encoding="utf-8")
    return environment.from_string(template).render(
        name=name,
        image=image,
        command=command,
        config=text,
        machines=machines,
        slices=slices,
        topology=topology,
        has_sandbox=sandbox is not None and isinstance(config, RLConfig),
    )


def _require_chips(config: SFTConfig | RLConfig, chips: int, topology: str, slices: int) -> None:
    mesh = config.mesh or MeshConfig()
    meshes = {"mesh": mesh}
    if isinstance(config, RLConfig) and config.rollout_mesh is not None:
        meshes["rollout_mesh"] = config.rollout_mesh
    for name, each in meshes.items():
        if (devices := math.prod(each.shape)) != chips * slices:
            of_slices = f"{slices} slices of {topology} have" if slices > 1 else f"{topology} has"
            raise ConfigError(f"the config's {name} has {devices} chips, {of_slices} {chips * slices}; set {name}")
    if mesh.data % slices:
        raise ConfigError(f"only mesh.data lies over slices: expected a multiple of {slices}, found {mesh.data}")
    shards = mesh.data * mesh.fsdp * config.accumulation
    rows = [config.rows_per_update] if isinstance(config, RLConfig) else [count for count, _ in config.batch_shapes]
    if any(count % shards for count in rows):
        raise ConfigError(
            f"expected batches of a multiple of accumulation × data × fsdp = {shards} rows, found {rows}; set "
            "accumulation"
        )


def _paths(value: Any, key: str = "") -> Iterator[tuple[str, Path]]:
    """Yield every path of a config, with its key."""
    if isinstance(value, Path):
        yield key, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _paths(each, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _paths(each, key)
