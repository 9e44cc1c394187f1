"""The map of each folder names every file with the first line of the file's docstring.

`python tests/test_maps.py` writes the maps anew. Files keep their order in the map, and new ones come last.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^ *(\w+/?)  +(\S.*(?:\n {8,}\S.*)*)\n?", re.MULTILINE)
WIDTH = 120
FOLDERS = sorted(
    path.parent
    for package in ("astra_jax", "sandbox", "synthesis")
    for path in (ROOT / package).rglob("__init__.py")
    if len(list(path.parent.glob("*.py"))) > 1
)


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def first_lines(folder: Path) -> dict[str, str]:
    """Return the first line of each file's docstring by the file's name; a folder's name ends with a slash."""
    files = {path.stem: path for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__")}
    folders = {f"{path.parent.name}/": path for path in folder.glob("*/__init__.py")}
    return {name: docstring(path).split("\n")[0] for name, path in sorted((files | folders).items())}


def map_of(folder: Path) -> dict[str, str]:
    """Return the entries of a folder's map, in their order."""
    return {name: " ".join(text.split()) for name, text in ENTRY.findall(docstring(folder / "__init__.py"))}


def write_map(folder: Path) -> None:
    path = folder / "__init__.py"
    text, wanted, known = path.read_text(encoding="utf-8"), first_lines(folder), map_of(folder)
    names = sorted(wanted, key=lambda name: (list(known).index(name) if name in known else len(known), name))
    width = max(map(len, names))
    entries = [
        textwrap.fill(
            f"{name:<{width}}  {wanted[name]}", WIDTH, subsequent_indent=" " * (width + 2), break_on_hyphens=False
        )
        for name in names
    ]
    before, *between, after = ENTRY.sub("\0", docstring(path)).split("\0")
    assert not any(between), f"{path}: the map is one list"
    statement = ast.parse(text).body[0]
    assert statement.end_lineno is not None
    written = f'"""{before}' + "\n".join(entries).replace("\\", "\\\\") + f"\n{after}".rstrip() + '\n"""\n'
    path.write_text(written + "".join(text.splitlines(keepends=True)[statement.end_lineno :]), encoding="utf-8")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_the_map_of_a_folder_has_the_first_line_of_every_file(folder: Path):
    assert map_of(folder) == first_lines(folder), "python tests/test_maps.py"


if __name__ == "__main__":
    for folder in FOLDERS:
        write_map(folder)
