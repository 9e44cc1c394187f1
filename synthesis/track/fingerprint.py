"""What decides the records of a track: config, contents of its inputs, who is asked, and source, prompts included."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel

from synthesis.fingerprint import ROOT, Fingerprint, digest, flattened, source_of_files
from synthesis.records import SCHEMA_VERSION, JsonValue
from synthesis.teacher.protocol import Teacher


def synthesis_fingerprint(
    track: str, config: BaseModel, teacher: Teacher, contents: Mapping[str, JsonValue]
) -> Fingerprint:
    """Return what decides the records of a track, whose pipeline is the module `track`.

    That is its config, save where it writes, where and how fast work is done, and what a token costs; in the place of
    paths, what they hold (`contents`, by the names of their keys); who is asked; and the source of the track and of the
    teacher, prompts included.
    """
    settings = getattr(config, "teacher", None)
    asked = {} if settings is None else settings.what_decides()
    # A teacher's base classes answer too: a subclass in another module keeps its parent's source in.
    teachers = {kind.__module__ for kind in type(teacher).__mro__ if kind.__module__.startswith("synthesis.")}
    return {
        "schema_version": SCHEMA_VERSION,
        **flattened(config.model_dump(mode="json"), leave_out={"out", "concurrency", "ray", "teacher", *contents}),
        **{name: digest(content) for name, content in contents.items()},
        **flattened({"teacher": {"name": teacher.name, **asked}}),
        **source_of(track, *sorted(teachers)),
    }


def source_of(*modules: str) -> Fingerprint:
    """Name the source of modules of this project and of every module of theirs that they import, file by file.

    Prompts are among them: a changed word is a changed source. So are tables (`*.toml`) that lie beside the modules,
    or in a folder there that holds no modules.
    """
    sources: set[Path] = set()
    for module in modules:
        sources |= _imported(module)
    folders = {source.parent for source in sources}
    folders |= {below for folder in folders for below in folder.iterdir() if below.is_dir() and not _is_package(below)}
    tables = {table for folder in folders for table in folder.glob("*.toml")}
    return source_of_files(path.relative_to(ROOT).as_posix() for path in sources | tables)


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").exists()


@lru_cache
def _imported(module: str) -> frozenset[Path]:
    """Return the files of a module, of the packages it lies in, and of all that these import of the same package."""
    package = module.split(".")[0]
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name.split(".")[0] != package or (path := _file_of(name)) is None or path in found:
            continue
        found.add(path)
        waiting.append(name.rpartition(".")[0])  # the package's own `__init__` runs with every import from it
        for node in _statements(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                # An imported name may be a module or something in one; what has no file is passed over above.
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return frozenset(found)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement of a module, those inside of others too, and no expression: these hold no import."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, block, ())
            waiting += inner if isinstance(inner, list) else ()


def _file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
