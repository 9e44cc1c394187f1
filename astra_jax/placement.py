"""Where a training run lives: on the first device alone, or over a mesh of all devices of all hosts.

With a mesh every array is a global one: a host holds the parts that belong to its devices, and makes no other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from astra_jax.config import ConfigError
from astra_jax.errors import AstraError
from astra_jax.model.config import Params
from astra_jax.model.context_parallel import balance
from astra_jax.model.sharding import TPU_LANES, MeshConfig, make_mesh, param_shardings, spec

Batch = TypeVar("Batch", bound=tuple)
"""A NamedTuple of arrays [B, T]."""

_SHARED_WITHIN_SECONDS = 5.0
"""Network disks show a new file to other hosts late, but not as late as this."""


class NotJoined(AstraError):
    """The hosts of a job did not find each other; the message says why."""


def join_hosts() -> None:
    """Join the other hosts of this job, before anything else touches JAX; a host that is alone stays alone.

    Cloud TPU, Slurm and Kubernetes announce who takes part. Elsewhere three variables of the environment do, on every
    host: JAX_COORDINATOR_ADDRESS (host:port of the first), JAX_NUM_PROCESSES, JAX_PROCESS_ID.

    Raises:
        ConfigError: one of the three is missing or makes no sense.
        NotJoined: a cluster is announced, and what it announces cannot be used.
    """
    announced = _announced_by_environment()
    try:
        jax.distributed.initialize(**announced)
    except (ValueError, RuntimeError) as error:
        # What JAX says where nobody announces a cluster.
        if "coordinator_address should be defined" not in str(error):
            raise NotJoined(f"expected the hosts of this job to find each other, found: {error}") from error


def are_hosts_announced() -> bool:
    """Whether the environment says by name that this process is one host of a job."""
    return "JAX_COORDINATOR_ADDRESS" in os.environ


def _announced_by_environment() -> dict[str, Any]:
    """Our number and how many we are, as the three variables say; nothing where they do not."""
    if not are_hosts_announced():
        return {}
    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    if missing := [name for name in names if name not in os.environ]:
        raise ConfigError(f"JAX_COORDINATOR_ADDRESS is set: expected {' and '.join(missing)} beside it, found none")
    texts = [os.environ[name] for name in names]
    if not all(text.isdecimal() for text in texts) or not int(texts[1]) < int(texts[0]):
        raise ConfigError(
            f"expected JAX_NUM_PROCESSES = n and JAX_PROCESS_ID = 0 … n - 1, found {texts[0]!r} and {texts[1]!r}"
        )
    address = os.environ["JAX_COORDINATOR_ADDRESS"]
    port = address.rpartition(":")[2]
    if ":" not in address or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"expected JAX_COORDINATOR_ADDRESS = host:port of the first host, found {address!r}")
    return {"num_processes": int(texts[0]), "process_id": int(texts[1])}


def require_shared_folder(out: Path) -> None:
    """See to it that all hosts of this job write in one folder: what the first writes there, each sees. All call it.

    Raises:
        ConfigError: on every host, when one of them cannot write there or does not see it.
    """
    if jax.process_count() == 1:
        return
    random_words = multihost_utils.broadcast_one_to_all(np.frombuffer(secrets.token_bytes(8), np.uint32))
    folder, is_new = out / f".hosts-{random_words.tobytes().hex()}", not out.exists()
    try:
        # All have written before any looks: a network disk remembers for a while what it did not find.
        _require_of_all_hosts(_can_write(folder / str(jax.process_index())), f"can write in {out}")
        _require_of_all_hosts(_appears(folder / "0"), f"sees what host 0 writes in {out}: give a disk that they share")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # not empty, or taken away by another host
                out.rmdir()


def _require_of_all_hosts(is_so: bool, what: str) -> None:
    is_so_H = multihost_utils.process_allgather(np.int32(is_so))
    if not is_so_H.all():
        hosts = ", ".join(map(str, np.flatnonzero(is_so_H == 0)))
        raise ConfigError(f"expected that every one of {len(is_so_H)} hosts {what}, found that not of: host {hosts}")


def _can_write(file: Path) -> bool:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError:
        return False
    return True


def _appears(file: Path) -> bool:
    deadline = time.monotonic() + _SHARED_WITHIN_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def host_folder(out: Path) -> Path:
    """Where this host writes its metrics: the first in the run's folder, host i in `hosts/i` below it."""
    return out if jax.process_index() == 0 else out / "hosts" / str(jax.process_index())


def training_mesh(config: MeshConfig | None) -> Mesh | None:
    """The mesh of a run. Without a config: None, that is the first device alone; on TPU, a mesh of that one device.

    Raises:
        ConfigError: the axes do not multiply to the number of devices.
    """
    if config is None:
        if jax.process_count() > 1:
            raise ConfigError(f"expected a [mesh] in the config of a run on {jax.process_count()} hosts, found none")
        # TPU's attention kernel runs under a mesh.
        return make_mesh(MeshConfig(), jax.devices()[:1]) if jax.default_backend() == "tpu" else None
    return make_mesh(config)


def rollout_mesh(mesh: Mesh | None) -> Mesh | None:
    """The same devices for decoding, where sequences are not split: `context` joins `fsdp`, and no weight moves."""
    if mesh is None:
        return None
    data, fsdp, context, tensor = mesh.devices.shape
    devices = mesh.devices.reshape(data, fsdp * context, 1, tensor)
    return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)


def in_force(mesh: Mesh | None) -> contextlib.AbstractContextManager[object]:
    """A context in which the model's activations are pinned to the mesh; without one, nothing happens."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def place_params(params: Params, mesh: Mesh | None) -> Params:
    """Parameters that every host has computed alike, each part where it belongs."""
    return jax.tree.map(
        lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, np.asarray(x).__getitem__),
        params,
        param_shardings(params, mesh),
    )


def sharded_shapes(tree: Any, mesh: Mesh | None) -> Any:
    """Shapes, dtypes and shardings of parameters, or of a tree that holds some; nothing is allocated."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree, param_shardings(tree, mesh)
    )


def init_optimizer_state(optimizer: optax.GradientTransformation, params: Params, mesh: Mesh | None) -> optax.OptState:
    """The optimiser's state of step 0, its moments beside the parameters that they are of."""
    shardings = param_shardings(jax.eval_shape(optimizer.init, params), mesh)
    return jax.jit(optimizer.init, out_shardings=shardings)(params)


def require_rows(num_rows: int, parts: int, mesh: Mesh | None) -> None:
    """Raises ConfigError when the rows of a batch cannot be dealt out evenly over its `parts` and `data` × `fsdp`."""
    shards = 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]
    if num_rows % (shards * parts):
        raise ConfigError(
            f"expected batches of a multiple of accumulation × data × fsdp = {parts} × {shards} rows, found {num_rows}"
        )


def require_prompts(num_prompts: int, mesh: Mesh | None) -> None:
    """Raises ConfigError when the prompts of a rollout cannot be dealt out evenly over a rollout's mesh."""
    shards = 1 if mesh is None else mesh.size // mesh.shape["tensor"]
    if num_prompts % shards:
        raise ConfigError(
            f"expected rollouts of a multiple of data × fsdp × context = {shards} groups, found {num_prompts}"
        )


def host_rows(num_rows: int, mesh: Mesh | None) -> slice:
    """Which rows of a batch this host must make: those that its devices hold, some of them or all."""
    if mesh is None:
        return slice(0, num_rows)
    sharding = NamedSharding(mesh, spec("batch"))
    held: Any = sharding.addressable_devices_indices_map((num_rows,)).values()
    bounds = [rows.indices(num_rows) for (rows,) in held]
    return slice(min(start for start, _, _ in bounds), max(stop for _, stop, _ in bounds))


def place_batch(batch: Batch, num_rows: int, mesh: Mesh | None) -> Batch:
    """A batch of `num_rows` rows over the mesh, from this host's rows [b, T] of it, in balanced order over `context`.

    The length is padded to what the mesh needs, on TPU also to what the attention kernel needs.
    """
    if mesh is None:
        return batch
    multiple = TPU_LANES if mesh.devices.flat[0].platform == "tpu" else 1
    fields: dict[str, Any] = batch._asdict()  # type: ignore[attr-defined]
    arrays = balance({name: np.asarray(x) for name, x in fields.items()}, mesh.shape["context"], multiple=multiple)
    sharding, first = NamedSharding(mesh, spec("batch", "sequence")), host_rows(num_rows, mesh).start

    def place(rows_bT: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(num_rows)
            return rows_bT[start - first : stop - first, index[1]]

        return jax.make_array_from_callback((num_rows, rows_bT.shape[1]), sharding, part)

    return type(batch)(**{name: place(rows_bT) for name, rows_bT in arrays.items()})
