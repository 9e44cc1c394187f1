"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from synthesis.record_io import replace_directory


@contextlib.contextmanager
def whole_folder(directory: str | os.PathLike[str], mark: str) -> Iterator[Path]:
    """A folder to fill; it takes the place of `directory` when the block ends well, else that stays as it was.

    What it may replace is nothing, an empty folder, or an earlier one of its kind: one that holds the file `mark`.
    Raises FileExistsError for any other, before anything is written.
    """
    directory = Path(directory).resolve()
    if directory.exists() and not (directory / mark).is_file() and (directory.is_file() or any(directory.iterdir())):
        raise FileExistsError(
            f"{directory}: expected a new folder, or one with {mark} to replace, found something else"
        )
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial)
        raise
    replace_directory(partial, directory)
