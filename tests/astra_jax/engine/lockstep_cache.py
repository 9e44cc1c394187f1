"""The cache of the oracle in `lockstep`: dense keys and values of grouped rollouts; every prompt is
computed and stored once, and read by all episodes of its group.

Dimensions: P prompts · G episodes per prompt · E = P·G episodes, group-major (episode e belongs to prompt e // G) ·
S key slots · T new tokens per call; others as in `qwen3`.

    cache, last_hidden_PD = prefill(model, tokens_PS, num_tokens_P, episodes_per_prompt=G, response_capacity=512)
    cache, hidden_ETD = extend(model, cache, tokens_ET, num_tokens_E)     # T = 1 decodes; more appends a tool response

Attention is one softmax over [prompt | response]: exactly what the full forward pass computes.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from astra_jax.model.attention import attention
from astra_jax.model.chunked_attention import MASKED
from astra_jax.model.qwen3 import Layer, Qwen3, rope_tables

_QUERY_CHUNK_TOKENS = 32  # of a tool response that is appended: the scores of so many exist at once


class LayerKV(NamedTuple):
    """Keys and values of one layer, each laid out so that decoding reads it in place, without a transpose or a copy."""

    keys: jax.Array
    """[rows, K, H, S]"""
    values: jax.Array
    """[rows, K, S, H]"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Everything a decode step carries. Slots at or beyond a row's count hold garbage and are never attended."""

    prompts: tuple[LayerKV, ...]
    """One per layer; P rows."""
    prompt_counts_P: jax.Array
    """int32: how many tokens each prompt has."""
    responses: tuple[LayerKV, ...]
    """One per layer; E rows."""
    response_counts_E: jax.Array
    """int32: how many tokens each episode has appended to its prompt."""

    @property
    def response_capacity(self) -> int:
        """How many tokens an episode can append."""
        return self.responses[0].values.shape[2]

    @property
    def episodes_per_prompt(self) -> int:
        return len(self.response_counts_E) // len(self.prompt_counts_P)


def prefill(
    model: Qwen3,
    tokens_PS: jax.Array,
    num_tokens_P: jax.Array,
    *,
    episodes_per_prompt: int,
    response_capacity: int,
) -> tuple[KVCache, jax.Array]:
    """Read right-padded prompts once; return the cache and the hidden state [P, D] of each prompt's last token."""
    config = model.config
    num_prompts, prompt_slots = tokens_PS.shape
    positions_PS = jnp.broadcast_to(jnp.arange(prompt_slots), tokens_PS.shape)
    segment_ids_PS = (positions_PS < num_tokens_P[:, None]).astype(jnp.int32)
    rope = rope_tables(config, positions_PS)
    graph, layers = nnx.split(model.layers)

    def block(x_PSD: jax.Array, state: nnx.State) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        layer: Layer = nnx.merge(graph, state)
        q_PSNH, k_PSKH, v_PSKH = layer.qkv(x_PSD, rope)
        x_PSD = layer.residual(x_PSD, attention(q_PSNH, k_PSKH, v_PSKH, segment_ids_PS))
        # Transposed here, once, to the layout in which every later token reads them.
        return x_PSD, (k_PSKH.transpose(0, 2, 3, 1), v_PSKH.swapaxes(1, 2))

    x_PSD, (keys, values) = jax.lax.scan(block, model.embed(tokens_PS), layers)
    num_episodes = num_prompts * episodes_per_prompt
    shape = (num_episodes, config.num_kv_heads, response_capacity, config.head_dim)

    def empty() -> LayerKV:
        keys_shape = (*shape[:2], shape[3], shape[2])
        return LayerKV(jnp.zeros(keys_shape, config.dtype), jnp.zeros(shape, config.dtype))

    cache = KVCache(
        prompts=tuple(LayerKV(keys[i], values[i]) for i in range(config.num_layers)),
        prompt_counts_P=num_tokens_P.astype(jnp.int32),
        responses=tuple(empty() for _ in range(config.num_layers)),
        response_counts_E=jnp.zeros(num_episodes, jnp.int32),
    )
    return cache, model.norm(last_hidden(x_PSD, num_tokens_P))


def extend(model: Qwen3, cache: KVCache, tokens_ET: jax.Array, num_tokens_E: jax.Array) -> tuple[KVCache, jax.Array]:
    """Append the first `num_tokens_E[e]` (0 … T) tokens of each row; return the cache and hidden states [E, T, D].

    Rows are right-padded; hidden states of padding mean nothing. An episode with 0 new tokens is left as it is. The
    caller keeps counts within `response_capacity`: tokens beyond it are dropped.
    Donate the cache to the jitted caller, or the whole of it is copied.
    """
    num_episodes, num_new = tokens_ET.shape
    offsets_T = jnp.arange(num_new)
    columns_ET = cache.response_counts_E[:, None] + offsets_T
    positions_ET = jnp.repeat(cache.prompt_counts_P, cache.episodes_per_prompt)[:, None] + columns_ET
    # Padding is written out of bounds, where the scatter drops it.
    written_ET = jnp.where(offsets_T < num_tokens_E[:, None], columns_ET, cache.response_capacity)
    rope = rope_tables(model.config, positions_ET)
    rows_E1 = jnp.arange(num_episodes)[:, None]
    graph, layers = nnx.split(model.layers)

    # Unrolled, not scanned: a scan would copy each layer's slice of the cache before it can be multiplied.
    x_ETD = model.embed(tokens_ET)
    responses = []
    for i, (prompt, response) in enumerate(zip(cache.prompts, cache.responses, strict=True)):
        layer: Layer = nnx.merge(graph, jax.tree.map(operator.itemgetter(i), layers))
        q_ETNH, k_ETKH, v_ETKH = layer.qkv(x_ETD, rope)
        # Two index arrays with slices between them: numpy's rule puts their axes first, [E, T, K, H], as keys come.
        response = LayerKV(
            response.keys.at[rows_E1, :, :, written_ET].set(k_ETKH, mode="drop"),
            response.values.at[rows_E1, :, written_ET].set(v_ETKH, mode="drop"),
        )
        responses.append(response)
        x_ETD = layer.residual(x_ETD, _attend(q_ETNH, prompt, cache.prompt_counts_P, response, columns_ET))
    extended = dataclasses.replace(
        cache,
        responses=tuple(responses),
        response_counts_E=cache.response_counts_E + num_tokens_E.astype(jnp.int32),
    )
    return extended, model.norm(x_ETD)


def last_hidden(hidden_ETD: jax.Array, num_tokens_E: jax.Array) -> jax.Array:
    """Return the state [E, D] of each row's last token; a row with 0 tokens gets its first, which means nothing."""
    return jnp.take_along_axis(hidden_ETD, jnp.maximum(num_tokens_E - 1, 0)[:, None, None], axis=1)[:, 0]


def _attend(
    q_ETNH: jax.Array, prompt: LayerKV, prompt_counts_P: jax.Array, response: LayerKV, columns_ET: jax.Array
) -> jax.Array:
    """One softmax over the prompt's keys, read once per group, and the episode's own keys up to each query's slot."""
    chunks = [slice(start, start + _QUERY_CHUNK_TOKENS) for start in range(0, q_ETNH.shape[1], _QUERY_CHUNK_TOKENS)]
    outs = [_attend_chunk(q_ETNH[:, c], prompt, prompt_counts_P, response, columns_ET[:, c]) for c in chunks]
    return jnp.concatenate(outs, axis=1)


def _attend_chunk(
    q_ETNH: jax.Array, prompt: LayerKV, prompt_counts_P: jax.Array, response: LayerKV, columns_ET: jax.Array
) -> jax.Array:
    episodes, new, heads, head_dim = q_ETNH.shape
    prompts, kv_heads, prompt_slots, _ = prompt.values.shape
    response_slots = response.values.shape[2]
    shared = heads // kv_heads
    q_EKQH = (
        (q_ETNH * head_dim**-0.5)
        .reshape(episodes, new, kv_heads, shared, head_dim)
        .transpose(0, 2, 3, 1, 4)
        .reshape(episodes, kv_heads, shared * new, head_dim)
    )

    # Q rows per episode and key head, of which a group's G · Q = X rows meet the same prompt keys in one product.
    def by_prompt(x_EKQ: jax.Array) -> jax.Array:
        split = x_EKQ.reshape(prompts, -1, *x_EKQ.shape[1:]).swapaxes(1, 2)
        return split.reshape(prompts, kv_heads, -1, *x_EKQ.shape[3:])

    def by_episode(x_PKX: jax.Array) -> jax.Array:
        split = x_PKX.reshape(prompts, kv_heads, -1, shared * new, *x_PKX.shape[3:]).swapaxes(1, 2)
        return split.reshape(episodes, kv_heads, shared * new, *x_PKX.shape[3:])

    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    prompt_s_PKXS = einsum("pkxh,pkhs->pkxs", by_prompt(q_EKQH), prompt.keys)
    in_prompt_PS = jnp.arange(prompt_slots) < prompt_counts_P[:, None]
    prompt_s_PKXS = jnp.where(in_prompt_PS[:, None, None], prompt_s_PKXS, MASKED)

    response_s_EKQS = einsum("ekqh,ekhs->ekqs", q_EKQH, response.keys)
    # The new tokens are in the cache by now: a query sees them up to itself, and no slot that is still garbage.
    seen_ETS = jnp.arange(response_slots) <= columns_ET[:, :, None]
    response_s_EKQS = jnp.where(jnp.tile(seen_ETS, (1, shared, 1))[:, None], response_s_EKQS, MASKED)

    # One maximum for both parts, so that their exponentials add up to one softmax.
    max_EKQ = jnp.maximum(by_episode(prompt_s_PKXS.max(-1)), response_s_EKQS.max(-1))
    prompt_p_PKXS = jnp.exp(prompt_s_PKXS - by_prompt(max_EKQ)[..., None])
    response_p_EKQS = jnp.exp(response_s_EKQS - max_EKQ[..., None])
    sum_EKQ = by_episode(prompt_p_PKXS.sum(-1)) + response_p_EKQS.sum(-1)
    dtype = prompt.values.dtype
    out_EKQH = by_episode(einsum("pkxs,pksh->pkxh", prompt_p_PKXS.astype(dtype), prompt.values))
    out_EKQH += einsum("ekqs,eksh->ekqh", response_p_EKQS.astype(dtype), response.values)
    out_EKQH = (out_EKQH / sum_EKQ[..., None]).astype(q_ETNH.dtype)
    return out_EKQH.reshape(episodes, kv_heads, shared, new, head_dim).transpose(0, 3, 1, 2, 4).reshape(q_ETNH.shape)
