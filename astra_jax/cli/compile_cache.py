"""The cache of compiled programs on disk: a command that runs again does not compile again.

It is JAX's own persistent cache, by default in `~/.cache/astra-jax/xla` (`$XDG_CACHE_HOME` is heeded), one folder per
kind of processor. JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=0 does without.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import jax

from astra_jax.user_cache import processor, trim, user_cache

_MOST_BYTES = 4 * 2**30


def cache_folder() -> Path:
    """Return the default folder of this machine's programs."""
    return user_cache() / "xla" / processor()


def keep_compiled_programs() -> None:
    """Keep the programs that JAX compiles from now on, and look them up; call this before the first is compiled.

    A cache that cannot be read or written costs time, and nothing else.
    """
    if not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = cache_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # a program from here runs as its reader
            trim(folder, most_bytes=_MOST_BYTES)
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
    # A killed process may leave half an entry: its program is compiled again.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")
