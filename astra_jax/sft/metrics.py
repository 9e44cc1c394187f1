"""The metrics of an SFT step, one line of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from astra_jax.model.config import ModelConfig
from astra_jax.model.flops import model_flops, utilisation
from astra_jax.sft.data import KINDS

LOSSES: Final = tuple(f"loss_{kind}" for kind in KINDS)
"""Names of the losses by kind of row, in the order of `KINDS`."""
SHOWN: Final = (*LOSSES, "learning_rate", "tokens_per_second")
"""Figures of a progress line, without the loss of all kinds together, which follows the mix of kinds in a step."""


def sft_metrics(
    of_step: Mapping[str, jax.Array],
    segment_tokens: Sequence[int],
    model_config: ModelConfig,
    *,
    learning_rate: float,
    seconds: float,
    data_seconds: float,
    num_devices: int,
) -> dict[str, Any]:
    """Return the figures of a step's update, of its tokens without padding, and of its time.

    A kind of row without a learnt token in the step has no loss.
    """
    sums, counts = (of_step[name].tolist() for name in ("loss_by_kind", "loss_tokens_by_kind"))
    tokens, loss_tokens = int(np.sum(segment_tokens)), int(of_step["loss_tokens"])
    # Padding is no work that the model needs, nor are logits that no loss reads.
    flops = model_flops(model_config, segment_tokens, logits_tokens=loss_tokens)
    mfu = utilisation(flops, seconds, devices=num_devices)
    return {
        "loss": of_step["loss"].item(),
        **{name: loss / count for name, loss, count in zip(LOSSES, sums, counts, strict=True) if count},
        "grad_norm": of_step["grad_norm"].item(),
        "applied": int(of_step["applied"]),
        "learning_rate": learning_rate,
        "tokens": tokens,
        "loss_tokens": loss_tokens,
        "seconds": round(seconds, 4),
        "data_seconds": round(data_seconds, 4),
        "tokens_per_second": round(tokens / seconds, 1),
        **({} if mfu is None else {"mfu": round(mfu, 4)}),
    }
