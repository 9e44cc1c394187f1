"""What was freed goes back to the operating system: before and after each long compilation, after each step of RL, and
when a decoder closes. Commands have fewer places in which it could stay.

glibc keeps what threads free for their next allocations, in up to eight arenas a core. What XLA's compiler leaves there
was a good part of a decoder's peak; what the calls of hundreds of steps leave there adds up.

Decided: docs/decisions/commands.md, “Memory that the compiler freed is returned to the system”.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from typing import Any, Final

import jax

_LONG_SECONDS: Final = {
    "/jax/core/compile/jaxpr_to_mlir_module_duration": 0.02,
    "/jax/core/compile/backend_compile_duration": 0.2,
}
"""By what JAX says when it has lowered a program, which it then compiles, and when it has compiled it: what takes less
leaves little; giving back took 3 to 100 ms."""


_M_ARENA_MAX: Final = -8  # <malloc.h>


def share_arenas() -> None:
    """Let all threads of this process share two of glibc's arenas a core, not eight; call this before they begin.

    What an arena keeps between what stays is not given back. Where `MALLOC_ARENA_MAX` or another C library is,
    nothing happens.
    """
    if "MALLOC_ARENA_MAX" not in os.environ and (set_option := _glibc("mallopt")) is not None:
        set_option(_M_ARENA_MAX, 2 * len(os.sched_getaffinity(0)))


def give_back() -> None:
    """Give back what nobody uses; where the C library knows no such call, nothing happens."""
    if (trim := _glibc("malloc_trim")) is not None:
        trim(0)


@functools.cache
def give_back_around_compiling() -> None:
    """From now on give back before and after each long compilation here; a second call changes nothing."""
    jax.monitoring.register_event_duration_secs_listener(_took)


def _took(event: str, duration_secs: float, **_: str | int) -> None:
    if duration_secs >= _LONG_SECONDS.get(event, math.inf):
        give_back()


@functools.cache
def _glibc(name: str) -> Any:
    """Return one of glibc's own calls; None of another C library."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
