"""Freed memory goes back to the system: around each long compilation, after each RL step, when a decoder closes.

glibc keeps memory that threads have freed for their next allocations, in up to eight arenas a core. The share of XLA's
compiler was a good part of a decoder's peak, and that of hundreds of steps adds up.

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
"""Shortest duration after which memory is given back, by JAX's event of a lowered and of a compiled program.

Giving back takes 3 to 100 ms."""
_M_ARENA_MAX: Final = -8  # <malloc.h>


def share_arenas() -> None:
    """Let the threads of this process share two of glibc's arenas a core, not eight; call this before they begin.

    Freed memory between allocations of an arena cannot be given back. Nothing happens if `MALLOC_ARENA_MAX` is set or
    the C library is another one.
    """
    if "MALLOC_ARENA_MAX" not in os.environ and (set_option := _glibc("mallopt")) is not None:
        set_option(_M_ARENA_MAX, 2 * len(os.sched_getaffinity(0)))


def give_back() -> None:
    """Give back unused memory; nothing happens if the C library has no such call."""
    if (trim := _glibc("malloc_trim")) is not None:
        trim(0)


@functools.cache
def give_back_around_compiling() -> None:
    """Give back unused memory before and after each long compilation from now on; a second call changes nothing."""
    jax.monitoring.register_event_duration_secs_listener(_took)


def _took(event: str, duration_secs: float, **_: str | int) -> None:
    if duration_secs >= _LONG_SECONDS.get(event, math.inf):
        give_back()


@functools.cache
def _glibc(name: str) -> Any:
    """Return a call of glibc; None if the C library does not have it."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
