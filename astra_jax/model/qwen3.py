"""Qwen3 (arXiv 2505.09388) in Flax NNX: q/k norm, grouped queries, rope, SwiGLU; layers stacked and scanned.

The other families of `model.families` differ in the q/k norm and in biases alone.

Dimensions: B batch rows · T tokens · D width · N query heads · K key/value heads · H head width · F MLP width ·
V vocabulary · L layers.

Parameters travel outside the module as a plain nested dictionary of arrays (`Params`), the layers' with a leading L:

    {"embedding": [V, D], "final_norm": [D], "unembedding": [V, D] (untied only),
     "layers": {"attention_norm": [L, D], "q_proj": [L, D, N, H], "k_proj", "v_proj": [L, D, K, H],
                "q_norm", "k_norm": [L, H] (Qwen3), "q_bias": [L, N, H], "k_bias", "v_bias": [L, K, H] (Qwen2.5),
                "o_proj": [L, N, H, D],
                "mlp_norm": [L, D], "gate_proj", "up_proj": [L, D, F], "down_proj": [L, F, D]}}

so that gradients, optimisers, checkpoints and shardings are trees of arrays, and `bind(config, params)` makes the
module of them inside or outside `jit` at no cost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from astra_jax.model.attention import attention
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.embedding import embed_tokens
from astra_jax.model.lora import SCALE, adapter_shapes
from astra_jax.model.projection import project
from astra_jax.model.remat import MLP_INPUT, remat
from astra_jax.model.sharding import constrain


class Rope(NamedTuple):
    """Float32 cosines and sines of every position, [B, T, 1, H/2]."""

    cos: jax.Array
    sin: jax.Array


def rope_frequencies(config: ModelConfig) -> tuple[jax.Array, float]:
    """Return rotations per token [H/2], in radians, and the factor on cos and sin; YaRN as arXiv 2309.00071, eq. 17–22.

    YaRN keeps wavelengths that turn more than `beta_fast` times within the original context, divides those that turn
    less than `beta_slow` times by `factor`, and blends between; cos and sin grow by 0.1 ln(factor) + 1.
    """
    half = config.head_dim // 2
    # Rounded to float32 where `transformers` rounds: another order rounds otherwise, and positions multiply the error.
    tokens_per_radian = (config.rope_theta ** (np.arange(half) / half)).astype(np.float32)
    frequencies = jnp.asarray(np.float32(1) / tokens_per_radian)
    yarn = config.yarn
    if yarn is None:
        return frequencies, 1.0

    def dimension_that_turns(times: float) -> float:
        wavelength = yarn.original_max_position_embeddings / (times * 2 * math.pi)
        return half * math.log(wavelength) / math.log(config.rope_theta)

    low = max(math.floor(dimension_that_turns(yarn.beta_fast)), 0)
    high = min(math.ceil(dimension_that_turns(yarn.beta_slow)), config.head_dim - 1)
    # 1e-3 as in `transformers`: where both ends meet, the blend is a step and not 0/0.
    stretched = jnp.clip((jnp.arange(half) - low) / (high - low or 1e-3), 0.0, 1.0)
    frequencies = frequencies * (1 - stretched) + frequencies / yarn.factor * stretched
    return frequencies, 0.1 * math.log(yarn.factor) + 1.0


def rope_tables(config: ModelConfig, positions_BT: jax.Array) -> Rope:
    """Return the rotation of each position."""
    frequencies, factor = rope_frequencies(config)
    angles = positions_BT[..., None, None].astype(jnp.float32) * frequencies
    return Rope(jnp.cos(angles) * factor, jnp.sin(angles) * factor)


def _rotate(x_BTNH: jax.Array, rope: Rope) -> jax.Array:
    """Rotates the pairs (i, i + H/2) of each head in float32."""
    low, high = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([low * rope.cos - high * rope.sin, high * rope.cos + low * rope.sin], axis=-1)


def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) · weight over the last axis, in float32, returned in the dtype of x."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (normed * weight.astype(jnp.float32)).astype(x.dtype)


class Layer(nnx.Module):
    """One transformer block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        width, heads, kv_heads = config.hidden_size, config.num_heads, config.num_kv_heads
        head_dim, mlp = config.head_dim, config.intermediate_size
        param = functools.partial(_param, config)
        self.config = config
        self.attention_norm = param(width)
        self.q_proj = param(width, heads, head_dim)
        self.k_proj = param(width, kv_heads, head_dim)
        self.v_proj = param(width, kv_heads, head_dim)
        if config.of_family.qk_norm:
            self.q_norm = param(head_dim)
            self.k_norm = param(head_dim)
        if config.of_family.attention_bias:
            self.q_bias = param(heads, head_dim)
            self.k_bias = param(kv_heads, head_dim)
            self.v_bias = param(kv_heads, head_dim)
        self.o_proj = param(heads, head_dim, width)
        self.mlp_norm = param(width)
        self.gate_proj = param(width, mlp)
        self.up_proj = param(width, mlp)
        self.down_proj = param(mlp, width)
        for name, shape in () if config.lora is None else adapter_shapes(config).items():
            setattr(self, name, nnx.Param(jnp.zeros(shape, jnp.float32)))

    def _project(self, x: jax.Array, name: str) -> jax.Array:
        """Multiply with a matrix of the layer, and add the product of its adapter, if it has one."""
        out, lora = project(x, getattr(self, name)[...]), self.config.lora
        if lora is None or name not in lora.targets:
            return out
        a, b = (getattr(self, f"{name}_{half}")[...] for half in "ab")
        return out + project(project(x, a), b) * SCALE

    def qkv(self, x_BTD: jax.Array, rope: Rope) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return rotated queries [B, T, N, H] and keys [B, T, K, H], and values [B, T, K, H]."""
        eps, dtype = self.config.rms_norm_eps, x_BTD.dtype
        x_BTD = _rms_norm(x_BTD, self.attention_norm[...], eps)
        q_BTNH, k_BTKH, v_BTKH = (self._project(x_BTD, f"{name}_proj") for name in "qkv")
        if self.config.of_family.attention_bias:
            q_BTNH, k_BTKH = q_BTNH + self.q_bias[...].astype(dtype), k_BTKH + self.k_bias[...].astype(dtype)
            v_BTKH = v_BTKH + self.v_bias[...].astype(dtype)
        if self.config.of_family.qk_norm:
            q_BTNH, k_BTKH = _rms_norm(q_BTNH, self.q_norm[...], eps), _rms_norm(k_BTKH, self.k_norm[...], eps)
        return _rotate(q_BTNH, rope).astype(dtype), _rotate(k_BTKH, rope).astype(dtype), v_BTKH

    def residual(self, x_BTD: jax.Array, attended_BTNH: jax.Array) -> jax.Array:
        """Return the block's output [B, T, D], from its input and the output of its heads."""
        x_BTD = checkpoint_name(x_BTD + self._project(attended_BTNH, "o_proj"), MLP_INPUT)
        normed_BTD = _rms_norm(x_BTD, self.mlp_norm[...], self.config.rms_norm_eps)
        gate_BTF = jax.nn.silu(self._project(normed_BTD, "gate_proj"))
        up_BTF = self._project(normed_BTD, "up_proj")
        return x_BTD + self._project(gate_BTF * up_BTF, "down_proj")

    def __call__(
        self, x_BTD: jax.Array, rope: Rope, segment_ids_BT: jax.Array, prefix_ids_BT: jax.Array | None = None
    ) -> jax.Array:
        q_BTNH, k_BTKH, v_BTKH = self.qkv(x_BTD, rope)
        return self.residual(x_BTD, attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, prefix_ids_BT))


class Qwen3(nnx.Module):
    """The language model; returns final-normed hidden states, never logits of a whole sequence."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.embedding = _param(config, config.vocab_size, config.hidden_size)
        self.layers = nnx.vmap(lambda _: Layer(config), axis_size=config.num_layers)(None)
        self.final_norm = _param(config, config.hidden_size)
        if not config.tie_word_embeddings:
            self.unembedding = _param(config, config.vocab_size, config.hidden_size)

    def __call__(
        self,
        tokens_BT: jax.Array,
        positions_BT: jax.Array,
        segment_ids_BT: jax.Array,
        prefix_ids_BT: jax.Array | None = None,
    ) -> jax.Array:
        """Return final-normed hidden states [B, T, D].

        A token attends to the earlier tokens of its own segment, and of the prefix that `prefix_ids_BT` names, if any
        (see `attention`). `positions_BT` counts from 0 in each segment, or goes on from its
        prefix; padding is a segment id that no real token has (0 by convention).
        """
        rope = rope_tables(self.config, positions_BT)
        graph, layers = nnx.split(self.layers)

        def block(x_BTD: jax.Array, layer: nnx.State) -> tuple[jax.Array, None]:
            x_BTD = nnx.merge(graph, layer)(x_BTD, rope, segment_ids_BT, prefix_ids_BT)
            # Pinned once a layer: left alone, the partitioner may gather the sequence somewhere in between.
            return constrain(x_BTD, "batch", "sequence", "hidden"), None

        x_BTD, _ = jax.lax.scan(remat(block, self.config.remat), self.embed(tokens_BT), layers)
        return self.norm(x_BTD)

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Return the residual stream [B, T, D] before the first layer."""
        return embed_tokens(self.embedding[...], tokens_BT, self.config.dtype)

    def norm(self, x_BTD: jax.Array) -> jax.Array:
        """Apply the final norm to the residual stream after the last layer."""
        return _rms_norm(x_BTD, self.final_norm[...], self.config.rms_norm_eps)

    @property
    def output_embedding(self) -> jax.Array:
        """Matrix [V, D] whose products with a hidden state are the logits; the embedding itself if it is tied."""
        return self.embedding[...] if self.config.tie_word_embeddings else self.unembedding[...]

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return float32 logits [..., V] of a few hidden states [..., D]; for whole sequences use `token_logprobs`."""
        weights_VD = self.output_embedding.astype(hidden.dtype)
        return jnp.einsum("...d,vd->...v", hidden, weights_VD, preferred_element_type=jnp.float32)


def _param(config: ModelConfig, *shape: int) -> nnx.Param:
    """A parameter of this shape; modules are only ever made abstractly, values come with `bind`."""
    return nnx.Param(jnp.zeros(shape, config.param_dtype))


def init_params(config: ModelConfig, seed: int) -> Params:
    """Return random parameters for training from scratch: normal with deviation 1/√fan-in, norms one, biases zero.

    Branches that write to the residual stream start 1/√(2L) smaller, so that its variance does not grow with depth.
    """
    width, heads_width = config.hidden_size, config.num_heads * config.head_dim
    branch = 1 / math.sqrt(2 * config.num_layers)
    std_of = {"o_proj": branch * heads_width**-0.5, "down_proj": branch * config.intermediate_size**-0.5}
    # Numpy's generator: one seed gives the same weights on every platform and under every mesh.
    rng = np.random.default_rng(seed)

    def draw(path: tuple[jax.tree_util.DictKey, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        name = path[-1].key
        if name.endswith("norm"):
            return jnp.ones(leaf.shape, leaf.dtype)
        if name.endswith("bias"):
            return jnp.zeros(leaf.shape, leaf.dtype)
        values = rng.standard_normal(leaf.shape, np.float32) * np.float32(std_of.get(name, width**-0.5))
        return jnp.asarray(values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, abstract_params(config))


# Tracing the module takes a while, and every `bind` asks for the result.
@functools.cache
def _graph(config: ModelConfig) -> tuple[nnx.GraphDef, Params]:
    graph, state = nnx.split(nnx.eval_shape(lambda: Qwen3(config)))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), nnx.to_pure_dict(state))
    return graph, shapes


def abstract_params(config: ModelConfig) -> Params:
    """Return shapes and dtypes of the parameters, without allocating any."""
    return _graph(config)[1]


def bind(config: ModelConfig, params: Params) -> Qwen3:
    """Make the model of these parameters; inside `jit` it costs nothing, so a step takes `params` and binds them."""
    return nnx.merge(_graph(config)[0], params)


def layers_apart(params: Params) -> Params:
    """Return parameters whose `layers` are a tuple, for each layer a dictionary; those that are so as they are.

    A program that goes through the layers one by one would copy its slice of stacked arrays before each product.
    """
    layers = params.get("layers")
    return {**params, "layers": _slices(layers)} if isinstance(layers, Mapping) else params


@jax.jit
def _slices(layers: Params) -> tuple[Params, ...]:
    return tuple({name: leaf[i] for name, leaf in layers.items()} for i in range(len(layers["q_proj"])))


def bind_apart(config: ModelConfig, params: Params) -> tuple[Qwen3, list[Layer]]:
    """Make the model, which is not to be asked for its layers, and the layers, of parameters as of `layers_apart`."""
    graph, shapes = _graph(config)
    model = nnx.merge(graph, {**params, "layers": shapes["layers"]})
    return model, [bind_layer(config, layer) for layer in params["layers"]]


def bind_layer(config: ModelConfig, layer: Params) -> Layer:
    """Make one layer of its parameters."""
    return nnx.merge(_layer_graph(config), layer)


@functools.cache
def _layer_graph(config: ModelConfig) -> nnx.GraphDef:
    graph, _ = nnx.split(nnx.eval_shape(lambda: Layer(config)))
    return graph
