"""Where this user's caches are: compiled programs, environments of benchmarks."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Return `~/.cache/astra-jax`, or its like where `$XDG_CACHE_HOME` says so; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "astra-jax"
