"""A jitted step of a run with the shapes of its arguments on a mesh; nothing is allocated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.flops import matrix_parameters
from astra_jax.model.lora import learnt
from astra_jax.model.qwen3 import abstract_params
from astra_jax.plan.costs import Kernels


@dataclasses.dataclass(frozen=True)
class AbstractStep:
    """A step before it is compiled; bytes are per chip, FLOPs of the whole pod."""

    work: str
    """The work of one step, in words."""
    mesh: Mesh
    trace: Callable[[], jax.stages.Traced]
    bytes_by_category: Mapping[str, int]
    """Bytes of the program that follow from shapes alone, by category."""
    resident_bytes: Mapping[str, int]
    """Bytes on the chip beside the program, by category."""
    model_flops: float
    kernels: Kernels
    partitioner_bytes: Mapping[str, float]
    """Bytes that the partitioner sends beside those in the program, by kind and mesh axes."""
    weight_bytes: float
    """Weights that a chip reads: all that its `tensor` shard multiplies with, wherever they are stored."""
    while_trips: int | None
    """Rounds to count of a loop whose end depends on the data."""
    host_bytes: int = dataclasses.field(default=0, kw_only=True)
    """Bytes that wait in the host's memory, per chip."""
    calls: int = dataclasses.field(default=1, kw_only=True)
    """Calls of the program in a step; bytes that are sent, FLOPs and weights are those of all calls."""
    tokens: int
    """Tokens of the whole pod that come out of it: sampled, read or learnt from."""


def with_shardings(tree: Any, shardings: Any) -> Any:
    """Return the shapes of a tree, laid out so."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def bytes_per_chip(tree: Any) -> int:
    """Return the bytes that each chip holds of a tree of shapes that are laid out over a mesh."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def matrix_bytes(model: ModelConfig, mesh: Mesh) -> float:
    """Return the bytes of all weights that a token is multiplied with on one chip, in the products' type."""
    return matrix_parameters(model) / mesh.shape["tensor"] * jnp.dtype(model.dtype).itemsize


def partitioner_bytes(model: ModelConfig, mesh: Mesh, tokens: int, *, trains: bool, parts: int = 1) -> dict[str, float]:
    """Layers' weights gathered where they are stored in parts, and sums over `tensor` after each branch of a layer.

    Training gathers weights once more for the backward pass, which scatters their gradients and sums over `tensor` too,
    for each of the `parts` of a batch. Gradients are sent in the type of the weights, and copies of the weights over
    `data` add them up. `tokens` are those that a data × fsdp × context shard computes.
    """
    passes = 2 if trains else 1
    itemsize, gradients = jnp.dtype(model.dtype).itemsize, jnp.dtype(model.param_dtype).itemsize
    found = {}
    stored, tensor = mesh.shape["fsdp"] * mesh.shape["context"], mesh.shape["tensor"]
    if stored > 1:
        share = parts / tensor * (stored - 1) / stored * itemsize
        params = abstract_params(model)
        found["all_gather of weights over fsdp × context"] = passes * share * _size_of_layers(params)
        if trains:
            summed = share * gradients / itemsize
            found["reduce_scatter of weights over fsdp × context"] = summed * _size_of_layers(learnt(params))
    if trains and (data := mesh.shape["data"]) > 1:
        share = parts / tensor / stored * gradients * 2 * (data - 1) / data
        found["all_reduce of gradients over data"] = share * _size_of_layers(learnt(abstract_params(model)))
    if tensor > 1:
        sums = passes * 2 * model.num_layers * tokens * model.hidden_size * itemsize
        found["all_reduce of activations over tensor"] = sums * 2 * (tensor - 1) / tensor
    return found


def _size_of_layers(params: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params["layers"]))
