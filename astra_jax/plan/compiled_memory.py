"""The compiler's answer about memory, kept on disk: no program is compiled twice.

jax's own compilation cache cannot serve here: an absent TPU has no client that could load a compiled program back.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

import jax

from astra_jax.config import Frozen
from astra_jax.errors import AstraError
from astra_jax.user_cache import user_cache
from synthesis.run.destination import write_whole

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")


class CompilerMissing(AstraError, RuntimeError):
    """There is no TPU compiler on this machine; the message says how to install it."""


class CompiledMemory(Frozen):
    """Per chip."""

    peak_bytes: int
    host_bytes: int
    """Bytes offloaded to the host's memory."""


def compiled_memory(lowered: jax.stages.Lowered, *, topology: str, compiler: str) -> tuple[CompiledMemory, bool]:
    """Return the memory that the program needs, and whether it was compiled by an earlier plan.

    `compiler` is its version. A program that it refuses for want of memory has the peak that the refusal names.
    """
    # All that decides the compiler's answer is in the key: there is nothing to invalidate.
    flags = [f"{name}={os.environ.get(name, '')}" for name in _FLAGS]
    key = hashlib.sha256("\n".join([topology, compiler, *flags, lowered.as_text()]).encode()).hexdigest()
    answer = user_cache() / "plan" / f"{key}.json"
    if answer.exists():
        return CompiledMemory.model_validate_json(answer.read_text()), True
    memory = _compile(lowered)
    answer.parent.mkdir(parents=True, exist_ok=True)
    # Two plans may run at once: the last one wins, with the same answer
    write_whole(answer, memory.model_dump_json())
    return memory, False


def _compile(lowered: jax.stages.Lowered) -> CompiledMemory:
    try:
        analysis: Any = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if (wanted := refused_bytes(str(error))) is None:
            raise
        return CompiledMemory(peak_bytes=wanted, host_bytes=0)
    host_bytes = analysis.host_temp_size_in_bytes
    peak_bytes = analysis.peak_memory_in_bytes
    if host_bytes:
        # libtpu 0.0.51 then names the host's heap for the chip's wherever it is the larger: take the sum of all that is
        # allocated on the chip, which is at least the peak.
        peak_bytes = (
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            - analysis.alias_size_in_bytes
            + analysis.temp_size_in_bytes
            + analysis.generated_code_size_in_bytes
        )
    return CompiledMemory(peak_bytes=peak_bytes, host_bytes=host_bytes)


def refused_bytes(message: str) -> int | None:
    """Return the bytes that a program wanted of a chip when the compiler refused it; None for another message.

    The compiler says temporaries and means arguments and results too.

    >>> refused_bytes("RESOURCE_EXHAUSTED: … for HLO temporaries (20.50G) exceeds available HBM (15.75G).") / 2**30
    20.5
    """
    refusal = r"RESOURCE_EXHAUSTED.*temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM"
    found = re.search(refusal, message, re.DOTALL)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None
