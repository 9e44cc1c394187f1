"""Data sheets of TPU chips and of GPUs, per chip."""

from __future__ import annotations

import math
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
    between_slices_bytes_per_second: float = 0.0
    """The chip's share of its host's network; 0 for a GPU."""
    host_bytes: float = math.inf
    """The chip's share of its host's memory; a GPU's host may have any."""


# cloud.google.com/tpu/docs/v5e, /v5p, /v6e, "System architecture"; interconnect there in Gbit/s: 1,600, 4,800, 3,584.
# The network between slices: jax-ml.github.io/scaling-book, "TPU specs", 25, 50 and 100 Gbit/s of a chip. Memory of
# hosts: cloud.google.com/compute/docs/tpus/tpu-machines, 192, 448 and 720 GB for four chips.
CHIPS: Mapping[str, Chip] = {
    "v5e": Chip(197e12, 16 * 2**30, 819e9, 200e9, 3.125e9, 48e9),
    "v5p": Chip(459e12, 95 * 2**30, 2765e9, 600e9, 6.25e9, 112e9),
    "v6e": Chip(918e12, 32 * 2**30, 1640e9, 448e9, 12.5e9, 180e9),
}


# nvidia.com, data sheets of the SXM cards, NVLink both ways. Memory: 95 % of what the driver shows, as JAX takes
# with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95.
GPUS: Mapping[str, Chip] = {
    "a100": Chip(312e12, 0.95 * 81_920 * 2**20, 2039e9, 600e9),
    "h100": Chip(989e12, 0.95 * 81_559 * 2**20, 3350e9, 900e9),
    "h200": Chip(989e12, 0.95 * 143_771 * 2**20, 4800e9, 900e9),
}
_IN_THEIR_PLACE = {"1": "v5p:1x1x1", "2": "v5p:2x1x1", "4": "v5p:2x2x1", "8": "v5p:2x2x2"}


def chip_of(topology: str) -> tuple[Chip, str]:
    """Return the chip of v5p:4x4x4, 2*v5p:4x4x4 (two slices) or h100:8, and what its programs are compiled for.

    No GPU's compiler runs without the GPU: TPU v5p stand in for as many GPUs.

    >>> chip_of("h100:2")[1], chip_of("v5e:2x4")[1]
    ('v5p:2x1x1', 'v5e:2x4')

    Raises:
        ConfigError: it is not written so, or its chip is unknown.
    """
    slices, kind, sizes = slices_and_kind(topology)
    if kind in GPUS and sizes in _IN_THEIR_PLACE and slices == 1:
        return GPUS[kind], _IN_THEIR_PLACE[sizes]
    if kind not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)+", sizes):
        raise ConfigError(
            f"expected a topology of {', '.join(CHIPS)} such as v5p:4x4x4 or 2*v5p:4x4x4, or 1, 2, 4 or 8 of "
            f"{', '.join(GPUS)} such as h100:8, found {topology!r}"
        )
    return CHIPS[kind], topology


def slices_and_kind(topology: str) -> tuple[int, str, str]:
    """Split a topology into its number of slices, its chip, and the chips along each axis of a slice.

    >>> slices_and_kind("2*v5p:4x4x4"), slices_and_kind("h100:8")
    ((2, 'v5p', '4x4x4'), (1, 'h100', '8'))
    """
    slices = re.match(r"([1-9]\d{0,3})\*", topology)
    kind, _, sizes = topology[slices.end() if slices else 0 :].partition(":")
    return int(slices[1]) if slices else 1, kind, sizes
