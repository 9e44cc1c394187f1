"""Limits over all calls of a worker, where the service may write its own cgroup v2; and what a container leaves us."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CONTROLLERS = ("memory", "pids")


def confine(
    pid: int,
    memory_bytes: int,
    processes: int,
    root: Path = _ROOT,
    own: Path = _OWN,
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


def available_memory_bytes(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the machine's memory, or the limit of a container around us where that is less."""
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder, is_version_2 in _groups_around("memory", root, own):
        with contextlib.suppress(OSError, ValueError):  # not there, or `max`
            name = "memory.max" if is_version_2 else "memory.limit_in_bytes"
            least = min(least, int((folder / name).read_text()))
    return least


def available_cores(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the cores that we may run on, or what a container's limit of CPU time comes to where that is less.

    A limit of 3.5 cores is 3, one of half a core is 1.
    """
    least = float(len(os.sched_getaffinity(0)))
    for folder, is_version_2 in _groups_around("cpu", root, own):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # not there, or `max`
            if is_version_2:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # version 1 says -1 for none
                least = min(least, quota / period)
    return max(1, int(least))


def _groups_around(controller: str, root: Path, own: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the groups that limit us, and whether they are of cgroup v2: ours, and every one above it."""
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        is_version_2 = controllers == ""
        if not is_version_2 and controller not in controllers.split(","):
            continue
        top = root if is_version_2 else root / controller
        # In a container the path may be the host's, of which only the top is there.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents[: len(group.parts) - len(top.parts)]):
            yield folder, is_version_2
