"""The engine's compiled programs: read given tokens, sample in several rows up to so many tokens a call, or score one.

Dimensions: D shards · P prefixes of a shard · R rows of a shard, R / P of them for each prefix in turn · T tokens · n
pages. What the host gives as `DR` is one axis `R` of D·R rows inside a program, shard by shard.

How pages are read and written is the business of `kv_pages`: layer by layer both `put` a row's new tokens and `attend`.
A row of no tokens is padding: nothing of it is written, and what comes out of it means nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.engine.kv_pages import Histories, Pages, copy_pages, page_tokens
from astra_jax.engine.penalties import Penalties, SoFar, and_then, penalized, so_far
from astra_jax.engine.ragged_pages import Rows
from astra_jax.engine.rows import LayerRows, rows_of
from astra_jax.engine.sampling import MOST_KEPT_IDS, Drawn, Truncation, sample_tokens, slot_keys
from astra_jax.mesh.placement import on_devices
from astra_jax.model.attention import attention
from astra_jax.model.config import ModelConfig
from astra_jax.model.embedding import embed_tokens
from astra_jax.model.qwen3 import Layer, Params, Qwen3, Rope, bind_apart, bind_layer, rope_tables
from astra_jax.model.sharding import constrain


class Asked(NamedTuple):
    """What each row shall sample, and how."""

    pending_DR: Rows
    """The last token so far, which is in no page yet."""
    limit_DR: Rows
    """The most tokens; 0 is padding."""
    drawn_DR: Rows
    """How many tokens it has after its prompt: with seed and slot they decide the draw."""
    seed_DR: Rows
    slot_DR: Rows
    temperature_DR: Rows
    """0 is greedy."""
    top_k_DR: Rows
    """0 is none."""
    top_p_DR: Rows
    min_p_DR: Rows


class Sampled(NamedTuple):
    """What each row sampled."""

    ids_DRT: jax.Array
    logprobs_DRT: jax.Array
    """Under the distribution that was sampled from."""
    raw_logprobs_DRT: jax.Array
    """At temperature 1, nothing truncated."""
    kept_DRTK: jax.Array
    """What truncation kept, as `Drawn` has it."""
    counts_DR: jax.Array
    """How many tokens of a row were sampled."""
    steps: jax.Array
    """How many times a token was sampled in every row, those of all hosts."""


class Given(NamedTuple):
    """Tokens of some rows to read into pages, from a place of each row's sequence on."""

    tables_DRn: Rows
    """All pages of each row, those that the tokens go to as well."""
    starts_DR: Rows
    """How many tokens lie there already."""
    tokens_DRT: Rows
    counts_DR: Rows
    """The first so many of a row are read."""
    copies_DR2: Rows
    """Pages to copy first, from and to."""


class Stream(NamedTuple):
    """What a layer is given by the one before it; the first one makes it, and finds nothing there."""

    x_RTD: Rows
    rope: Rope
    """The same for all layers: it takes longer to compute than to hand on."""


class Place(NamedTuple):
    """Which of the layers is read; known to a program only as it runs, so that it is one for all."""

    is_first: jax.Array | np.bool_
    is_last: jax.Array | np.bool_


def read_tokens(model_config: ModelConfig, params: Params, pages: Pages, given: Given, *, begins: bool) -> Pages:
    """Read tokens into pages, layer by layer: one program for all layers, which is called once for each.

    Where every row `begins`, nothing lies in their pages yet.

    What a compiler works on for long is many tokens in many layers at once; a call for each layer costs next to nothing
    beside so many tokens.

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
    """Return zeros of the host's: to make them on the devices would take a program of its own."""
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
    """Read tokens into the pages of one layer; return them, and what the next layer is given."""
    layer = bind_layer(model_config, params_of_layer)
    tokens_RT, counts_R = _flat(given.tokens_DRT), _flat(given.counts_DR)
    num_tokens = tokens_RT.shape[1]

    def begun() -> Stream:
        rope = rope_tables(model_config, _flat(given.starts_DR)[:, None] + jnp.arange(num_tokens))
        return Stream(embed_tokens(embedding_VD, tokens_RT, model_config.dtype), rope)

    x_RTD, rope = jax.lax.cond(place.is_first, begun, lambda: stream)
    pages = copy_pages((of_layer,), given.copies_DR2[..., 0], given.copies_DR2[..., 1])
    (rows,) = rows_of(pages, given.tables_DRn, given.starts_DR, None, model_config.dtype)
    _, k_RTKH, v_RTKH = layer.qkv(x_RTD, rope)
    kv = rows.put(rows.begin(num_tokens), k_RTKH, v_RTKH, jnp.int32(0), counts_R)

    def read_on() -> jax.Array:
        q_RTNH, _, _ = layer.qkv(x_RTD, rope)
        if begins:
            is_real_RT = (jnp.arange(num_tokens) < counts_R[:, None]).astype(jnp.int32)
            attended_RTNH = attention(q_RTNH, k_RTKH, v_RTKH, is_real_RT)
        else:
            attended_RTNH = rows.attend(kv, q_RTNH, jnp.int32(0), counts_R)
        return layer.residual(x_RTD, attended_RTNH)

    # What the last layer attends to nobody reads, so it has no queries either.
    x_RTD = jax.lax.cond(place.is_last, lambda: x_RTD, read_on)
    stream = jax.tree.map(lambda x: constrain(x, "batch"), Stream(x_RTD, rope))
    return rows.end(kv, given.counts_DR, x_RTD), stream


class _Sampling(NamedTuple):
    """What the loop carries from one token to the next."""

    kv: tuple[Any, ...]
    """Of each layer, as its rows have it."""
    pending_R: jax.Array
    goes_on_R: jax.Array
    said: Drawn
    """In place of each slot's token those of each row, [R, T]."""
    counts_R: jax.Array
    step: jax.Array
    so_far: SoFar | None
    """What the rows say, where one is penalised for it."""


@functools.partial(jax.jit, static_argnums=0, static_argnames=("end_ids", "max_tokens"), donate_argnums=2)
def sample_rows(
    model_config: ModelConfig,
    params: Params,
    pages: Pages,
    histories: Histories,
    asked: Asked,
    copies_DR2: Rows,
    leave_at: jax.Array | np.int32,
    penalties: Penalties | None = None,
    *,
    end_ids: tuple[int, ...],
    max_tokens: int,
) -> tuple[Pages, Sampled]:
    """Sample in every row until its message has ended, with one of `end_ids`, or its limit is reached.

    It leaves off after `max_tokens`, or as soon as only `leave_at` rows go on: others may take the places of those that
    have ended. The last token sampled is in no page: it is the pending one of the next call. `copies` are pages to copy
    first, from and to. Without `penalties` nobody counts what was said.
    """
    model, layers = bind_apart(model_config, params)
    pages = copy_pages(pages, copies_DR2[..., 0], copies_DR2[..., 1])
    shape = asked.pending_DR.shape
    pending_R, limit_R, drawn_R, seed_R, slot_R, temperature_R, *truncation = map(_flat, asked)
    num_rows = len(pending_R)
    keys_R = jax.vmap(lambda seed, slot: slot_keys(seed, slot, 1)[0])(seed_R, slot_R)
    starts_DR = histories.starts_DR(page_tokens(pages))
    starts_R = _flat(starts_DR)
    rows_of_layers = rows_of(pages, histories.tables_DRn, starts_DR, histories, model_config.dtype)
    layers_rows = list(zip(layers, rows_of_layers, strict=True))
    if penalties is not None:
        text_RL, num_given_R, *weights = map(_flat, penalties)

    def sample_one(state: _Sampling) -> _Sampling:
        step = state.step
        logits_RV, after = _next_logits(model, layers_rows, state.kv, state.pending_R, starts_R, step, state.goes_on_R)
        drawn = sample_tokens(
            logits_RV if state.so_far is None else penalized(logits_RV, state.so_far, *weights),
            keys_R,
            drawn_R + step,
            temperature_R,
            Truncation(*truncation),
        )
        if state.so_far is not None:
            of_ids_R = logits_RV[jnp.arange(num_rows), drawn.ids_E]
            drawn = drawn._replace(raw_logprobs_E=of_ids_R - jax.nn.logsumexp(logits_RV, axis=-1))
        counts_R = state.counts_R + state.goes_on_R
        has_ended_R = jnp.isin(drawn.ids_E, jnp.array(end_ids)) | (counts_R >= limit_R)
        return _Sampling(
            kv=after,
            pending_R=drawn.ids_E,
            goes_on_R=state.goes_on_R & ~has_ended_R,
            said=jax.tree.map(
                lambda of_R, so_far_RT: jax.lax.dynamic_update_index_in_dim(so_far_RT, of_R, step, 1), drawn, state.said
            ),
            counts_R=counts_R,
            step=step + 1,
            so_far=None if state.so_far is None else and_then(state.so_far, drawn.ids_E, state.goes_on_R),
        )

    nothing = _Sampling(
        kv=tuple(rows.begin(max_tokens) for _, rows in layers_rows),
        pending_R=pending_R,
        goes_on_R=limit_R > 0,
        said=Drawn(
            ids_E=jnp.zeros((num_rows, max_tokens), jnp.int32),
            logprobs_E=jnp.zeros((num_rows, max_tokens), jnp.float32),
            raw_logprobs_E=jnp.zeros((num_rows, max_tokens), jnp.float32),
            kept_EK=jnp.zeros((num_rows, max_tokens, MOST_KEPT_IDS), jnp.int32),
        ),
        counts_R=jnp.zeros(num_rows, jnp.int32),
        step=jnp.int32(0),
        so_far=None if penalties is None else so_far(text_RL, num_given_R, model_config.vocab_size),
    )
    done = jax.lax.while_loop(
        lambda state: (state.step < max_tokens) & (state.goes_on_R.sum() > leave_at), sample_one, nothing
    )
    counts_DR = done.counts_R.reshape(shape)
    written = tuple(rows.end(kv, counts_DR) for (_, rows), kv in zip(layers_rows, done.kv, strict=True))
    # Each host reads the rows of its own shards.
    ids_DRT, logprobs_DRT, raw_logprobs_DRT, kept_DRTK, counts_DR = (
        constrain(x.reshape(*shape, *x.shape[1:]), "batch", *["slots"] * x.ndim) for x in (*done.said, done.counts_R)
    )
    return written, Sampled(ids_DRT, logprobs_DRT, raw_logprobs_DRT, kept_DRTK, counts_DR, done.step)


class Forced(NamedTuple):
    """Tokens of one row that go on from its pages, and what is asked of each; T of them at most."""

    pending_T: Rows
    """The token before each."""
    targets_T: Rows
    kept_TK: Rows
    """The ids that truncation kept of each, then -1; all -1 where they are to be found again, by `truncation`."""
    num_tokens: Rows
    """How many there are."""
    temperature: Rows
    """That truncation is told of."""
    truncation: Truncation
    """Of one row."""
    temperatures_G: Rows
    """Those that log-probs are wanted at; above 0."""


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def score_row(
    model_config: ModelConfig, params: Params, pages: Pages, histories: Histories, forced: Forced
) -> tuple[Pages, jax.Array]:
    """Compute what `sample_rows` computes, in one row that is given its tokens; return pages and log-probs [T, G, 2].

    Of each token: among all ids, and among those that truncation kept, where there are any and it is one.
    """
    model, layers = bind_apart(model_config, params)
    starts_DR = histories.starts_DR(page_tokens(pages))
    rows_of_layers = rows_of(pages, histories.tables_DRn, starts_DR, histories, model_config.dtype)
    layers_rows = list(zip(layers, rows_of_layers, strict=True))
    num_tokens = len(forced.pending_T)
    keys_R, zero_R = slot_keys(jnp.int32(0), jnp.int32(0), 1), jnp.zeros(1, jnp.int32)
    temperature_R = jnp.asarray(forced.temperature)[None]

    def score_one(kv: tuple[Any, ...], of_token: tuple[jax.Array, ...]) -> tuple[tuple[Any, ...], jax.Array]:
        step, pending, target, kept_K = of_token
        goes_on_R = (step < forced.num_tokens)[None]
        logits_RV, kv = _next_logits(model, layers_rows, kv, pending[None], _flat(starts_DR), step, goes_on_R)
        # Nobody wants what is drawn: only what it was drawn from.
        again_K = sample_tokens(logits_RV, keys_R, zero_R, temperature_R, forced.truncation).kept_EK[0]
        kept_K = jnp.where((kept_K >= 0).any(), kept_K, again_K)
        return kv, _logprobs_of(target, kept_K, logits_RV[0], forced.temperatures_G)

    nothing = tuple(rows.begin(num_tokens) for _, rows in layers_rows)
    tokens = tuple(map(jnp.asarray, (np.arange(num_tokens), forced.pending_T, forced.targets_T, forced.kept_TK)))
    done, logprobs_TG2 = jax.lax.scan(score_one, nothing, tokens)
    counts_DR = jnp.asarray(forced.num_tokens).reshape(1, 1)
    written = tuple(rows.end(kv, counts_DR) for (_, rows), kv in zip(layers_rows, done, strict=True))
    return written, logprobs_TG2


def _logprobs_of(target: jax.Array, kept_K: jax.Array, logits_V: jax.Array, temperatures_G: Rows) -> jax.Array:
    """Return the log-probs [G, 2] of an id at some temperatures, among all ids and among the kept ones."""
    scaled_GV = logits_V / jnp.asarray(temperatures_G)[:, None]
    target_G, lse_G = scaled_GV[:, target], jax.nn.logsumexp(scaled_GV, axis=-1)
    of_kept_GK = jnp.where(kept_K >= 0, scaled_GV[:, kept_K], -jnp.inf)
    kept_lse_G = jnp.where((kept_K == target).any(), jax.nn.logsumexp(of_kept_GK, axis=-1), lse_G)
    return jnp.stack([target_G - lse_G, target_G - kept_lse_G], axis=-1)


def _next_logits(
    model: Qwen3,
    layers: Sequence[tuple[Layer, LayerRows]],
    kv: tuple[Any, ...],
    pending_R: jax.Array,
    starts_R: jax.Array,
    step: jax.Array,
    goes_on_R: jax.Array,
) -> tuple[jax.Array, tuple[Any, ...]]:
    """Return the logits [R, V] of what follows a row's pending token, and its layers' rows with that token."""
    rope = rope_tables(model.config, (starts_R + step)[:, None])
    x_R1D = model.embed(pending_R[:, None])
    after = []
    for (layer, rows), of_layer in zip(layers, kv, strict=True):
        q_R1NH, k_R1KH, v_R1KH = layer.qkv(x_R1D, rope)
        of_layer = rows.put(of_layer, k_R1KH, v_R1KH, step, goes_on_R)
        x_R1D = layer.residual(x_R1D, rows.attend(of_layer, q_R1NH, step))
        after.append(of_layer)
    return model.logits(model.norm(x_R1D)[:, 0]), tuple(after)


def _flat(x_DR: Rows) -> jax.Array:
    return jnp.asarray(x_DR).reshape(-1, *x_DR.shape[2:])
