"""The mesh on which a policy decodes, over the learner's devices, and the layout of its weights there.

Decoding reads every weight once for each token. Weights that are split over `fsdp` would be gathered for each token.
So once per update they are laid out over `tensor` alone, layer by layer, in the type of the matrix products.

Decided: docs/decisions/hosts.md, “A policy decodes on a mesh of its own”.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from astra_jax.config import ConfigError
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.families import PARAMETER_AXES
from astra_jax.model.lora import merged_layer
from astra_jax.model.qwen3 import abstract_params, layers_apart
from astra_jax.model.sharding import MESH_AXES, MeshConfig, is_matrix, make_mesh, num_slices, spec


def rollout_mesh(config: MeshConfig | None, mesh: Mesh | None) -> Mesh | None:
    """Return the mesh for decoding, over the learner's devices; without a config all axes but `tensor` become `data`.

    Raises:
        ConfigError: the config has another number of devices, splits sequences, or lays weights over two TPU slices; or
            the learner has no mesh.
    """
    if mesh is None:
        if config is not None:
            raise ConfigError("[rollout_mesh] lies over the devices of [mesh], which is missing; add it")
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
    if (mesh.size // num_slices(mesh.devices.flat)) % (config.fsdp * config.tensor):
        raise ConfigError(
            f"rollout_mesh of fsdp {config.fsdp} × tensor {config.tensor} does not divide a TPU slice of "
            f"{mesh.size // num_slices(mesh.devices.flat)} chips; only rollout_mesh.data lies over several"
        )
    # The order is the learner's, so that one program can have weights of both meshes; and neighbours stay neighbours.
    return Mesh(mesh.devices.reshape(config.shape), MESH_AXES, axis_types=mesh.axis_types)


def sampling_mesh(data: int, tensor: int) -> Mesh | None:
    """Return a mesh over the first devices of this host for a policy that is not trained; None for one device.

    Raises:
        ConfigError: this host has fewer devices.
    """
    if data * tensor == 1:
        return None
    devices = jax.local_devices()
    if data * tensor > len(devices):
        raise ConfigError(
            f"{data} × {tensor} devices (--data-parallel-size × --tensor-parallel-size) are more than the "
            f"{len(devices)} of this host; lower one"
        )
    return make_mesh(MeshConfig(data=data, tensor=tensor), devices[: data * tensor])


def laid_out_for_decoding(config: ModelConfig, mesh: Mesh | None, params: Params) -> Params:
    """Return a learner's weights laid out for decoding, layers apart; arrays outside the layers may be shared."""
    if mesh is None and config.dtype == config.param_dtype and config.lora is None:
        return layers_apart(params)
    return weights_for_decoding(config, mesh)(params)


@functools.cache
def weights_for_decoding(config: ModelConfig, mesh: Mesh | None) -> Callable[[Params], Params]:
    """Return the function that lays out a learner's `Params` for decoding on `mesh`; on one device it converts them.

    Matrices are converted to the type that the model computes in. Norms and biases stay as they are: norms are
    computed in float32. So the policy stays the same; adapters are merged into their matrices. Beside both layouts
    only one layer, or the embeddings, exist whole.
    """

    def laid_out(weights: Params, *of: str) -> Params:
        is_cast = {name: is_matrix(*of, name) for name in weights}
        cast = {name: leaf.astype(config.dtype) if is_cast[name] else leaf for name, leaf in weights.items()}
        # Gathered on purpose: the partitioner knows no better way from one mesh to another, and would print warnings.
        return cast if mesh is None else jax.lax.with_sharding_constraint(cast, NamedSharding(mesh, PartitionSpec()))

    def of_layer(layers: Params, number: jax.Array) -> Params:
        own = {name: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False) for name, leaf in layers.items()}
        return laid_out(merged_layer(config, own), "layers")

    places = None if mesh is None else places_for_decoding(config, mesh)
    outside_places = places and {name: place for name, place in places.items() if name != "layers"}
    outside_program = jax.jit(laid_out, out_shardings=outside_places)
    layer_program = jax.jit(of_layer, out_shardings=places and places["layers"][0])

    def lay_out(params: Params) -> Params:
        layers, outside = params["layers"], {name: leaf for name, leaf in params.items() if name != "layers"}
        # Called for each layer: a program for all layers would gather the whole model at once.
        apart = tuple(layer_program(layers, np.int32(number)) for number in range(config.num_layers))
        return {**outside_program(outside), "layers": apart}

    return lay_out


def places_for_decoding(config: ModelConfig, mesh: Mesh) -> Params:
    """Return the sharding of each array for decoding, layers apart."""
    params = abstract_params(config.with_lora(None))
    layer = {name: NamedSharding(mesh, spec(*PARAMETER_AXES["layers", name][1:])) for name in params["layers"]}
    outside = {name: NamedSharding(mesh, spec(*PARAMETER_AXES[name,])) for name in params if name != "layers"}
    return outside | {"layers": (layer,) * config.num_layers}
