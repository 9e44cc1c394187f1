"""The folder of caches, of compiled programs and of benchmarks' environments."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from pathlib import Path


def user_cache() -> Path:
    """Return `astra-jax` in `$XDG_CACHE_HOME` or else in `~/.cache`; the folder may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "astra-jax"


def processor() -> str:
    """Return a name of this kind of processor: machines that share a home must not share compiled programs."""
    kind = {platform.machine()}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        kind |= {line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))}
    return hashlib.sha256("".join(sorted(kind)).encode()).hexdigest()[:16]


def trim(folder: Path, *, most_bytes: int) -> None:
    """Delete the oldest half of the files in a folder if they have more than `most_bytes`."""
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
