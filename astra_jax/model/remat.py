"""What the backward pass recomputes, by name: the memory of a layer against the time of its forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from astra_jax.model.config import RematPolicy

ATTENTION_RESIDUALS = "attention"
"""Under this name attention offers its output and log-sum-exp, which its backward pass needs."""


def remat(block: Callable[..., Any], policy: RematPolicy) -> Callable[..., Any]:
    """The block of a scan over layers, keeping for the backward pass, besides its input:

    none: everything · full: nothing · attention: what attention offers · attention_offload: the same, in host memory.
    """
    if policy == "none":
        return block
    kept = {
        "full": None,
        "attention": jax.checkpoint_policies.save_only_these_names(ATTENTION_RESIDUALS),
        "attention_offload": jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=[ATTENTION_RESIDUALS],
            offload_src="device",
            offload_dst="pinned_host",
        ),
    }[policy]
    return jax.checkpoint(block, policy=kept, prevent_cse=False)
