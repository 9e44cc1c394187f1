"""How strongly tools are isolated here, and the processes that do it, as seen from the outside."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sandbox.interpreter import base_interpreter
from sandbox.jail.packages import FOLDER
from sandbox.packages import Packages

_JAIL = Path(__file__).parent / "jail"


class Tier(StrEnum):
    """Strengths of isolation, strongest first."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"


@dataclass(frozen=True)
class JailedPython:
    """The files an interpreter needs: its own, its standard library's and every shared library they load."""

    executable: str
    stdlib: str
    version: str
    libraries: dict[str, list[str]]  # path to the names under which it may be asked for
    loader: str
    loader_path: str


_DESCRIBE = """
import importlib, json, os, sys
import _ctypes
from sandbox.interpreter import loaded_libraries
# Terminals, databases of the host, other processes and TLS are of no use to a tool.
unused = {"_crypt", "_curses", "_curses_panel", "_dbm", "_gdbm", "_multiprocessing", "_posixshmem", "_ssl", "_tkinter",
          "nis", "ossaudiodev", "readline", "spwd", "syslog", "termios"}
for entry in sorted(os.listdir(os.path.dirname(_ctypes.__file__))):
    name = entry.split(".")[0]
    if entry.endswith(".so") and name not in unused and not name.startswith(("_test", "_ctypes_test", "xx", "_xx")):
        importlib.import_module(name)
print(json.dumps({"executable": os.path.realpath(sys.executable), "stdlib": os.path.dirname(os.__file__),
                  "version": "%d.%d" % sys.version_info[:2], "libraries": loaded_libraries()}))
"""


@functools.cache
def jailed_python() -> JailedPython:
    """Return the files that this program's interpreter needs; the virtual environment stays outside."""
    # A process of its own tells: to learn which libraries an extension loads, all extensions must be imported.
    program = f"import sys; sys.path.insert(0, {str(_JAIL.parent.parent)!r})\n{_DESCRIBE}"
    text = subprocess.run(
        [base_interpreter(), "-I", "-S", "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = json.loads(text)
    libraries: dict[str, list[str]] = {}
    loader = ""
    for path, names in found.pop("libraries").items():
        if os.path.basename(path).startswith("ld-"):
            loader = path
        elif not path.startswith(found["stdlib"] + "/"):
            libraries[path] = names
    return JailedPython(libraries=libraries, loader=loader, loader_path=_LOADERS[platform.machine()], **found)


_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}


def start_jail(tier: Tier, control_fd: int, max_children: int, packages: Packages) -> subprocess.Popen[bytes]:
    """Start one jail whose zygote listens on `control_fd`; the process ends when the jail does.

    Its tools may import `packages`.
    """
    python = jailed_python()
    in_namespaces = tier is Tier.NAMESPACES
    # A library that the interpreter needs as well has its names already.
    libraries = packages.libraries | python.libraries
    folder = [packages.folder] if packages.folder else []
    listed, readable = ([], []) if in_namespaces else _readable(python, [*libraries, *folder])
    plan: dict[str, Any] = {
        "tier": tier,
        "control_fd": control_fd,
        "max_children": max_children,
        "python": vars(python) | {"libraries": libraries},
        "listed": listed,
        "readable": readable,
        "packages_folder": packages.folder,
        "packages": {"folder": FOLDER if in_namespaces else packages.folder, "modules": packages.imported},
        "code_directory": "/harness" if in_namespaces else str(_JAIL.parent.parent.resolve()),
    }
    program = (
        f"import sys; sys.path.insert(0, {str(_JAIL.parent.parent)!r}); from sandbox.jail import launcher; "
        "launcher.main()"
    )
    return subprocess.Popen(
        [base_interpreter(), "-I", "-S", "-c", program, json.dumps(plan)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={},
        pass_fds=(control_fd,),
        start_new_session=True,
    )


def _readable(python: JailedPython, others: list[str]) -> tuple[list[str], list[str]]:
    """The folders whose entries a tool may list, and the paths that it may read, where it sees the host's own files.

    Packages that lie in the interpreter's own folder are not the standard library's: their names can be listed, as the
    importer must list what lies beside them, and not one of their files be read.
    """
    entries = [
        entry.path
        for entry in os.scandir(python.stdlib)
        if entry.name not in ("site-packages", "dist-packages") and not entry.is_symlink()
    ]
    return [python.stdlib], [*sorted(entries), *others, "/usr/share/zoneinfo"]


def layers_of(tier: Tier, pid: int) -> dict[str, bool]:
    """Return which namespaces of a launcher differ from ours, by the kernel's own account."""
    names = {"user": "user", "mount": "mnt", "pid": "pid_for_children", "net": "net", "ipc": "ipc", "uts": "uts"}
    names["cgroup"] = "cgroup"
    if tier is not Tier.NAMESPACES:
        return {f"{name}_namespace": False for name in names}
    return {
        f"{name}_namespace": os.readlink(f"/proc/{pid}/ns/{entry}") != os.readlink(f"/proc/self/ns/{entry}")
        for name, entry in names.items()
    }
