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

    none: everything · full: nothing · attention: what attention offers.
    """
    if policy == "none":
        return block
    kept = jax.checkpoint_policies.save_only_these_names(ATTENTION_RESIDUALS) if policy == "attention" else None
    return jax.checkpoint(block, policy=kept, prevent_cse=False)
