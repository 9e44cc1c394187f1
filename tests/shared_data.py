"""Where the real inputs lie that are too large, or not ours, to ship; tests that need them skip without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED_DATA = Path(os.environ.get("ASTRA_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))


def shared_data(*parts: str) -> Path:
    """Return a path below the shared data, or skip the test with the reason."""
    path = SHARED_DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)} of the shared data; set ASTRA_SHARED_DATA to where it lies")
    return path
