"""Packages that tools may import: one folder that `pip install --target FOLDER NAME ...` has made.

A jail shows the folder read-only and puts it last on `sys.path`, so no package takes the place of a module of the
standard library. The zygote imports every package once, before the calls.

Decided: docs/decisions/sandbox.md, “Tools import packages from one folder that the operator made”.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.machinery import all_suffixes
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from sandbox.errors import RefusedToStart
from sandbox.interpreter import is_loader, isolated_command

_LOAD_SECONDS = 300.0
# A process of its own tells which shared libraries of the machine the packages load: those, too, a jail must show.
_LOAD = """
import ctypes, importlib, json, os, pathlib
from sandbox.interpreter import loaded_libraries
folder, modules = sys.argv[1], sys.argv[2:]
sys.path.append(folder)
for name in modules:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(json.dumps([f"{name} cannot be imported: {type(error).__name__}: {error}", {}]), flush=True)
        os._exit(0)
for path in pathlib.Path(folder).rglob("*.so"):  # modules that tools import later need their libraries as well
    try:
        ctypes.CDLL(str(path))
    except OSError:
        pass
print(json.dumps(["", loaded_libraries()]), flush=True)
os._exit(0)  # nothing that a package does at its end comes after this line
"""


@dataclass(frozen=True)
class Packages:
    """A folder of packages that tools may import; by default none."""

    folder: str = ""
    """Real path of the folder on this machine; empty for no packages."""
    versions: dict[str, str] = field(default_factory=dict)
    """Version of each distribution, by its name in the form `python-dateutil`."""
    modules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names under which code imports each distribution."""
    libraries: dict[str, list[str]] = field(default_factory=dict)
    """Shared libraries of the machine that the packages load, as `loaded_libraries` returns them."""

    @property
    def imported(self) -> list[str]:
        """Modules that are imported before the calls: all but those whose name begins with an underscore."""
        return [name for names in self.modules.values() for name in names if not name.startswith("_")]

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


NO_PACKAGES: Final = Packages()


def find_packages(folder: Path) -> Packages:
    """Return the packages of a folder, after an import of each in a process of its own.

    Raises:
        RefusedToStart: the folder holds no package, or one that cannot be imported.
    """
    real = os.path.realpath(folder)
    named = ((one.metadata["Name"], one) for one in distributions(path=[real]))
    found = {re.sub(r"[-_.]+", "-", name).lower(): one for name, one in named if name}  # the one spelling of a name
    if not found:
        raise RefusedToStart(
            f"{folder} holds no package; make it with `pip install --target {folder} numpy`, for example"
        )
    versions = {name: found[name].version for name in sorted(found)}
    modules = {name: top_modules(map(str, found[name].files or ())) for name in sorted(found)}
    packages = Packages(real, versions, modules)
    command = isolated_command(_LOAD, real, *packages.imported)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={}, timeout=_LOAD_SECONDS)
        failure, libraries = json.loads((done.stdout.splitlines() or [""])[-1])
    except subprocess.TimeoutExpired:
        raise RefusedToStart(f"the packages of {folder} were not imported within {_LOAD_SECONDS:g} s") from None
    except ValueError:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise RefusedToStart(f"a process that imported the packages of {folder} ended: {last}") from None
    if failure:
        raise RefusedToStart(f"{failure.splitlines()[0]}; install its dependencies into {folder}, or remove it")
    own_folders = (f"{os.path.dirname(os.__file__)}/", f"{real}/")
    others = {path: names for path, names in libraries.items() if not path.startswith(own_folders)}
    return replace(packages, libraries={path: names for path, names in others.items() if not is_loader(path)})


def top_modules(files: Iterable[str]) -> tuple[str, ...]:
    """Return the first names of the modules among a distribution's files.

    >>> top_modules(["a.py", "b/__init__.py", "b/c.py", "d/e/f.py", "g.libs/h.so", "i.abi3.so", "j-1.dist-info/RECORD"])
    ('a', 'b', 'd', 'i')
    """
    suffixes = tuple(all_suffixes())
    code = (file for file in files if file.endswith(suffixes) and ".dist-info/" not in file)
    first = {file.partition("/")[0] for file in code} - {"__pycache__"}
    return tuple(sorted({name.partition(".")[0] for name in first if name.isidentifier() or name.endswith(suffixes)}))
