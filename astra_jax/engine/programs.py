"""The two compiled programs: read given tokens, and sample in several rows.

A call that samples goes on for up to 16 tokens in every row.

Dimensions: D shards · R rows of a shard · T tokens · n pages. Arguments of the host have axes `DR`; inside a program
these are one axis `R` of D·R rows, shard by shard.

Both programs go layer by layer: `put` the keys and values of new tokens, then `attend` (`page_attention`). A row of no
tokens is padding: nothing of it is written, and its output means nothing.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.engine.kv_pages import Pages
from astra_jax.engine.page_attention import rows_of
from astra_jax.engine.ragged_pages import Rows
from astra_jax.engine.sampling import Drawn, sample_tokens, slot_keys
from astra_jax.mesh.placement import on_devices
from astra_jax.model.attention import attention
from astra_jax.model.config import ModelConfig
from astra_jax.model.embedding import embed_tokens
from astra_jax.model.qwen3 import Params, Rope, bind_apart, bind_layer, rope_tables
from astra_jax.model.sharding import constrain


class Asked(NamedTuple):
    """The tokens to sample in each row, and how."""

    tables_DRn: Rows
    """Pages of each row, with those that new tokens go to."""
    starts_DR: Rows
    """Number of tokens of each row that lie in its pages."""
    pending_DR: Rows
    """Last token of each row so far, which is in no page yet."""
    limit_DR: Rows
    """Most tokens that each row samples; 0 is padding."""
    drawn_DR: Rows
    """Number of tokens since the prompt: with seed and slot it decides the draw."""
    seed_DR: Rows
    slot_DR: Rows
    temperature_DR: Rows
    """Divisor of the logits; 0 is greedy."""
    top_k_DR: Rows
    """Number of likeliest ids that are kept; 0 keeps all."""
    top_p_DR: Rows


class Sampled(NamedTuple):
    """The tokens that each row sampled."""

    ids_DRT: jax.Array
    logprobs_DRT: jax.Array
    """Log-probs under the distribution that was sampled from."""
    counts_DR: jax.Array
    """Number of tokens that each row sampled."""
    steps: jax.Array
    """Number of steps of the loop, each of which samples a token in every row of all hosts."""


class Given(NamedTuple):
    """Tokens of some rows to read into pages, behind the tokens that lie there."""

    tables_DRn: Rows
    """All pages of each row, with those that the new tokens go to."""
    starts_DR: Rows
    """Number of tokens of each row that lie in its pages already."""
    tokens_DRT: Rows
    counts_DR: Rows
    """Number of tokens of each row that are read; the others are padding."""


class Stream(NamedTuple):
    """Values that one layer hands to the next; the first layer makes them."""

    x_RTD: Rows
    rope: Rope
    """Cosines and sines of the places, the same for all layers: handing them on is quicker than computing them."""


class Place(NamedTuple):
    """Place of the layer among all; arrays, so that one program serves all layers."""

    is_first: jax.Array | np.bool_
    is_last: jax.Array | np.bool_


def read_tokens(model_config: ModelConfig, params: Params, pages: Pages, given: Given, *, begins: bool) -> Pages:
    """Read tokens into pages, layer by layer: one program for all layers, which is called once for each.

    If every row `begins`, no tokens lie in their pages yet.

    A compiler takes minutes for many tokens in many layers at once; a call for each layer costs next to nothing.

    Decided: docs/decisions/rl.md, “Prompts are read by a program of one layer, called for each layer”.
    """
    stream, given = on_devices((no_stream(model_config, given), given))
    found = []
    for number, (layer, of_layer) in enumerate(zip(params["layers"], pages, strict=True)):
        place = Place(np.bool_(number == 0), np.bool_(number == len(pages) - 1))
        of_layer, stream = read_layer(
            model_config, params["embedding"], layer, of_layer, stream, given, place, begins=begins
        )
        found.append(of_layer)
    return tuple(found)


def no_stream(model_config: ModelConfig, given: Given) -> Stream:
    """Return zeros in the host's memory: to make them on the devices would take a program of its own."""
    shards, rows, num_tokens = given.tokens_DRT.shape
    of_rows, dtype = (shards * rows, num_tokens), jnp.dtype(model_config.dtype)
    cos, sin = np.zeros((2, *of_rows, 1, model_config.head_dim // 2), np.float32)
    return Stream(np.zeros((*of_rows, model_config.hidden_size), dtype), Rope(cos, sin))


@functools.partial(jax.jit, static_argnums=0, static_argnames="begins", donate_argnums=(3, 4))
def read_layer(
    model_config: ModelConfig,
    embedding_VD: jax.Array,
    params_of_layer: Params,
    of_layer: Any,
    stream: Stream,
    given: Given,
    place: Place,
    *,
    begins: bool,
) -> tuple[Any, Stream]:
    """Read tokens into the pages of one layer; return the pages, and the values for the next layer."""
    layer = bind_layer(model_config, params_of_layer)
    tokens_RT, counts_R = _flat(given.tokens_DRT), _flat(given.counts_DR)
    num_tokens = tokens_RT.shape[1]

    def begun() -> Stream:
        rope = rope_tables(model_config, _flat(given.starts_DR)[:, None] + jnp.arange(num_tokens))
        return Stream(embed_tokens(embedding_VD, tokens_RT, model_config.dtype), rope)

    x_RTD, rope = jax.lax.cond(place.is_first, begun, lambda: stream)
    (rows,) = rows_of((of_layer,), given.tables_DRn, given.starts_DR, model_config.dtype, one_by_one=False)
    _, k_RTKH, v_RTKH = layer.qkv(x_RTD, rope)
    kv = rows.put(rows.begin(num_tokens), k_RTKH, v_RTKH, jnp.int32(0), counts_R)

    def read_on() -> jax.Array:
        q_RTNH, _, _ = layer.qkv(x_RTD, rope)
        # Rows that begin have no pages behind them: ordinary causal attention is faster.
        if begins:
            is_real_RT = (jnp.arange(num_tokens) < counts_R[:, None]).astype(jnp.int32)
            attended_RTNH = attention(q_RTNH, k_RTKH, v_RTKH, is_real_RT)
        else:
            attended_RTNH = rows.attend(kv, q_RTNH, jnp.int32(0), counts_R)
        return layer.residual(x_RTD, attended_RTNH)

    # The last layer only has to store keys and values: no token is sampled here.
    x_RTD = jax.lax.cond(place.is_last, lambda: x_RTD, read_on)
    stream = jax.tree.map(lambda x: constrain(x, "batch"), Stream(x_RTD, rope))
    return rows.end(kv, given.counts_DR, x_RTD), stream


class _Sampling(NamedTuple):
    """The values that the loop carries from one token to the next."""

    kv: tuple[Any, ...]
    """New keys and values, or pages, of each layer, in the form that `LayerRows.begin` returns."""
    pending_R: jax.Array
    goes_on_R: jax.Array
    said: Drawn
    """Tokens of each row so far, [R, T]."""
    counts_R: jax.Array
    step: jax.Array


@functools.partial(jax.jit, static_argnums=0, static_argnames=("end_ids", "max_tokens"), donate_argnums=2)
def sample_rows(
    model_config: ModelConfig,
    params: Params,
    pages: Pages,
    asked: Asked,
    leave_at: jax.Array | np.int32,
    *,
    end_ids: tuple[int, ...],
    max_tokens: int,
) -> tuple[Pages, Sampled]:
    """Sample in every row until its message has ended, with one of `end_ids`, or its limit is reached.

    The call ends after `max_tokens`, or as soon as only `leave_at` rows go on, so that other sequences can take the
    free rows. The last token that a row sampled is in no page: it is the pending one of its next call.
    """
    model, layers = bind_apart(model_config, params)
    shape = asked.pending_DR.shape
    starts_R, pending_R, limit_R, drawn_R, seed_R, slot_R, temperature_R, top_k_R, top_p_R = map(_flat, asked[1:])
    num_rows = len(pending_R)
    # A draw follows from seed, slot and place alone, so neither other rows nor other calls change it.
    keys_R = jax.vmap(lambda seed, slot: slot_keys(seed, slot, 1)[0])(seed_R, slot_R)
    rows_of_layers = rows_of(pages, asked.tables_DRn, asked.starts_DR, model_config.dtype, one_by_one=True)
    layers_rows = list(zip(layers, rows_of_layers, strict=True))

    def sample_one(state: _Sampling) -> _Sampling:
        step = state.step
        rope = rope_tables(model_config, (starts_R + step)[:, None])
        x_R1D = model.embed(state.pending_R[:, None])
        after = []
        for (layer, rows), of_layer in zip(layers_rows, state.kv, strict=True):
            q_R1NH, k_R1KH, v_R1KH = layer.qkv(x_R1D, rope)
            of_layer = rows.put(of_layer, k_R1KH, v_R1KH, step, state.goes_on_R)
            x_R1D = layer.residual(x_R1D, rows.attend(of_layer, q_R1NH, step))
            after.append(of_layer)
        logits_RV = model.logits(model.norm(x_R1D)[:, 0])
        drawn = sample_tokens(logits_RV, keys_R, drawn_R + step, temperature_R, top_k_R, top_p_R)
        # Rows that have ended go through the layers as well; nothing of them is counted or written.
        counts_R = state.counts_R + state.goes_on_R
        has_ended_R = jnp.isin(drawn.ids_E, jnp.array(end_ids)) | (counts_R >= limit_R)
        return _Sampling(
            kv=tuple(after),
            pending_R=drawn.ids_E,
            goes_on_R=state.goes_on_R & ~has_ended_R,
            said=jax.tree.map(
                lambda of_R, so_far_RT: jax.lax.dynamic_update_index_in_dim(so_far_RT, of_R, step, 1), drawn, state.said
            ),
            counts_R=counts_R,
            step=step + 1,
        )

    nothing = _Sampling(
        kv=tuple(rows.begin(max_tokens) for _, rows in layers_rows),
        pending_R=pending_R,
        goes_on_R=limit_R > 0,
        said=Drawn(
            ids_E=jnp.zeros((num_rows, max_tokens), jnp.int32),
            logprobs_E=jnp.zeros((num_rows, max_tokens), jnp.float32),
        ),
        counts_R=jnp.zeros(num_rows, jnp.int32),
        step=jnp.int32(0),
    )
    done = jax.lax.while_loop(
        lambda state: (state.step < max_tokens) & (state.goes_on_R.sum() > leave_at), sample_one, nothing
    )
    # New keys and values go to the pages once, after the loop (on a TPU they are there already).
    counts_DR = done.counts_R.reshape(shape)
    written = tuple(rows.end(kv, counts_DR) for (_, rows), kv in zip(layers_rows, done.kv, strict=True))
    # Each host reads the rows of its own shards.
    ids_DRT, logprobs_DRT, counts_DR = (
        constrain(x.reshape(*shape, *x.shape[1:]), "batch", *["slots"] * x.ndim) for x in (*done.said, done.counts_R)
    )
    return written, Sampled(ids_DRT, logprobs_DRT, counts_DR, done.step)


def _flat(x_DR: Rows) -> jax.Array:
    return jnp.asarray(x_DR).reshape(-1, *x_DR.shape[2:])
