"""Data sheets of TPU chips, per chip."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from astra_jax.config import ConfigError


class Chip(NamedTuple):
    """Peaks of one chip."""

    flops_per_second: float
    """Peak for bfloat16."""
    hbm_bytes: float
    hbm_bytes_per_second: float
    interconnect_bytes_per_second: float
    """Peak over all links of the chip together."""


# cloud.google.com/tpu/docs/v5e, /v5p, /v6e, "System architecture"; interconnect there in Gbit/s: 1,600, 4,800, 3,584.
CHIPS: Mapping[str, Chip] = {
    "v5e": Chip(197e12, 16 * 2**30, 819e9, 200e9),
    "v5p": Chip(459e12, 95 * 2**30, 2765e9, 600e9),
    "v6e": Chip(918e12, 32 * 2**30, 1640e9, 448e9),
}


def chip_of(topology: str) -> Chip:
    """Return the chip of a topology such as v5p:4x4x4.

    Raises:
        ConfigError: it is not written so, or its chip is unknown.
    """
    kind, _, sizes = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)+", sizes):
        raise ConfigError(f"expected a topology of {', '.join(CHIPS)} such as v5p:4x4x4, found {topology!r}")
    return CHIPS[kind]
