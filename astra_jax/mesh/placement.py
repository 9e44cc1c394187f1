"""The devices of a training run: the first one alone, or a mesh of all devices of all hosts.

With a mesh every array is a global one: a host holds the parts that belong to its devices, and makes no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from astra_jax.config import ConfigError
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.context_parallel import balance, balanced_order, balanced_tokens
from astra_jax.model.lora import init_adapters, joined
from astra_jax.model.sharding import (
    TPU_LANES,
    TPU_PREFIX_BLOCK,
    MeshConfig,
    ambient_mesh,
    make_mesh,
    param_shardings,
    spec,
)

T = TypeVar("T")
Batch = TypeVar("Batch", bound=tuple)
"""A NamedTuple of arrays [B, T, …], or None where it has none."""


def training_mesh(config: MeshConfig | None, devices: Sequence[jax.Device] | None = None) -> Mesh | None:
    """Make the mesh of a run, over `devices` (default: all of this job).

    Without a config: None, that is the first device alone; on TPU, a mesh of that device.

    Raises:
        ConfigError: the axes do not multiply to the number of devices; or there are several hosts and no config.
    """
    if config is None:
        if jax.process_count() > 1:
            raise ConfigError(f"a run on {jax.process_count()} hosts needs a [mesh] in its config; add it")
        first = (jax.devices() if devices is None else devices)[:1]
        # TPU's attention kernel runs under a mesh.
        return make_mesh(MeshConfig(), first) if first[0].platform == "tpu" else None
    return make_mesh(config, devices)


def in_force(mesh: Mesh | None) -> contextlib.AbstractContextManager[object]:
    """Return a context in which the model's activations are pinned to the mesh; without one, nothing happens."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def place_params(params: Params, mesh: Mesh | None) -> Params:
    """Put parameters that every host has computed alike, each part where it belongs."""
    return jax.tree.map(
        lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, np.asarray(x).__getitem__),
        params,
        param_shardings(params, mesh),
    )


def with_adapters(config: ModelConfig, params: Params, seed: int, mesh: Mesh | None) -> Params:
    """Return the parameters with new adapters beside them, if the model has any."""
    return params if config.lora is None else joined(params, place_params(init_adapters(config, seed), mesh))


def on_devices(of_rows: T) -> T:
    """Put the host's arrays, rows of the batch first, where the mesh in force has them; those there already stay."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        # Named: an array that might as well lie elsewhere would have programs of its own.
        return jax.device_put(of_rows, jax.local_devices()[0])
    sharding = NamedSharding(mesh, spec("batch"))

    def put(x: jax.Array | np.ndarray) -> jax.Array:
        return x if isinstance(x, jax.Array) else jax.make_array_from_callback(x.shape, sharding, x.__getitem__)

    return jax.tree.map(put, of_rows)


def sharded_shapes(tree: Any, mesh: Mesh | None) -> Any:
    """Return shapes, dtypes and shardings of parameters, or of a tree that holds some; nothing is allocated."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree, param_shardings(tree, mesh)
    )


def init_optimizer_state(optimizer: optax.GradientTransformation, params: Params, mesh: Mesh | None) -> optax.OptState:
    """Make the optimiser's state of step 0, its moments beside the parameters that they are of."""
    # Made where it is to lie: made first and moved then, all moments would once be on one device.
    shardings = param_shardings(jax.eval_shape(optimizer.init, params), mesh)
    return jax.jit(optimizer.init, out_shardings=shardings)(params)


def in_memory(kind: Literal["device", "pinned_host"], tree: Any) -> Any:
    """Return a tree of arrays in the memory of their devices or of the devices' host; nothing moves that is there."""
    return jax.device_put(tree, jax.tree.map(lambda x: x.sharding.with_memory_kind(kind), tree))


def require_rows(num_rows: int, parts: int, mesh: Mesh | None) -> None:
    """Raise ConfigError unless a batch's rows can be dealt out evenly over its `parts` and `data` × `fsdp`."""
    shards = shards_of(mesh)
    if num_rows % (shards * parts):
        raise ConfigError(
            f"expected batches of a multiple of accumulation × data × fsdp = {parts} × {shards} rows, found {num_rows}"
        )


def host_rows(num_rows: int, mesh: Mesh | None) -> slice:
    """Say which rows of a batch this host must make: those that its devices hold, some of them or all."""
    if mesh is None:
        return slice(0, num_rows)
    sharding = NamedSharding(mesh, spec("batch"))
    held: Any = sharding.addressable_devices_indices_map((num_rows,)).values()
    # From the first held to the last: were there gaps between, it would make rows for nothing, but miss none.
    bounds = [rows.indices(num_rows) for (rows,) in held]
    return slice(min(start for start, _, _ in bounds), max(stop for _, stop, _ in bounds))


def num_shards() -> int:
    """Return the number of shards of the batch, `data` × `fsdp`, of the mesh in force; 1 without a mesh."""
    return shards_of(ambient_mesh())


def shards_of(mesh: Mesh | AbstractMesh | None) -> int:
    """Return over how many shards of a mesh the rows of a batch are dealt out."""
    return 1 if mesh is None else int(mesh.shape["data"] * mesh.shape["fsdp"])


def num_hosts() -> int:
    """Return the number of hosts with devices of the mesh in force, whether the devices exist or are planned for."""
    mesh = jax.sharding.get_mesh()
    return 1 if mesh.empty else len({device.process_index for device in mesh.devices.flat})


def own_shards() -> tuple[int, ...]:
    """Return this host's shards of the batch in the mesh in force: it schedules their rows."""
    return tuple(range(num_shards())) if jax.process_count() == 1 else host_shards(jax.sharding.get_mesh())


def host_shards(mesh: Mesh) -> tuple[int, ...]:
    """Say which shards of the batch, `data` × `fsdp` in order, are this host's: their first device is."""
    first = mesh.devices.reshape(shards_of(mesh), -1)[:, 0]
    return tuple(shard for shard, device in enumerate(first) if device.process_index == jax.process_index())


def padded_tokens(num_tokens: int, mesh: Mesh) -> int:
    """Return the length to which `place_batch` pads rows of `num_tokens`."""
    return balanced_tokens(num_tokens, mesh.shape["context"], multiple=_multiple(mesh))


def _multiple(mesh: Mesh) -> int:
    return TPU_LANES if mesh.devices.flat[0].platform == "tpu" else 1


def segment_multiple(mesh: Mesh | None) -> int:
    """Return a number of tokens: segments of a row begin at its multiples if some of them continue another."""
    return TPU_PREFIX_BLOCK if mesh is not None and mesh.devices.flat[0].platform == "tpu" else 1


def place_batch(batch: Batch, num_rows: int, mesh: Mesh | None) -> Batch:
    """Lay a batch of `num_rows` rows [b, T] over the mesh, in balanced order over `context`: this host's rows, or all.

    The length is padded so that it fits the mesh, and on TPU also the attention kernel.
    """
    if mesh is None:
        return batch
    fields: dict[str, Any] = batch._asdict()  # type: ignore[attr-defined]
    arrays = {name: np.asarray(x) for name, x in fields.items() if x is not None}
    arrays = balance(arrays, mesh.shape["context"], multiple=_multiple(mesh))
    sharding = NamedSharding(mesh, spec("batch", "sequence"))
    first = 0 if len(batch[0]) == num_rows else host_rows(num_rows, mesh).start

    def place(rows_bT: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(num_rows)  # of the whole batch, of which we have the rows from `first` on
            return rows_bT[start - first : stop - first, index[1]]

        return jax.make_array_from_callback((num_rows, *rows_bT.shape[1:]), sharding, part)

    return type(batch)(**fields | {name: place(rows_bT) for name, rows_bT in arrays.items()})


def on_host(x_BT: jax.Array, mesh: Mesh | None) -> np.ndarray:
    """Return an array [B, T] of a placed batch, its columns in the order before `place_batch`. All hosts call it."""
    if mesh is None:
        return np.asarray(x_BT)
    whole_BT = multihost_utils.process_allgather(x_BT, tiled=True)
    order = balanced_order(whole_BT.shape[1], mesh.shape["context"])
    return whole_BT[:, np.argsort(order)]
