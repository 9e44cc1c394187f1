"""Limits over all calls of a worker, where the service may write its own cgroup v2."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_CONTROLLERS = ("memory", "pids")


def confine(
    pid: int,
    memory_bytes: int,
    processes: int,
    root: Path = Path("/sys/fs/cgroup"),
    own: Path = Path("/proc/self/cgroup"),
) -> Path | None:
    """Move a worker's launcher, before it has children, into a cgroup of its own; None where that is not possible.

    Not possible is the ordinary case: no cgroup v2, no `memory` and `pids` controllers, no right to write, or processes
    beside us in the same cgroup. Whoever runs the service can make it possible by delegating a cgroup to it.
    """
    lines = own.read_text().splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None:
        return None
    parent = root / path.lstrip("/")
    group = parent / f"sandbox-{pid}"
    try:
        available = (parent / "cgroup.controllers").read_text().split()
        if not set(_CONTROLLERS) <= set(available):
            return None
        # The kernel refuses this where the parent has processes of its own: cgroup v2 has them in leaves alone.
        (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
        group.mkdir()
        (group / "memory.max").write_text(str(memory_bytes))
        (group / "pids.max").write_text(str(processes))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        dissolve(group)
        return None
    return group


def dissolve(group: Path) -> None:
    """Remove the cgroup of a worker that has ended."""
    with contextlib.suppress(OSError):  # not there, or its last process is just ending
        group.rmdir()


def default_memory_bytes(workers: int) -> int:
    """Return the bytes that each worker may use: together four fifths of what there is.

    >>> default_memory_bytes(1) >= 4 * default_memory_bytes(4)
    True
    """
    return available_memory_bytes() * 4 // 5 // workers


def available_memory_bytes(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the machine's memory, or the limit of a container around us where that is less."""
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Every group above counts, too. In a container the path may be the host's, of which only the top is there.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents[: len(group.parts) - len(top.parts)]):
            with contextlib.suppress(OSError, ValueError):  # not there, or `max`
                least = min(least, int((folder / name).read_text()))
    return least
