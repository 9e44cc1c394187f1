"""The environment of a harness: a venv in the user's cache, made once, whole or not at all.

The harnesses' pins conflict with JAX's and with one another's, so none of them is ever imported here: its programs
run as processes of their own, without this process's keys.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from astra_jax.benchmarks.harnesses import Harness
from astra_jax.benchmarks.results import HarnessDocument
from astra_jax.errors import AstraError
from astra_jax.user_cache import user_cache
from synthesis.run.destination import whole_file
from synthesis.run.lock import run_lock

_WHOLE: Final = "whole.json"
"""Written last."""


class HarnessMissing(AstraError):
    """The environment of a harness is not there, or cannot be made; the message says what to install."""


@dataclass(frozen=True)
class ManagedEnvironment:
    """An environment that is whole."""

    folder: Path
    document: HarnessDocument

    def program(self, name: str) -> Path:
        """Return one of its programs."""
        return self.folder / "bin" / name

    def source(self) -> Path:
        """Return where the code of a harness lies that is no package."""
        return self.folder / "source"

    def stubs(self) -> Path:
        """Return where the empty modules lie that stand for what nothing which is run calls."""
        return self.folder / "stubs"

    def packages(self) -> Path:
        """Return where its packages lie."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found


def environment_folder(harness: Harness) -> Path:
    """Return where the environment of a harness belongs."""
    return user_cache() / "harnesses" / harness.name


def managed_environment(harness: Harness) -> ManagedEnvironment:
    """Return the environment of a harness.

    Raises:
        HarnessMissing: it was not made, or is another version's.
    """
    folder = environment_folder(harness)
    if (manifest := _manifest(folder)) is None or manifest.get("recipe") != _recipe(harness):
        raise HarnessMissing(
            f"expected the harness {harness.package} {harness.version} in {folder}, found none; "
            f"make it by `astra evaluate setup {harness.name}`"
        )
    return ManagedEnvironment(folder, HarnessDocument.model_validate(manifest["harness"]))


def set_up(harness: Harness, source: Path | None = None) -> tuple[ManagedEnvironment, bool]:
    """Make the environment of a harness where there is none that is whole; return it, and whether it was made now.

    `source` is a checkout of a harness that no package index has; its data are copied.

    Raises:
        HarnessMissing: a package cannot be had. Nothing is left then.
        AnotherRun: another process is making it.
    """
    folder = environment_folder(harness)
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with run_lock(folder.with_name(f"{folder.name}.lock")):
        try:
            found = managed_environment(harness)
            if source is None or found.document.commit == (harness.commit or _commit(source)):
                return found, False
        except HarnessMissing:
            pass
        checkout = None if harness.source is None else _checkout(harness, source)
        shutil.rmtree(folder, ignore_errors=True)  # half made, or of another version
        try:
            _make(harness, folder, checkout)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return managed_environment(harness), True


@dataclass(frozen=True)
class _Checkout:
    folder: Path
    version: str


def _checkout(harness: Harness, source: Path | None) -> _Checkout:
    """Return the checkout that somebody has named.

    Raises:
        HarnessMissing: it is none of the harness, or of another version.
    """
    expected = f"expected a checkout of {harness.source}"
    get_one = f"get one and name it by `astra evaluate setup {harness.name} --source DIR`"
    if source is None:
        raise HarnessMissing(f"{expected}, found no --source; {get_one}")
    if harness.commit is not None:
        done = _git(source, "rev-parse", "--verify", "--quiet", f"{harness.commit}^{{commit}}")
        if done.returncode:
            raise HarnessMissing(f"{expected}, found no such commit in {source}; {get_one}")
        return _Checkout(source, harness.version)
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        name, version = str(project["name"]), str(project["version"])
    except (OSError, ValueError, LookupError, TypeError):
        raise HarnessMissing(f"{expected}, found no pyproject.toml of a project in {source}; {get_one}") from None
    if name != harness.package or not f"{version}.".startswith(f"{harness.version}."):
        raise HarnessMissing(f"{expected}, found {name} {version} in {source}; {get_one}")
    if not (source / "data" / harness.package).is_dir():
        raise HarnessMissing(f"{expected}, found none of its data in {source / 'data'}; {get_one}")
    return _Checkout(source, version)


def _commit(source: Path) -> str | None:
    """Return the commit of a checkout; None where it is no checkout of git."""
    return _git(source, "rev-parse", "HEAD").stdout.decode().strip() or None


def _git(source: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(source), *arguments], capture_output=True, check=False)


def _make(harness: Harness, folder: Path, checkout: _Checkout | None) -> None:
    python = folder / "bin" / "python"
    pinned = f"{harness.package}=={harness.version}"
    by_hand = f"install it with pip into {folder} or see to pip's index"
    _run([sys.executable, "-m", "venv", str(folder)], "a Python with venv", "install Python's venv and ensurepip")
    install = [str(python), "-m", "pip", "install", "--quiet"]
    if checkout is None:
        # The harness without what it asks for: pip takes the newest of the rest that fit one another.
        _run([*install, "--no-deps", pinned, *harness.bare], f"the package {pinned}", by_hand)
        _run([*install, *harness.requirements], f"what {pinned} needs", by_hand)
    elif harness.commit is None:
        _run([*install, str(checkout.folder.resolve()), *harness.requirements], f"what {pinned} needs", by_hand)
        shutil.copytree(checkout.folder / "data" / harness.package, folder / "data" / harness.package)
    else:
        _run([*install, *harness.requirements], f"what {pinned} needs", by_hand)
        _take_files(harness, checkout.folder, folder)
    places = [] if harness.commit is None else [str(folder / "source"), str(folder / "stubs")]
    # Isolated (-I), so that neither the working directory nor PYTHONPATH can lend what is missing.
    imports = f"import sys; sys.path[:0] = {places}; import {harness.imports}"
    _run([str(python), "-I", "-c", imports], f"a {pinned} that imports", by_hand)
    packages = _run([str(python), "-m", "pip", "list", "--format", "json"], "a list of packages", by_hand)
    document = HarnessDocument(
        package=harness.package,
        version=harness.version if checkout is None else checkout.version,
        commit=None if checkout is None else harness.commit or _commit(checkout.folder),
        packages_sha256=hashlib.sha256(packages.encode()).hexdigest(),
    )
    manifest = {"recipe": _recipe(harness), "harness": document.model_dump(), "packages": json.loads(packages)}
    with whole_file(folder / _WHOLE) as file:
        file.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _take_files(harness: Harness, source: Path, folder: Path) -> None:
    """Copy the files of a harness's commit, whatever else lies in its checkout, such as keys; write its stubs."""
    with tarfile.open(fileobj=io.BytesIO(_git(source, "archive", "--format=tar", f"{harness.commit}").stdout)) as files:
        files.extractall(folder / "source", filter="data")
    for module, names in harness.stubs:
        path = folder / "stubs" / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name} = None\n" for name in names), encoding="utf-8")


def _run(command: list[str], wanted: str, advice: str) -> str:
    """Run one command of the set-up; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no message")
        raise HarnessMissing(f"expected {wanted}, found: {reason}; {advice}")
    return done.stdout


def _recipe(harness: Harness) -> str:
    recipe = [harness.package, harness.version, sorted(harness.requirements), list(sys.version_info[:2])]
    recipe += [harness.commit, harness.stubs] if harness.commit else []
    recipe += [harness.bare] if harness.bare else []
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]


def _manifest(folder: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads((folder / _WHOLE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
