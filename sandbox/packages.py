"""Packages that tools may import: what an operator lists, what that needs, and no file of another.

    names ─► distributions and those that they require ─► their own files ─► the places that a jail shows, read-only
                                                      └─► modules by name ─► what its importer finds
                                                      └─► shared libraries of the machine that they load

Files are those that a distribution's RECORD names. A folder that holds nothing else is one place; of one that several
distributions share, such as `google`, each file or folder of its own is.

Decided: docs/decisions/sandbox.md, “Tools import only the packages that the operator lists”.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sandbox.errors import SandboxError
from sandbox.interpreter import base_interpreter
from sandbox.jail.packages import FOLDER

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_OF_METADATA: Final = ("METADATA", "PKG-INFO", "entry_points.txt", "top_level.txt")
"""What `importlib.metadata` reads; the rest may tell where a package came from (`direct_url.json`)."""
_LOAD_SECONDS = 300.0
_MOST_FILES = 256  # that the self-test tries to read
_ROOT = Path(__file__).parent.parent

_LOAD = """
import ctypes, importlib, json, os, sys
from sandbox.interpreter import loaded_libraries
from sandbox.jail import packages
plan, compiled = json.loads(sys.argv[1])
packages.install(plan)
failed = {}
for name in plan["listed"]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
for path in compiled:  # those that are imported later need their libraries, too
    try:
        ctypes.CDLL(path)
    except OSError:
        pass
print(json.dumps([failed, loaded_libraries()]), flush=True)
os._exit(0)  # nothing that a package does at its end comes after this line
"""


class PackageUnavailable(SandboxError):
    """Tools cannot have a package that is listed; the message says which, why and what to do."""


@dataclass(frozen=True)
class AllowedPackages:
    """The packages that tools may import, and where they lie on this machine; by default none."""

    versions: dict[str, str] = field(default_factory=dict)
    """Of those that are listed, by the distribution's name."""
    required: dict[str, str] = field(default_factory=dict)
    """Versions of those that they need, and that a tool can import as well."""
    modules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of each of these distributions to the names under which it is imported."""
    files: dict[str, str] = field(default_factory=dict)
    """Full name of each such module to its file, below its root; empty for a folder that several share."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Name of each distribution to the folder of its metadata, below its root."""
    places: dict[str, str] = field(default_factory=dict)
    """What is shown of the machine: path below a root to its real path."""
    libraries: dict[str, list[str]] = field(default_factory=dict)
    """Shared libraries of the machine that they load, as `loaded_libraries` tells them."""
    is_lazy: bool = False
    """Whether they are imported by the call that asks for them, and not once before all calls."""

    def plan(self, *, in_namespaces: bool) -> dict[str, Any]:
        """Return what the zygote is told: where modules and metadata lie in its own view, and what it loads at once."""

        def seen(path: str) -> str:
            return f"{FOLDER}/{path}" if in_namespaces else self._real(path)

        return {
            "modules": {name: path and seen(path) for name, path in self.files.items()},
            "metadata": {name: seen(path) for name, path in self.metadata.items()},
            "listed": [module for name in self.versions for module in self.modules[name] if _is_public(module)],
            "is_lazy": self.is_lazy,
        }

    def _real(self, path: str) -> str:
        for place, real in self.places.items():
            if path == place or path.startswith(f"{place}/"):
                return real + path[len(place) :]
        # The folder of the metadata, of which only files are places.
        return next(os.path.dirname(real) for place, real in self.places.items() if place.startswith(f"{path}/"))

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


NO_PACKAGES: Final = AllowedPackages()


def find_packages(names: Iterable[str], *, is_lazy: bool = False, path: Sequence[str] | None = None) -> AllowedPackages:
    """Find the distributions of these names, and what they need, on `path` (by default where this program imports).

    Raises:
        PackageUnavailable: one is not installed or cannot be imported, or its own files cannot be told.
    """
    asked = _checked(names)
    if not asked:
        return NO_PACKAGES
    installed = _installed(path)
    wanted = _with_requirements(asked, installed)
    roots = {name: Path(os.path.realpath(str(installed[name].locate_file("")))) for name in wanted}
    owned = {name: _own_files(name, installed[name], roots[name]) for name in wanted}
    files: dict[str, str] = {}
    modules: dict[str, tuple[str, ...]] = {}
    for name in wanted:
        found = _modules(owned[name])
        if not any(found.values()):
            raise PackageUnavailable(f"expected files of the package {name} beside its metadata, found no module there")
        files |= {module: file for module, file in found.items() if file or module not in files}
        modules[name] = tuple(module for module, file in found.items() if file)
    versions = {name: installed[name].version for name in wanted}
    packages = AllowedPackages(
        versions={name: versions[name] for name in asked},
        required={name: versions[name] for name in wanted if name not in asked},
        modules=modules,
        files=files,
        metadata={name: folder for name in wanted if (folder := _metadata_folder(owned[name]))},
        places=_places(roots, owned),
        is_lazy=is_lazy,
    )
    compiled = [
        str(roots[name] / path)
        for name in wanted
        for path in sorted(owned[name])
        if PurePosixPath(path).suffix == ".so"
    ]
    return _loaded(packages, compiled)


def outside(
    packages: AllowedPackages, *, in_namespaces: bool, path: Sequence[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return modules that are installed here and that no tool may import, and files beside the packages' own that none
    may read, where a tool would look for them: what the self-test asks for.
    """
    allowed = {module.partition(".")[0] for module in packages.files}
    modules, files = {"sandbox", "pip"}, []
    for own_name, distribution in _installed(path).items():
        is_allowed = own_name in packages.modules
        root = os.path.realpath(str(distribution.locate_file("")))
        shared = set()
        for file in map(str, distribution.files or ()):
            top = file.partition("/")[0]
            name = top.removesuffix(".py")
            if name in allowed:
                shared.add(file)
            elif name.isidentifier() and name != "__pycache__":
                modules.add(name)
            is_hidden_metadata = top.endswith("-info") and os.path.basename(file) not in _OF_METADATA
            if is_hidden_metadata if is_allowed else name in allowed:
                files.append(f"{FOLDER if in_namespaces else root}/{file}")
        modules |= _modules(shared).keys() - packages.files.keys()
    return sorted(modules - set(sys.stdlib_module_names)), sorted(files)[:_MOST_FILES]


def _checked(names: Iterable[str]) -> list[str]:
    asked: list[str] = []
    for name in names:
        if not _NAME.fullmatch(name):
            raise PackageUnavailable(
                f"expected the name of an installed package such as numpy, found {name!r}; its version is the one that "
                "is installed beside this service"
            )
        if canonicalize_name(name) in asked:
            raise PackageUnavailable(f"expected each package once, found {name!r} twice")
        asked.append(str(canonicalize_name(name)))
    return asked


def _installed(path: Sequence[str] | None) -> dict[str, Distribution]:
    """The distributions by name; of two of one name the one that would be imported."""
    found: dict[str, Distribution] = {}
    for distribution in distributions() if path is None else distributions(path=list(path)):
        name = distribution.metadata["Name"]
        if name:  # a folder that is left of one has none
            found.setdefault(str(canonicalize_name(name)), distribution)
    return found


def _with_requirements(asked: Sequence[str], installed: Mapping[str, Distribution]) -> list[str]:
    """Those that are asked for, in order, then what they need, and what that needs."""
    wanted, waiting = list(asked), [(name, "") for name in asked]
    while waiting:
        name, needed_by = waiting.pop(0)
        if name not in installed:
            why = f", which {needed_by} needs" if needed_by else ""
            raise PackageUnavailable(
                f"expected the package {name}{why}, found none in the environment of this service: pip install {name}"
            )
        for text in installed[name].requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                raise PackageUnavailable(f"expected requirements of the package {name}, found {text!r}") from None
            required = str(canonicalize_name(requirement.name))
            is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_needed and required not in wanted:
                wanted.append(required)
                waiting.append((required, name))
    return wanted


def _own_files(name: str, distribution: Distribution, root: Path) -> set[str]:
    """The paths below the root that the distribution says are its own, and that a tool may need."""
    if distribution.files is None:
        raise PackageUnavailable(f"expected a list of the files of the package {name} (its RECORD), found none")
    found = set()
    for file in distribution.files:
        path = PurePosixPath(str(file))
        folder = path.parts[0]
        is_metadata = folder.endswith((".dist-info", ".egg-info"))
        is_shown = len(path.parts) == 2 and path.name in _OF_METADATA if is_metadata else path.suffix != ".pth"
        if is_shown and not path.is_absolute() and ".." not in path.parts and (root / path).is_file():
            found.add(str(path))
    return found


def _metadata_folder(owned: Iterable[str]) -> str:
    return next((path.partition("/")[0] for path in owned if path.partition("/")[0].endswith("-info")), "")


def _modules(owned: set[str]) -> dict[str, str]:
    """Modules that are imported by themselves, by full name: their file, or empty for a folder without one.

    >>> sorted(_modules({"a.py", "b/__init__.py", "b/c.py", "d/e/__init__.py", "f.libs/g.so", "d/h.abi3.so"}).items())
    [('a', 'a.py'), ('b', 'b/__init__.py'), ('d', ''), ('d.e', 'd/e/__init__.py'), ('d.h', 'd/h.abi3.so')]
    """
    suffixes = sorted(all_suffixes(), key=len, reverse=True)
    found: dict[str, str] = {}
    folders: dict[str, str] = {}
    single: list[tuple[tuple[str, ...], str]] = []
    for path in sorted(owned):
        *above, file = path.split("/")
        suffix = next((suffix for suffix in suffixes if file.endswith(suffix)), None)
        if suffix is None or "__pycache__" in above:
            continue
        stem = file[: -len(suffix)]
        if stem == "__init__":
            folders["/".join(above)] = path
        else:
            single.append(((*above, stem), path))

    def has_package_above(parts: Sequence[str]) -> bool:
        return any("/".join(parts[:length]) in folders for length in range(1, len(parts)))

    candidates = [(tuple(folder.split("/")), path) for folder, path in folders.items()] + single
    for parts, path in candidates:
        if all(part.isidentifier() for part in parts) and not has_package_above(parts):
            found[".".join(parts)] = path
            for length in range(1, len(parts)):
                found.setdefault(".".join(parts[:length]), "")
    return found


def _is_public(module: str) -> bool:
    return not any(part.startswith("_") for part in module.split("."))


def _places(roots: Mapping[str, Path], owned: Mapping[str, set[str]]) -> dict[str, str]:
    """The largest folders and files that hold nothing but what is owned, by their path below their root.

    Raises:
        PackageUnavailable: two roots have the same path, so that one would hide the other.
    """
    found: dict[str, str] = {}
    for root in dict.fromkeys(roots.values()):
        own = set().union(*(owned[name] for name in owned if roots[name] == root))
        above = {str(parent) for path in own for parent in PurePosixPath(path).parents}

        def below(
            folder: str, root: Path = root, own: set[str] = own, above: set[str] = above
        ) -> tuple[bool, list[str]]:
            """Whether a folder holds nothing else, and the places in it."""
            is_whole, places = True, []
            for entry in sorted(os.scandir(root / folder), key=lambda entry: entry.name):
                path = f"{folder}/{entry.name}"
                if path in own:
                    places.append(path)
                elif entry.name == "__pycache__":
                    places += sorted(each for each in own if each.startswith(f"{path}/"))
                elif path in above and not entry.is_symlink():
                    is_inner_whole, inner = below(path)
                    is_whole = is_whole and is_inner_whole
                    places += inner
                else:
                    is_whole = False
            return is_whole, [folder] if is_whole else places

        for top in sorted({path.partition("/")[0] for path in own}):
            if top == "__pycache__":  # of modules that are one file
                places = sorted(each for each in own if each.startswith(f"{top}/"))
            else:
                places = [top] if top in own else below(top)[1]
            for place in places:
                nearby = [other for other in found if _is_within(place, other) or _is_within(other, place)]
                if nearby:
                    raise PackageUnavailable(
                        f"expected packages that lie in one folder, found {nearby[0]} both in {root} and in "
                        f"{found[nearby[0]]}; install them beside one another"
                    )
            found |= {place: str(root / place) for place in places}
    return found


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _loaded(packages: AllowedPackages, compiled: list[str]) -> AllowedPackages:
    """Import them in a process of its own, by the importer that tools have, and note which libraries that took."""
    program = f"import sys; sys.path.insert(0, {str(_ROOT)!r})\n{_LOAD}"
    words = json.dumps([packages.plan(in_namespaces=False), compiled])
    command = [base_interpreter(), "-I", "-S", "-c", program]
    try:
        done = subprocess.run(
            [*command, words], capture_output=True, text=True, check=False, env={}, timeout=_LOAD_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise PackageUnavailable(
            f"expected that {packages} is imported within {_LOAD_SECONDS:g} s, found it not"
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise PackageUnavailable(
            f"expected that {packages} can be imported, found that a process that did ended: {last}"
        )
    failed, libraries = json.loads(done.stdout.splitlines()[-1])
    for module, why in failed.items():
        name = next(name for name, modules in packages.modules.items() if module in modules)
        raise PackageUnavailable(
            f"expected that the package {name} can be imported with what it requires alone, found that {module} "
            f"cannot: {why.splitlines()[0]}"
        )
    stdlib, own = os.path.dirname(os.__file__), tuple(f"{real}/" for real in packages.places.values())
    outside = {
        path: names
        for path, names in libraries.items()
        if not path.startswith((f"{stdlib}/", *own))
        and path not in packages.places.values()
        and not os.path.basename(path).startswith("ld-")
    }
    return AllowedPackages(**{**vars(packages), "libraries": outside})
