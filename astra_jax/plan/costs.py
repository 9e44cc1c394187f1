"""FLOPs, bytes and collectives of a step, counted from its jaxpr: loops by their trip count.

The compiler's own cost analysis counts the body of a loop once and kernels not at all; the jaxpr after differentiation
holds every product that will run, the recomputed ones included.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.extend.core as jex


class KernelCosts(NamedTuple):
    """Costs of a Pallas kernel, per device."""

    flops: float
    hbm_bytes: float = 0.0
    """Bytes of operands and results; 0 for a kernel that reads few bytes for its FLOPs."""


Kernels = Callable[[str], KernelCosts]
"""The costs of a kernel, from its name."""


@dataclasses.dataclass
class Costs:
    """Costs of a program, per device."""

    flops: float = 0.0
    hbm_bytes: float = 0.0
    """Bytes of operands and results of products, which pass through HBM even if all else is fused."""
    collective_bytes: defaultdict[tuple[str, str], float] = dataclasses.field(
        default_factory=lambda: defaultdict(float)
    )
    """Bytes that leave the device, by kind and mesh axes."""

    def add(self, other: Costs, times: float) -> None:
        """Add `other`, which is spent `times` times."""
        self.flops += other.flops * times
        self.hbm_bytes += other.hbm_bytes * times
        for key, count in other.collective_bytes.items():
            self.collective_bytes[key] += count * times


def jaxpr_costs(
    jaxpr: jex.Jaxpr, *, mesh_shape: Mapping[str, int], kernels: Kernels, while_trips: int | None = None
) -> Costs:
    """Count costs per device of one call of a traced program.

    Products outside `shard_map` are taken to be spread evenly over the mesh. Loops whose end depends on their data run
    `while_trips` times.

    Raises:
        ValueError: there is such a loop, and `while_trips` is None.

    >>> import jax
    >>> def thrice(x):
    ...     return jax.lax.scan(lambda carry, _: (carry @ x, None), x, length=3)[0]
    >>> traced = jax.make_jaxpr(thrice)(jax.ShapeDtypeStruct((8, 8), "float32"))
    >>> jaxpr_costs(traced.jaxpr, mesh_shape={"data": 2}, kernels=lambda name: KernelCosts(0.0)).flops
    1536.0
    """

    def count(jaxpr: jex.Jaxpr, share: float) -> Costs:
        total = Costs()
        for equation in _live(jaxpr):
            name, params = equation.primitive.name, equation.params
            shapes: list[Any] = [variable.aval for variable in equation.invars]
            out: Any = equation.outvars[0].aval if equation.outvars else None
            if name == "dot_general":
                (contracted, _), _ = params["dimension_numbers"]
                products = math.prod(shapes[0].shape[axis] for axis in contracted)
                moved = sum(aval.size * aval.dtype.itemsize for aval in (*shapes, out))
                total.add(Costs(2.0 * out.size * products, moved), share)
            elif name == "pallas_call":
                # The jaxpr does not show the inside of a kernel: its name says which it is.
                total.add(Costs(*kernels(str(params["name"]))), share)
            elif name in _WIRE_SHARE:
                named: Any = params.get("axis_name", params.get("axes"))
                axes = (named,) if isinstance(named, str) else tuple(named)
                size = math.prod(mesh_shape[axis] for axis in axes)
                # A gather's result and a scatter's operand are the whole that travels round the ring.
                larger = max(out, shapes[0], key=lambda aval: aval.size)
                wire = larger.size * larger.dtype.itemsize * _WIRE_SHARE[name] * (size - 1) / size
                if wire:
                    total.collective_bytes[name, " × ".join(axes)] += wire
            elif name == "scan":
                total.add(count(params["jaxpr"].jaxpr, share), params["length"])
            elif name == "while":
                if while_trips is None:
                    raise ValueError("a while loop has no trip count to multiply with; write it as a scan")
                total.add(count(params["body_jaxpr"].jaxpr, share), while_trips)
            elif name == "shard_map":
                # Shapes in there are those of one device already.
                total.add(count(params["jaxpr"], 1.0), 1)
            elif name == "cond":
                # Which one runs depends on the data: the one that computes most is counted.
                branches = [count(branch.jaxpr, share) for branch in params["branches"]]
                total.add(max(branches, key=lambda branch: branch.flops), 1)
            else:
                for inner in jex.jaxprs_in_params(params):
                    total.add(count(inner, share), 1)
        return total

    return count(jaxpr, 1 / math.prod(mesh_shape.values()))


def _live(jaxpr: jex.Jaxpr) -> list[jex.JaxprEqn]:
    """Return the equations whose results are used; the compiler drops others, such as recompute that a policy saved."""
    needed = {id(variable) for variable in jaxpr.outvars}
    live = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(variable) in needed for variable in equation.outvars):
            needed.update(id(variable) for variable in equation.invars)
            live.append(equation)
    return live


_WIRE_SHARE = {
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "psum": 2.0,
    "psum_invariant": 2.0,
    "pmax": 2.0,
    "all_to_all": 1.0,
}
"""Share of the larger side that a ring sends per device, times (n − 1) / n."""
