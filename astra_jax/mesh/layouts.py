"""Where a policy decodes: on a mesh of its own over the learner's devices, with weights laid out for that.

A token of a decode reads every weight once. Weights that lie in parts over `fsdp` would be gathered for each, so they
are laid out over `tensor` alone, in the type that products are computed in: by one program, once per update.

Decided: docs/decisions/hosts.md, “A policy decodes on a mesh of its own”.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from astra_jax.config import ConfigError
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import MESH_AXES, PARAMETER_AXES, MeshConfig, param_shardings, spec


def rollout_mesh(config: MeshConfig | None, mesh: Mesh | None) -> Mesh | None:
    """Return the mesh for decoding, of the devices of the learner's; without a config all but `tensor` joins `data`.

    Raises:
        ConfigError: it has not as many devices; it splits sequences; or the learner has no mesh.
    """
    if mesh is None:
        if config is not None:
            raise ConfigError("expected a [mesh] beside [rollout_mesh], found none: both lie over the same devices")
        return None
    if config is None:
        config = MeshConfig(data=mesh.size // mesh.shape["tensor"], tensor=mesh.shape["tensor"])
    if config.context > 1:
        raise ConfigError(
            f"rollout_mesh.context: expected 1, because a cached sequence is not split, found {config.context}; use "
            "data or tensor"
        )
    if math.prod(config.shape) != mesh.size:
        raise ConfigError(
            f"expected a rollout_mesh of the {mesh.size} devices of the mesh, found one of {math.prod(config.shape)}"
        )
    # In the learner's order, so that one program can have weights of both meshes; and its neighbours stay neighbours.
    return Mesh(mesh.devices.reshape(config.shape), MESH_AXES, axis_types=mesh.axis_types)


def laid_out_for_decoding(config: ModelConfig, mesh: Mesh | None, params: Params) -> Params:
    """Return a learner's weights as they are decoded with: the very same where nothing changes."""
    if mesh is None and config.dtype == config.param_dtype:
        return params
    return weights_for_decoding(config, mesh)(params)


def copied_for_decoding(config: ModelConfig, mesh: Mesh | None, params: Params) -> Params:
    """Return a learner's weights as they are decoded with, in arrays that live on when an update gives its own away."""
    laid_out = laid_out_for_decoding(config, mesh, params)
    return jax.tree.map(jnp.copy, params) if laid_out is params else laid_out


@functools.cache
def weights_for_decoding(config: ModelConfig, mesh: Mesh | None) -> jax.stages.Wrapped:
    """Return the program that lays out a learner's `Params` for decoding on `mesh`; on one device it converts them.

    Norms stay as they are, since the model computes with them in float32. All else it computes in the type that
    weights are converted to, so the policy is the same. Beside both layouts it holds one layer and the
    embeddings whole.
    """

    def converted(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        return leaf if str(path[-1].key).endswith("norm") else leaf.astype(config.dtype)

    def laid_out(leaf: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        assert mesh is not None
        # Gathered on purpose: the partitioner knows no better way from one mesh to another, and says so at length.
        whole = jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, PartitionSpec()))
        return jax.lax.with_sharding_constraint(whole, NamedSharding(mesh, spec(*axes)))

    def program(params: Params) -> Params:
        params = jax.tree_util.tree_map_with_path(converted, params)
        if mesh is None:
            return params
        layers = params.pop("layers")
        of_layer = {name: PARAMETER_AXES["layers", name][1:] for name in layers}
        # Layer by layer: of all layers at once, what is gathered would be the whole model.
        layers = jax.lax.map(lambda layer: {name: laid_out(layer[name], of_layer[name]) for name in layer}, layers)
        return {name: laid_out(leaf, PARAMETER_AXES[name,]) for name, leaf in params.items()} | {"layers": layers}

    return jax.jit(program, out_shardings=param_shardings(abstract_params(config), mesh))
