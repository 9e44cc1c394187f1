"""Initial weights for small models that are trained from nothing in minutes.

After "Mimetic Initialization of Self-Attention Layers" (arXiv 2305.09828): trained transformers have query and key maps
that are correlated, so that a token attends to its like, and value and output maps whose product is near a multiple of
the identity, so that what is attended to is copied. Starting there saves a tiny model the long plateau before it learns
to copy from its prompt, which is most of what calling a tool is. (In a language model with tied embeddings the multiple
is positive: the copy raises the logit of the token that was attended to.)

Decided: docs/decisions/tiny.md, “Tiny models start from mimetic weights”.
"""

from __future__ import annotations

import jax.numpy as jnp

from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params, init_params

_QUERY_KEY_CORRELATION = 0.5**0.5
_COPY_STRENGTH = 0.5


def mimetic_init(config: ModelConfig, seed: int) -> Params:
    """Return random parameters whose attention starts out matching like with like and copying what it finds.

    Keys of a group are correlated with its first query head; each output map is half the transpose of its value map,
    scaled to a product near identity, and half random.
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
    return params
