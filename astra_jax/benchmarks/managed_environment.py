"""The environment of a harness: a venv in the user's cache that is made once, whole or not at all.

The pins of the harnesses conflict with JAX's and with one another's, so no harness is imported into this process. No
code of a harness runs outside the jail. pip installs only wheels with locked digests, and that runs none of their code.
The files of a checkout are copied, not built. git and the harness itself run in the jail.

Decided: docs/decisions/benchmarks.md, “Programs of others are confined; where that cannot be, no harness runs”.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from astra_jax.benchmarks.harness_process import run_harness
from astra_jax.benchmarks.harnesses import Harness
from astra_jax.benchmarks.results import HarnessDocument, ProgramFailed
from astra_jax.errors import AstraError
from astra_jax.user_cache import user_cache
from synthesis.run.destination import write_whole
from synthesis.run.lock import run_lock

_WHOLE: Final = "whole.json"
"""The manifest of an environment, which is written last."""
_LOCKS: Final = Path(__file__).with_name("locks")


class HarnessMissing(AstraError):
    """The environment of a harness does not exist, or cannot be made; the message names the package."""


@dataclass(frozen=True)
class ManagedEnvironment:
    """A complete environment: programs in `bin`, the code of a checkout in `source`, and empty modules in `stubs`."""

    folder: Path
    document: HarnessDocument

    def program(self, name: str) -> Path:
        """Return the path of one of its programs."""
        return self.folder / "bin" / name

    def packages(self) -> Path:
        """Return the folder of its packages."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found


def environment_folder(harness: Harness) -> Path:
    """Return the folder of the environment of a harness."""
    return user_cache() / "harnesses" / harness.name


def managed_environment(harness: Harness) -> ManagedEnvironment:
    """Return the environment of a harness.

    Raises:
        HarnessMissing: the environment was not made, or was made for another version.
    """
    folder = environment_folder(harness)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        manifest = json.loads((folder / _WHOLE).read_text(encoding="utf-8"))
        if manifest["recipe"] == _recipe(harness):
            return ManagedEnvironment(folder, HarnessDocument.model_validate(manifest["harness"]))
    raise HarnessMissing(
        f"{folder} has no environment of {harness.package} {harness.version}; "
        f"make it by `astra evaluate setup {harness.name}`"
    )


def set_up(harness: Harness, source: Path | None = None) -> tuple[ManagedEnvironment, bool]:
    """Make the environment of a harness if there is no complete one; return it, and whether it was made now.

    `source` is a checkout of a harness that no package index has; its files are copied.

    Raises:
        HarnessMissing: a package is not available, or not for this Python; no partial environment is left.
        AnotherRun: another process is making the environment.
    """
    folder = environment_folder(harness)
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with run_lock(folder.with_name(f"{folder.name}.lock")):
        commit = None if source is None else _commit(harness, source)
        with contextlib.suppress(HarnessMissing):
            return managed_environment(harness), False
        if harness.source is not None and source is None:
            raise HarnessMissing(f"a checkout of {harness.source} is needed; {_get_one(harness)}")
        shutil.rmtree(folder, ignore_errors=True)  # half made, or of another version
        umask = os.umask(0o022)  # the jail's user reads the files that root makes here
        try:
            _make(harness, folder, source, commit)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.umask(umask)
        return managed_environment(harness), True


def _get_one(harness: Harness) -> str:
    return f"get one and name it by `astra evaluate setup {harness.name} --source DIR`"


def _commit(harness: Harness, source: Path) -> str:
    """Return the full name of the commit that the harness needs, in a checkout."""
    try:
        return _git(source, "rev-parse", "--verify", f"{harness.commit}^{{commit}}").decode().strip()
    except HarnessMissing as missing:
        raise HarnessMissing(
            f"{source} is not a checkout of {harness.source} ({missing}); {_get_one(harness)}"
        ) from None


def _git(source: Path, *arguments: str) -> bytes:
    """Return the output of git on a checkout; settings of a checkout can name programs, so git runs in the jail."""
    # The jail's user does not own the files: git would refuse them without `safe.directory`.
    command = ["git", "-c", "safe.directory=*", "-C", str(source.resolve()), *arguments]
    return _confined(command, [source], "git cannot read the checkout", "clone it so that all users can read it")


def _make(harness: Harness, folder: Path, source: Path | None, commit: str | None) -> None:
    python, lock = folder / "bin" / "python", _lock(harness)
    venv = [sys.executable, "-m", "venv", str(folder)]
    _run(venv, "Python cannot make a venv", "install Python's venv and ensurepip")
    install = [str(python), "-I", "-m", "pip", "install", "--quiet", "--no-input", "--no-cache-dir"]
    install += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock)]
    # The user's settings of pip hold for the index, and not for the place to install to.
    install += ["--no-user", "--target", "", "--prefix", str(folder)]
    advice = f"check pip's index, and whether there are wheels for Python {sys.version_info[0]}.{sys.version_info[1]}"
    _run(install, f"pip cannot install the wheels of {lock.name}", advice)
    # From here on Python in this folder runs in the jail alone: a package may add code that runs when Python starts.
    environment = ManagedEnvironment(folder, HarnessDocument(package=harness.package, version=harness.version))
    packages = sorted(
        (each.name, each.version) for each in importlib.metadata.distributions(path=[str(environment.packages())])
    )
    if source is not None and commit is not None:
        _take_files(harness, source, commit, environment)
    imports = [str(python), "-I", "-c", f"import {harness.imports}"]
    variables = {} if harness.writes_to is None else {harness.writes_to: "."}
    advice = f"check whether {lock} or the checkout lacks a module"
    _confined(imports, [folder], f"{harness.package} {harness.version} cannot be imported", advice, variables)
    digest = hashlib.sha256(json.dumps(packages).encode()).hexdigest()
    document = environment.document.model_copy(update={"commit": commit, "packages_sha256": digest})
    manifest = {"recipe": _recipe(harness), "harness": document.model_dump(), "packages": packages}
    write_whole(folder / _WHOLE, json.dumps(manifest, indent=2) + "\n")


def _take_files(harness: Harness, source: Path, commit: str, environment: ManagedEnvironment) -> None:
    """Copy the files of a checkout's commit, without other files such as keys; write the program that runs them."""
    if not hasattr(tarfile, "data_filter"):
        raise HarnessMissing(
            f"Python {platform.python_version()} cannot unpack {harness.source} safely; take Python 3.11.4 or later"
        )
    try:
        with tarfile.open(fileobj=io.BytesIO(_git(source, "archive", "--format=tar", commit))) as files:
            files.extractall(environment.folder / "source", filter="data")
    except (tarfile.TarError, OSError) as error:
        raise HarnessMissing(
            f"the files of {harness.source} cannot be unpacked: {error}; get another checkout"
        ) from None
    for module, names in harness.stubs:
        path = environment.folder / "stubs" / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name} = None\n" for name in names), encoding="utf-8")
    places = [environment.folder / "source" / harness.modules, environment.folder / "stubs"]
    (environment.packages() / "harness.pth").write_text("".join(f"{place}\n" for place in places), encoding="utf-8")
    if harness.program is not None:
        name, module = harness.program
        python = shlex.quote(str(environment.program("python")))
        environment.program(name).write_text(f'#!/bin/sh\nexec {python} -m {module} "$@"\n', encoding="utf-8")
        environment.program(name).chmod(0o755)
        (environment.folder / "data").symlink_to(environment.folder / "source" / "data")


def _run(command: list[str], failed: str, advice: str) -> None:
    """Run one command of the set-up that runs no code of a harness; `failed` and `advice` are words of its error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no message")
        raise HarnessMissing(f"{failed}: {reason}; {advice}")


def _confined(
    command: list[str], readable: list[Path], failed: str, advice: str, variables: dict[str, str] | None = None
) -> bytes:
    """Run one command with others' code in the jail, where there is no network; return its output."""
    with tempfile.TemporaryDirectory() as place:
        log, folder = Path(place) / "log", Path(place) / "folder"
        folder.mkdir()
        try:
            asyncio.run(run_harness(command, folder=folder, log=log, variables=variables or {}, readable=readable))
        except ProgramFailed as error:
            raise HarnessMissing(f"{failed}: {error.said}; {advice}") from None
        return log.read_bytes()


def _lock(harness: Harness) -> Path:
    return _LOCKS / f"{harness.name}.txt"


def _recipe(harness: Harness) -> str:
    recipe = [asdict(harness), _lock(harness).read_text(encoding="utf-8"), sys.version_info[:2]]
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]
