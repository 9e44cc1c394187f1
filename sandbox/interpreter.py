"""The interpreter that jails run, and the shared libraries that a process of it has loaded."""

from __future__ import annotations

import os
import re
import sys


def base_interpreter() -> str:
    """Return the path of the interpreter that runs this program; the virtual environment stays outside."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


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


def _stem(name: str) -> str:
    return name.split(".so")[0].rstrip("-.0123456789")
