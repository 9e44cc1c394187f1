"""The interpreter that jails run: its files, and the shared libraries that a process of it has loaded."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).parents[1])
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_DESCRIBE = """
import importlib, json, os
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


def base_interpreter() -> str:
    """Return the path of the interpreter that runs this program; the virtual environment stays outside."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def isolated_command(program: str, *arguments: str) -> list[str]:
    """Return the command line that runs a Python program with this package and the standard library, and no other."""
    start = f"import sys; sys.path.insert(0, {_ROOT!r})\n{program}"
    return [base_interpreter(), "-I", "-S", "-c", start, *arguments]


@functools.cache
def jailed_python() -> dict[str, Any]:
    """Return the files that this program's interpreter needs, as the plan of a jail holds them.

    They are its own (`executable`), those of the folder `stdlib`, and every shared library that these load: `libraries`
    maps its path to the names under which it may be asked for, and `loader` has a `loader_path`. The virtual
    environment stays outside.
    """
    # A process of its own tells: to learn which libraries an extension loads, all extensions must be imported.
    command = isolated_command(_DESCRIBE)
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    loaded = found["libraries"]
    found["libraries"] = {
        path: names
        for path, names in loaded.items()
        if not is_loader(path) and not path.startswith(found["stdlib"] + "/")
    }
    loader = next((path for path in loaded if is_loader(path)), "")
    return {**found, "loader": loader, "loader_path": _LOADERS[platform.machine()]}


def loaded_libraries() -> dict[str, list[str]]:
    """Return the shared libraries that this process has loaded, by path, with the names that they are asked for by."""
    with open("/proc/self/maps") as file:
        paths = sorted(set(re.findall(r"\s(/\S*\.so\S*)$", file.read(), re.MULTILINE)))
    libraries = {}
    for path in paths:
        folder, name = os.path.split(path)
        stem = _stem(name)
        libraries[path] = sorted(
            entry
            for entry in os.listdir(folder)
            if _stem(entry) == stem and os.path.realpath(os.path.join(folder, entry)) == path
        )
    return libraries


def is_loader(path: str) -> bool:
    """Say whether a library is the dynamic loader, which has a place of its own in a jail."""
    return os.path.basename(path).startswith("ld-")


def _stem(name: str) -> str:
    return name.split(".so")[0].rstrip("-.0123456789")
