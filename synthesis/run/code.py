"""The identity of code: a digest for each file that a module imports, blind to comments and docstrings.

A run that goes on compares these digests. They are found from the imports, so that no list of files has to be kept.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final

from synthesis.python_source import syntax_tree
from synthesis.run.fingerprint import Fingerprint, digest_of_files

ROOT: Final = Path(__file__).parents[2]
"""Folder that holds the packages of this project."""
_PACKAGES: Final = ("astra_jax", "synthesis", "sandbox")


def source_of(*modules: str, own: Mapping[str, Path] = MappingProxyType({})) -> Fingerprint:
    """Return the identity of some modules of this project and of all that they import, file by file.

    Imports are followed through all three packages, those inside functions included. Tables (`*.toml`) that lie beside
    an imported module, or in a folder there that holds no modules, count with their bytes. An edit of a comment or a
    docstring changes nothing.

    `own` are modules of a user, each with the folder that it is imported from. They and the modules of that folder that
    they import count as well; of an installed module, its own package.

    Raises:
        SyntaxError: a file on the way is not Python.
    """
    files = imported_files(*modules)
    folders = {file.parent for file in files}
    below = (inner for folder in folders for inner in folder.iterdir() if inner.is_dir())
    folders = folders.union(inner for inner in below if not (inner / "__init__.py").exists())
    named = {file: digest_of_code(file.read_text(encoding="utf-8")) for file in files}
    named |= {table: digest_of_files([table]) for folder in folders for table in folder.glob("*.toml")}
    digests = {
        path.relative_to(folder): digest_of_code(path.read_text(encoding="utf-8"))
        for module, folder in own.items()
        for path in imported_files(module, folder=folder)
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in _PACKAGES
    }
    digests |= {path.relative_to(ROOT): named[path] for path in sorted(named)}
    return {f"source of {path.as_posix()}": digest for path, digest in digests.items()}


def digest_of_code(source: str) -> str:
    '''Name Python source by its syntax tree, without comments, docstrings and layout.

    >>> digest_of_code("x = 1  # one") == digest_of_code('"""A number."""\\nx = (1)')
    True
    >>> digest_of_code("x = 1") == digest_of_code("x = 2")
    False
    '''
    return _read(source)[0]


@lru_cache(maxsize=1024)
def _read(source: str) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a module and the names that it imports: modules, and things that modules define."""
    tree = syntax_tree(source)
    return sha256(_written(tree).encode()).hexdigest()[:16], tuple(_imported_names(tree))


def _written(value: object) -> str:
    """Write a syntax tree as text that is the same in every version of Python.

    `ast.dump` and `ast.unparse` are not: a new version has new fields and prints text with other quotes. So a field
    without a value is left out, and so is the empty text that Python 3.12 adds to a format inside an f-string.
    """
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    held = []
    for name in value._fields:
        field = getattr(value, name, None)
        if name == "body" and isinstance(field, list):
            # A module without docstring, a function of nothing but one: both bodies are empty.
            field = [each for each in field if not _is_text(each)]
        elif name == "values" and isinstance(value, ast.JoinedStr):
            field = [part for part in value.values if not (isinstance(part, ast.Constant) and part.value == "")]
        if field is not None and field != [] and name != "kind":  # `kind`: the u of u"text"
            held.append(f"{name}={_written(field)}")
    return f"{type(value).__name__}({','.join(held)})"


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def imported_files(*modules: str, folder: Path | None = None) -> frozenset[Path]:
    """Return the files of some modules, of the packages that they lie in, and of all that these import of ours.

    With `folder`, modules that lie there are ours as well; among installed packages, those of the given ones alone.
    """
    is_installed = folder is not None and folder.name in ("site-packages", "dist-packages")
    followed = {name.split(".")[0] for name in modules} if is_installed else None
    found: set[Path] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        top = name.split(".")[0]
        if top not in _PACKAGES and (folder is None or (followed is not None and top not in followed)):
            continue
        path = (folder if folder is not None and top not in _PACKAGES else ROOT).joinpath(*name.split("."))
        file = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
        if file is not None and file not in found:
            found.add(file)
            waiting.append(name.rpartition(".")[0])  # the package's own `__init__` runs with every import from it
            waiting += _read(file.read_text(encoding="utf-8"))[1]
    return frozenset(found)


def _imported_names(tree: ast.Module) -> list[str]:
    names: list[str] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):  # expressions hold no import
            inner = getattr(node, block, ())
            waiting += inner if isinstance(inner, list) else ()
    return names
