"""TPU's compiler for tests: `make slow` puts it beside the packages of the environment, not among them.

With it among them every command would look for a TPU, and say on stderr that it finds none.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_FOLDER = Path(sys.prefix) / "tpu_compiler"
needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None and not (_FOLDER / "libtpu").is_dir(),
    reason="needs the TPU compiler: make slow, or the extra `plan`",
)


def with_tpu_compiler(*folders: Path) -> str:
    """Return a PYTHONPATH of these folders, the compiler's folder, and the present PYTHONPATH."""
    return os.pathsep.join([*map(str, folders), str(_FOLDER), os.environ.get("PYTHONPATH", "")])
