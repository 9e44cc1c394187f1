"""The engine stays small, and its map names every file with the first line of the file's docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import astra_jax.engine

FOLDER = Path(astra_jax.engine.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
MOST_LINES, MOST_LINES_OF_A_FILE = 3_210, 350


def test_the_map_has_the_first_line_of_every_file():
    found = dict(re.findall(r"^    (\w+) +(\S.*)$", (astra_jax.engine.__doc__ or "").split("Files, ")[1], re.MULTILINE))
    first_lines = {path.stem: ast.get_docstring(ast.parse(path.read_text())).splitlines()[0] for path in FILES}
    assert found == first_lines


def test_the_engine_is_read_in_an_hour():
    lines = {path.name: len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")}
    assert max(lines.values()) <= MOST_LINES_OF_A_FILE, lines
    assert sum(lines.values()) <= MOST_LINES
