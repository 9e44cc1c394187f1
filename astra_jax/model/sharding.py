"""The place of every array: one table from the model's logical axes to the axes of the mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from pydantic import Field

from astra_jax.config import ConfigError, Frozen
from astra_jax.model.config import ModelConfig
from astra_jax.model.families import PARAMETER_AXES

MESH_AXES = ("data", "fsdp", "context", "tensor")

LOGICAL_TO_MESH: Mapping[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "sequence": "context",
    "layers": None,
    "vocab": "tensor",
    # The width of every weight is stored over fsdp and context, and gathered a layer at a time.
    "embed": ("fsdp", "context"),
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "norm": None,
    "rank": None,
    "hidden": None,
    "slots": None,
}


class MeshConfig(Frozen):
    """Devices along each axis of the mesh."""

    data: int = Field(default=1, ge=1)
    """Devices that hold copies of the weights and share out the rows of a batch."""
    fsdp: int = Field(default=1, ge=1)
    """Devices that share out weights, optimiser state and rows."""
    context: int = Field(default=1, ge=1)
    """Devices that share out the tokens of each row, and the weights."""
    tensor: int = Field(default=1, ge=1)
    """Devices that share out heads, the MLP's width and the vocabulary."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The devices of each axis, in the order of `MESH_AXES`."""
        return self.data, self.fsdp, self.context, self.tensor


TPU_LANES = 128
"""Number of tokens of which a device's part of a sequence is a multiple on TPU: the attention kernel cuts no finer."""
TPU_PREFIX_BLOCK = 512
"""Number of tokens, the kernel's largest block: on TPU segments begin at its multiples if some continue another."""


def ambient_mesh() -> AbstractMesh | None:
    """Return the mesh that `jax.set_mesh` put in force, inside or outside `jit`; None when there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def platform() -> str:
    """Return the platform that the traced code will run on, "cpu", "tpu" or "gpu", also if this machine has none."""
    mesh = ambient_mesh()
    if mesh is None or mesh.abstract_device is None:
        return jax.default_backend()
    return mesh.abstract_device.platform


def constrain(x: jax.Array, *logical: str) -> jax.Array:
    """Pin an activation to the places of its logical axes; without a mesh, nothing happens."""
    return x if ambient_mesh() is None else jax.lax.with_sharding_constraint(x, spec(*logical))


def num_slices(devices: Iterable[jax.Device]) -> int:
    """Return the number of TPU slices in which the devices lie, each with a network of its own between its chips."""
    return len({getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"}) or 1


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make the mesh over `devices` (default: all).

    Raises:
        ConfigError: their number is not the product of the axes, or they are of several slices of TPU chips and `data`
            is no multiple of those.
    """
    devices = jax.devices() if devices is None else devices
    if math.prod(config.shape) != len(devices):
        sizes = " × ".join(f"{axis} {size}" for axis, size in zip(MESH_AXES, config.shape, strict=True))
        raise ConfigError(f"a mesh of {sizes} needs {math.prod(config.shape)} devices, found {len(devices)}")
    slices = num_slices(devices)
    if config.data % slices:
        raise ConfigError(
            f"the devices lie in {slices} TPU slices, over which only copies of the weights are laid: expected "
            f"mesh.data to be a multiple of {slices}, found {config.data}"
        )
    # An axis may take part of a physical axis: 4 x 16 on a torus of 8 x 8.
    if slices == 1:
        layout = mesh_utils.create_device_mesh(config.shape, devices, allow_split_physical_axes=True)
    else:
        of_slice = (config.data // slices, *config.shape[1:])
        layout = mesh_utils.create_hybrid_device_mesh(
            of_slice, (slices, 1, 1, 1), devices, allow_split_physical_axes=True
        )
    # Auto: the partitioner places the arrays that `constrain` does not.
    return Mesh(layout, MESH_AXES, axis_types=(AxisType.Auto,) * 4)


def require_divisible(model: ModelConfig, mesh: Mesh | None) -> None:
    """Raise ConfigError unless every axis of the mesh, if there is one, divides the dimensions that it shards."""
    if mesh is None:
        return
    over_tensor = ("num_heads", "num_kv_heads", "intermediate_size", "vocab_size")
    parts_of = dict.fromkeys(over_tensor, ("tensor", mesh.shape["tensor"]))
    parts_of["hidden_size"] = ("fsdp × context", mesh.shape["fsdp"] * mesh.shape["context"])
    for name, (axis, parts) in parts_of.items():
        if (size := getattr(model, name)) % parts:
            raise ConfigError(f"mesh axis {axis} = {parts} does not divide {name} = {size}")


def spec(*logical: str) -> PartitionSpec:
    """Return the partition of an array with these logical axes.

    >>> tuple(spec("batch", "sequence"))
    (('data', 'fsdp'), 'context')
    """
    return PartitionSpec(*(LOGICAL_TO_MESH[axis] for axis in logical))


def param_shardings(tree: Any, mesh: Mesh | None) -> Any:
    """Return the sharding of each leaf of `Params`, or of a tree that holds some, such as optimiser state.

    A leaf at a parameter's path lives where that parameter lives, any other (counters) on every device; without
    a mesh all of it lives on the first device.
    """
    if mesh is None:
        return jax.tree.map(lambda _: SingleDeviceSharding(jax.devices()[0]), tree)
    return jax.tree_util.tree_map_with_path(lambda path, _: NamedSharding(mesh, _parameter_spec(path)), tree)


def constrain_params(tree: Any) -> Any:
    """Pin a tree as of `param_shardings` to its places; without a mesh, nothing happens."""
    if ambient_mesh() is None:
        return tree
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.lax.with_sharding_constraint(leaf, _parameter_spec(path)), tree
    )


def is_matrix(*path: str) -> bool:
    """Return whether the parameter at a path is a matrix that tokens are multiplied with, or their embedding.

    >>> is_matrix("layers", "q_proj"), is_matrix("layers", "q_norm"), is_matrix("layers", "q_bias")
    (True, False, False)
    """
    return not {"embed", "rank"}.isdisjoint(PARAMETER_AXES[path])


def parameter_path(path: jax.tree_util.KeyPath) -> tuple[str, ...]:
    """Return the keys that spell a parameter's path in a tree that may wrap `Params`, as optimiser state does."""
    return tuple(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey))


def _parameter_spec(path: jax.tree_util.KeyPath) -> PartitionSpec:
    keys = parameter_path(path)
    return spec(*PARAMETER_AXES[keys]) if keys else PartitionSpec()
