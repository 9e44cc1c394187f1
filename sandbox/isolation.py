"""The tiers of isolation, and the start of a jail, as seen from outside of it."""

from __future__ import annotations

import json
import os
import subprocess
from enum import StrEnum
from pathlib import Path
from typing import Any

from sandbox.cgroup import available_threads
from sandbox.interpreter import isolated_command, jailed_python
from sandbox.jail.packages import FOLDER
from sandbox.packages import Packages


class Tier(StrEnum):
    """Strengths of isolation, strongest first."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"


def start_jail(tier: Tier, control_fd: int, max_children: int, packages: Packages) -> subprocess.Popen[bytes]:
    """Start one jail whose zygote listens on `control_fd`; the process ends when the jail does.

    Its tools may import `packages`.
    """
    python = jailed_python()
    in_namespaces = tier is Tier.NAMESPACES
    # A library that the interpreter needs as well has its names already.
    libraries = packages.libraries | python["libraries"]
    folder = [packages.folder] if packages.folder else []
    listed, readable = ([], []) if in_namespaces else readable_paths(python["stdlib"], [*libraries, *folder])
    plan: dict[str, Any] = {
        "tier": tier,
        "control_fd": control_fd,
        "max_children": max_children,
        "most_threads": available_threads(),
        "python": python | {"libraries": libraries},
        "listed": listed,
        "readable": readable,
        "packages_folder": packages.folder,
        "packages": {"folder": FOLDER if in_namespaces else packages.folder, "modules": packages.imported},
        "code_directory": "/harness" if in_namespaces else str(Path(__file__).resolve().parents[1]),
    }
    return subprocess.Popen(
        isolated_command("from sandbox.jail import launcher; launcher.main()", json.dumps(plan)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={},
        pass_fds=(control_fd,),
        start_new_session=True,
    )


def readable_paths(stdlib: str, others: list[str]) -> tuple[list[str], list[str]]:
    """Return the folders whose entries a tool may list, and the paths that it may read, where it sees the host's files.

    The importer must list the interpreter's folder, so a tool can list the names of packages in it, and read none.
    """
    entries = [
        entry.path
        for entry in os.scandir(stdlib)
        if entry.name not in ("site-packages", "dist-packages") and not entry.is_symlink()
    ]
    return [stdlib], [*sorted(entries), *others, "/usr/share/zoneinfo"]
