"""Initial weights for small models that are trained from nothing in minutes: from the start they copy what they read.

A pre-trained model repeats a name that it has read; a small one that starts from random weights spends hundreds of
steps before it does, and calling a tool is mostly copying. So two traits of trained transformers are laid in:

    every layer     query and key maps correlated, so that a token attends to its like, and output maps near the
                    transpose of the value maps, so that what is attended to is copied (arXiv 2305.09828)
    layers 0 and 1  an induction head (arXiv 2209.11895): the first layer writes beside each token the token before
                    it; the second attends to where the present token stood before, and copies what came after it

In a language model with tied embeddings a copy raises the logit of the token that was attended to.
"""

from __future__ import annotations

from typing import Final

import jax.numpy as jnp
import numpy as np

from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params, init_params

_QUERY_KEY_CORRELATION: Final = 0.5**0.5
_COPY_STRENGTH: Final = 0.5

_POSITION_WAVELENGTH_TOKENS: Final = 50
"""Pairs of a head that turn faster tell one position from the next; the first layer looks one token back with them."""
_CONTENT_WAVELENGTH_TOKENS: Final = 800
"""Pairs that turn slower hardly turn within a prompt: tokens are compared in them, wherever they stand."""
_SHARPNESS: Final = 2.0
"""The q/k norms of both layers: q/k norm bounds a score by its square times √H."""
_CONSTANT: Final = 2.0
"""Coordinate 0 of every embedding, in standard deviations of the others: what knows no token reads it."""
_INDUCTION_STRENGTH: Final = 2.0
"""How large the token that came after is written, in standard deviations of an embedding. With 6, and sharper heads,
more is copied at first, but less is learnt (docs/log/2026-11-24-what-did-not-learn.md)."""
_FURTHER_BACK: Final = 0.3
"""How much smaller each further query head of layer 0 writes, which looks one more token back."""
_QUIET: Final = 0.3
"""Random MLPs start so much smaller: they would drown what the heads write."""


def mimetic_init(config: ModelConfig, seed: int) -> Params:
    """Return random parameters whose attention copies what it finds, with an induction head where there are two layers.

    Keys of a group are correlated with its first query head; each output map is half the transpose of its value map,
    scaled to a product near identity, and half random. The induction head takes the first query and key/value head.
    """
    params = init_params(config, seed)
    layers = params["layers"]
    heads_per_group = config.num_heads // config.num_kv_heads
    q_LDNH, k_LDKH, v_LDKH = layers["q_proj"], layers["k_proj"], layers["v_proj"]
    correlation = _QUERY_KEY_CORRELATION
    layers["k_proj"] = correlation * q_LDNH[:, :, ::heads_per_group] + (1 - correlation**2) ** 0.5 * k_LDKH
    v_LNHD = jnp.repeat(v_LDKH, heads_per_group, axis=2).transpose(0, 2, 3, 1)
    copy_LNHD = v_LNHD * (config.hidden_size / (config.head_dim * config.num_heads))
    layers["o_proj"] = (_COPY_STRENGTH * copy_LNHD + 0.5 * layers["o_proj"]).astype(layers["o_proj"].dtype)
    layers["k_proj"] = layers["k_proj"].astype(k_LDKH.dtype)
    return _with_induction_head(params, config, seed) if config.num_layers > 1 else params


def _with_induction_head(params: Params, config: ModelConfig, seed: int) -> Params:
    """Lay an induction head into the first key/value head, and its query heads, of layers 0 and 1."""
    rng = np.random.default_rng((seed, 1))
    width, half = config.hidden_size, config.head_dim // 2
    embedding_std = width**-0.5
    embedding_VD = np.array(params["embedding"], np.float32)
    embedding_VD[:, 0] = _CONSTANT * embedding_std
    layers = {name: np.array(weights, np.float32) for name, weights in params["layers"].items()}
    turn = config.rope_theta ** (-np.arange(half) / half)  # radians per token of each pair of a head
    wavelength_tokens = 2 * np.pi / turn
    heads = range(config.num_heads // config.num_kv_heads)
    # What each head of layer 0 writes stands in another orthogonal frame than the tokens' own: they are told apart.
    frames_DD = [np.zeros((width, width)) for _ in heads]
    for frame_DD in frames_DD:
        frame_DD[1:, 1:] = _orthogonal(rng, width - 1)

    # Layer 0: query and key are constants, turned against each other so that they meet so many tokens back.
    fast = wavelength_tokens < _POSITION_WAVELENGTH_TOKENS
    layers["k_proj"][0, :, 0] = 0
    layers["k_proj"][0, 0, 0, :half] = fast
    read_DH = _reading(rng, config)
    layers["v_proj"][0, :, 0] = read_DH
    for head in heads:
        layers["q_proj"][0, :, head] = 0
        layers["q_proj"][0, 0, head, :half] = fast * np.cos((head + 1) * turn)
        layers["q_proj"][0, 0, head, half:] = fast * -np.sin((head + 1) * turn)
        layers["o_proj"][0, head] = _FURTHER_BACK**head * embedding_std * read_DH.T @ frames_DD[head]

    # Layer 1: the query is the token, the key the token before, both in pairs that hardly turn.
    slow = np.flatnonzero(np.tile(wavelength_tokens > _CONTENT_WAVELENGTH_TOKENS, 2))
    compared = slow[: width - 1]
    compare_DH = np.zeros((width, config.head_dim))
    compare_DH[1:, compared] = _orthogonal(rng, width - 1)[:, : len(compared)]
    layers["q_proj"][1, :, heads.start : heads.stop] = compare_DH[:, None]
    layers["k_proj"][1, :, 0] = frames_DD[0].T @ compare_DH
    read_DH = _reading(rng, config)
    layers["v_proj"][1, :, 0] = read_DH
    layers["o_proj"][1, heads.start : heads.stop] *= 0.5  # the others of the group write at random, and less
    layers["o_proj"][1, 0] = _INDUCTION_STRENGTH * embedding_std * read_DH.T

    for norm in ("q_norm", "k_norm"):
        layers[norm][:2] = _SHARPNESS
    layers["down_proj"] *= _QUIET
    like = params["layers"]
    return params | {
        "embedding": jnp.asarray(embedding_VD, params["embedding"].dtype),
        "layers": {name: jnp.asarray(weights, like[name].dtype) for name, weights in layers.items()},
    }


def _reading(rng: np.random.Generator, config: ModelConfig) -> np.ndarray:
    """Return [D, H] orthonormal columns (rows where the head is wider) that read all coordinates but the constant."""
    size = max(config.hidden_size, config.head_dim)
    read_DH = _orthogonal(rng, size)[: config.hidden_size, : config.head_dim]
    read_DH[0] = 0
    return read_DH


def _orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]
