"""Compiled programs are kept on disk, so that a command that is run again need not compile what it compiled before.

It is JAX's own persistent cache, by default in `~/.cache/astra-jax/xla` (`$XDG_CACHE_HOME` is heeded), one folder per
kind of processor. JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=0 does without.

Decided: docs/decisions/commands.md, “Compiled programs are kept, one folder per kind of processor”.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import warnings
from pathlib import Path

import jax

from astra_jax.freed_memory import give_back_around_compiling
from astra_jax.user_cache import user_cache

_MOST_BYTES = 4 * 2**30


def cache_folder() -> Path:
    """Return where this machine's programs are kept by default."""
    return user_cache() / "xla" / _processor()


def keep_compiled_programs() -> None:
    """Look up on disk what JAX compiles from now on, and keep it there; call this before anything is compiled.

    A cache that cannot be read or written costs time, and nothing else.
    """
    give_back_around_compiling()
    if not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = cache_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # who writes here runs code as the reader
            _trim(folder, most_bytes=_MOST_BYTES)
        except OSError:
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    # A tiny policy's programs are many and small: keep all of them.
    for name, value in (
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    # Also of an entry that a killed process has written half of: it is compiled again, and that is all.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")


def _processor() -> str:
    """A name of this kind of processor: a home may be on a network disk, where others must not take its programs."""
    kind = {platform.machine()}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        kind |= {line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))}
    return hashlib.sha256("".join(sorted(kind)).encode()).hexdigest()[:16]


def _trim(folder: Path, *, most_bytes: int) -> None:
    """Let go of the oldest half when there is more than `most_bytes`."""
    with os.scandir(folder) as entries:
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries)
    total = sum(size for _, size, _ in files)
    if total <= most_bytes:
        return
    for _, size, path in files:
        Path(path).unlink(missing_ok=True)
        total -= size
        if total <= most_bytes // 2:
            break
