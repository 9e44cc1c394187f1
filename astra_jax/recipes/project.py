"""A project of one's own: configs, a reward, functions and questions, and a tiny base to try them with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from astra_jax.checkpoints.convert import hf_to_orbax
from astra_jax.errors import UsageError
from astra_jax.recipes.quickstart import TINY_BASE

_FILES: Final = Path(__file__).with_name("project_files")


def begin_project(folder: Path) -> list[str]:
    """Write the files of a project into a folder that is new or empty; return their names.

    Raises:
        UsageError: the folder holds something, or is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder; name a new one")
    files = sorted(path for path in _FILES.iterdir() if path.is_file())
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copyfile(path, folder / path.name)
    hf_to_orbax(TINY_BASE, folder / "base")
    return [*(path.name for path in files), "base/"]
