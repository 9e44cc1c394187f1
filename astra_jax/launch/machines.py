"""Hosts and machine types of a TPU slice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from astra_jax.config import ConfigError


class Machines(NamedTuple):
    """The machines of one TPU slice."""

    accelerator: str
    """The slice's kind on Kubernetes, the label `cloud.google.com/gke-tpu-accelerator` of its nodes."""
    topology: str
    """Chips along each axis, e.g. 4x4x4."""
    machine_type: str
    hosts: int
    chips_per_host: int
    has_groups: bool
    """Whether managed instance groups of Compute Engine make such slices."""


class _Kind(NamedTuple):
    accelerator: str
    machine_type: str
    """Its name without the number of chips."""
    alone: tuple[str, ...]
    """Topologies of one machine; all others are of machines with 4 chips."""


# cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, "TPU configurations".
_KINDS: Mapping[str, _Kind] = {
    "v5e": _Kind("tpu-v5-lite-podslice", "ct5lp-hightpu", ("1x1", "2x2", "2x4")),
    "v5p": _Kind("tpu-v5p-slice", "ct5p-hightpu", ("2x2x1",)),
    "v6e": _Kind("tpu-v6e-slice", "ct6e-standard", ("1x1", "2x2", "2x4")),
}
_CHIPS_OF_A_HOST = 4


def machines_of(topology: str) -> Machines:
    """Return the machines of a slice such as v5p:4x4x4.

    >>> machines_of("v6e:2x4").hosts, machines_of("v6e:4x4").hosts, machines_of("v5p:4x4x4").machine_type
    (1, 4, 'ct5p-hightpu-4t')

    Raises:
        ConfigError: it is written otherwise, or its chips make no whole machines. Which of the others can be rented,
            the cloud's own list says.
    """
    name, _, sizes = topology.partition(":")
    kind, axes = _KINDS.get(name), sizes.split("x")
    if kind is None or len(axes) != kind.alone[0].count("x") + 1 or not all(axis.isdecimal() for axis in axes):
        raise ConfigError(f"expected a TPU slice such as v5p:4x4x4, v5e:4x8 or v6e:2x4, found {topology!r}")
    chips = math.prod(map(int, axes))
    chips_per_host = chips if sizes in kind.alone else _CHIPS_OF_A_HOST
    if chips == 0 or chips % chips_per_host:
        raise ConfigError(f"{topology} has {chips} chips, which are no whole machines of {chips_per_host}")
    return Machines(
        kind.accelerator,
        sizes,
        f"{kind.machine_type}-{chips_per_host}t",
        chips // chips_per_host,
        chips_per_host,
        name != "v5e",  # docs.cloud.google.com/tpu/docs/tpus-and-migs
    )
