"""The component: built once from the guest's sources, compiled for this machine, kept in the user's cache."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.errors import SandboxError

if TYPE_CHECKING:
    from wasmtime import Engine

log = logging.getLogger("sandbox")
_SANDBOX = Path(__file__).parent.parent
_GUEST_FILES = ("__init__.py", "jail/__init__.py", "jail/determinism.py", "jail/streams.py", "jail/tool_call.py")
_INTERFACE = """
package astra:sandbox;
world tool {
  export serve: func(request: string, code: string) -> string;
}
"""
_STACK_BYTES = 2 << 20  # as much as wasmtime allows without changing the process's own
_BUILD_SECONDS = 900.0


class ComponentUnavailable(SandboxError):
    """There is no component and none can be built; the message says what is missing."""


def engine() -> Engine:
    """Make the engine by which components are compiled and run; both sides must agree."""
    from wasmtime import Config, Engine

    config = Config()
    config.max_wasm_stack = _STACK_BYTES
    return Engine(config)


@functools.cache
def compiled_component() -> Path:
    """Return the compiled component's file, built when the cache has none that fits.

    Building takes half a minute of one core. The file is machine code that wasmtime trusts: the cache must be ours.

    Raises:
        ComponentUnavailable: a package is missing, the build fails, or others may write in the cache.
    """
    try:
        versions = [importlib.metadata.version(name) for name in ("wasmtime", "componentize-py")]
    except importlib.metadata.PackageNotFoundError as missing:
        raise ComponentUnavailable(
            f"the tier `wasm` needs the package {missing.name}: pip install 'astra-jax[wasm]'"
        ) from None
    cache = _cache_folder()
    digest = hashlib.sha256("\0".join([*versions, platform.machine(), str(_STACK_BYTES), _INTERFACE]).encode())
    for path in _guest_sources().values():
        digest.update(path.read_bytes())
    target = cache / f"tool-{digest.hexdigest()[:32]}.cwasm"
    if not target.exists() or not _loads(target):
        log.info("building the WebAssembly component %s; this takes a minute, once", target)
        _write_atomically(target, _compile(_build()))
    return target


def _guest_sources() -> dict[str, Path]:
    """Where the component's modules come from, by where they go."""
    sources = {f"sandbox/{name}": _SANDBOX / name for name in _GUEST_FILES}
    return sources | {"guest.py": Path(__file__).parent / "guest.py"}


def _cache_folder() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "astra-sandbox"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ComponentUnavailable(f"others may write in {folder}, whose files are run as machine code: chmod 700 it")
    return folder


def _build() -> bytes:
    """CPython, its standard library as far as it was imported, and the guest, as one portable component."""
    with tempfile.TemporaryDirectory(prefix="sandbox-component-") as folder:
        root = Path(folder)
        for name, source in _guest_sources().items():
            path = root / "app" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read_bytes())
        (root / "tool.wit").write_text(_INTERFACE)
        (root / "none/lib/python3/site-packages").mkdir(parents=True)  # instead of this environment's packages
        program = "import sys, componentize_py; sys.argv[0] = 'componentize-py'; componentize_py.script()"
        command = [sys.executable, "-c", program, "-q", "-d", f"{root}/tool.wit", "-w", "tool"]
        command += ["componentize", "guest", "-p", f"{root}/app", "-o", f"{root}/tool.wasm"]
        environment = {"VIRTUAL_ENV": f"{root}/none", "PATH": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            subprocess.run(
                command, env=environment, cwd=root, capture_output=True, text=True, check=True, timeout=_BUILD_SECONDS
            )
        except subprocess.CalledProcessError as error:
            raise ComponentUnavailable(f"componentize-py failed: {error.stderr[-2000:]}") from None
        except subprocess.TimeoutExpired:
            raise ComponentUnavailable(f"componentize-py took more than {_BUILD_SECONDS:g} s") from None
        return (root / "tool.wasm").read_bytes()


def _compile(component: bytes) -> bytes:
    from wasmtime.component import Component

    return bytes(Component(engine(), component).serialize())


def _loads(path: Path) -> bool:
    """Whether the file is whole and made for this processor."""
    from wasmtime import WasmtimeError
    from wasmtime.component import Component

    try:
        Component.deserialize_file(engine(), str(path))
    except WasmtimeError as error:
        log.warning("%s is of no use here: %s", path, error)
        return False
    return True


def _write_atomically(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
