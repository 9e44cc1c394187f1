"""Adapters of low rank (LoRA, arXiv 2106.09685): the matrices that a run learns, beside weights that stay as they are.

    frozen   "q_proj" [L, D, N, H]                              the weights of `init`
    learnt   "q_proj_a" [L, D, r], "q_proj_b" [L, r, N, H]      random and zero at first: the policy begins as `init`
    merged   q_proj + 2 · q_proj_a · q_proj_b                    samples, is evaluated, and is written as the policy

Both kinds are in one tree of `Params`, told apart by their names; gradients, the optimiser's state and checkpoints are
trees of the adapters alone.

Decided: docs/decisions/runs.md, “LoRA learns in the layer and samples merged weights”.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.families import PARAMETER_AXES

SCALE = 2.0
"""Factor on A·B: an `alpha` of twice the rank, as most recipes have it, so that a rate serves every rank."""
_HALVES = ("_a", "_b")


def adapter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each adapter's halves in one layer, by name.

    >>> from astra_jax.model.config import LoRA, QWEN3_PRESETS
    >>> model = QWEN3_PRESETS["qwen3-0.6b"]
    >>> adapter_shapes(model.with_lora(LoRA(rank=8, targets=["o_proj"])))
    {'o_proj_a': (16, 128, 8), 'o_proj_b': (8, 1024)}
    """
    assert config.lora is not None
    sizes = {
        "embed": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "mlp": config.intermediate_size,
        "rank": config.lora.rank,
    }
    names = [name + half for name in config.lora.targets for half in _HALVES]
    return {name: tuple(sizes[axis] for axis in PARAMETER_AXES["layers", name][1:]) for name in names}


def init_adapters(config: ModelConfig, seed: int) -> Params:
    """Return adapters whose product is zero: A normal with deviation 1/√fan-in, B zero.

    Every host draws them all: they are small.
    """
    rng = np.random.default_rng([seed, 0x10FA])

    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name.endswith("_b"):
            return np.zeros((config.num_layers, *shape), np.float32)
        values = rng.standard_normal((config.num_layers, *shape), np.float32)
        return values * np.float32(math.prod(shape[:-1]) ** -0.5)

    return {"layers": {name: drawn(name, shape) for name, shape in adapter_shapes(config).items()}}


def learnt(params: Params) -> Params:
    """Return what a run learns: the adapters if there are any, else all parameters."""
    adapters = {name: leaf for name, leaf in params["layers"].items() if name.endswith(_HALVES)}
    return {"layers": adapters} if adapters else params


def joined(frozen: Params, learnt: Params) -> Params:
    """Return `frozen` with the parameters of `learnt` in their places."""
    return {**frozen, **learnt, "layers": {**frozen["layers"], **learnt["layers"]}}


def merged_layer(config: ModelConfig, layer: Params) -> Params:
    """Return one layer's weights with its adapters added to them, in the weights' type and summed in float32."""
    if config.lora is None:
        return layer
    weights = dict(layer)
    for name in config.lora.targets:
        matrix, a, b = (weights[name], *(weights.pop(name + half) for half in _HALVES))
        product = jnp.tensordot(a, b, 1, precision=jax.lax.Precision.HIGHEST)
        weights[name] = (matrix.astype(jnp.float32) + SCALE * product).astype(matrix.dtype)
    return weights


def merged(config: ModelConfig, params: Params) -> tuple[ModelConfig, Params]:
    """Return the model without adapters and its parameters, each where its matrix lies; without adapters the same.

    The layers are merged one by one in one program, whose result is a second copy of them.
    """
    if config.lora is None:
        return config, params
    layers = params["layers"]
    places = {name: leaf.sharding for name, leaf in layers.items() if not name.endswith(_HALVES)}

    def of_all(layers: Params) -> Params:
        return jax.lax.map(lambda layer: merged_layer(config, layer), layers)

    whole = jax.jit(of_all, out_shardings=places)(layers)
    return config.with_lora(None), {**params, "layers": whole}
