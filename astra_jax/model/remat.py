"""Values that the backward pass recomputes, by name: memory against time.

Decided: docs/decisions/model.md, “Pods offload activations”.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from astra_jax.model.config import RematPolicy

ATTENTION_RESIDUALS = "attention"
"""Name under which attention offers its output and log-sum-exp, which its backward pass needs."""
MLP_INPUT = "mlp_input"
"""The residual stream between a layer's two branches."""
_LAYER_INPUT = "layer_input"

# A primitive of jax._src.cudnn.fused_attention_stablehlo, whose outputs its backward pass needs; they have no name.
_CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"
_KEEP_NAMED = jax.checkpoint_policies.save_only_these_names(ATTENTION_RESIDUALS)
_OFFLOAD = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=[_LAYER_INPUT, ATTENTION_RESIDUALS, MLP_INPUT],
    offload_src="device",
    offload_dst="pinned_host",
)


def _keep_attention(primitive: Any, *avals: Any, **params: Any) -> Any:
    return primitive.name == _CUDNN_FORWARD or _KEEP_NAMED(primitive, *avals, **params)


def _keep_statistics_offload_the_rest(primitive: Any, *avals: Any, **params: Any) -> Any:
    if primitive.name == _CUDNN_FORWARD:
        return True
    # With the float32 log-sum-exp in host memory the TPU compiler (libtpu 0.0.51) dies: "Bitcast cannot have different
    # shape sizes".
    is_activation = bool(avals) and avals[0].dtype == jnp.bfloat16
    return (_OFFLOAD if is_activation else _keep_attention)(primitive, *avals, **params)


_POLICIES = {"full": None, "attention": _keep_attention, "offload": _keep_statistics_offload_the_rest}


def remat(block: Callable[[jax.Array, Any], Any], policy: RematPolicy) -> Callable[[jax.Array, Any], Any]:
    """Return the block of a scan over layers, made to keep for the backward pass:

    none: everything · full: its input · attention: its input and residuals of attention · offload: both and the input
    of its MLP, in the host's memory as far as they are bfloat16.
    """
    if policy == "none":
        return block

    def named(x: jax.Array, layer: Any) -> Any:
        return block(checkpoint_name(x, _LAYER_INPUT), layer)

    # Within a scan the backward loop is another one than the forward loop: there is nothing that could be merged.
    return jax.checkpoint(named, policy=_POLICIES[policy], prevent_cse=False)
