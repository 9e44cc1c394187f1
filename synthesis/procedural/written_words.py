"""Words, frames and ranges of the embedded teacher, from the TOML files of this folder."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def written_words(name: str) -> Any:
    """Return the contents of a TOML file by its name, such as `hard_options`."""
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
