"""The memory, cores and threads that this process may use: the machine's, or a container's limit if that is less."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_bytes_of_calls() -> int:
    """Return the bytes that all calls together may use: four fifths of the available memory."""
    return available_memory_bytes() * 4 // 5


def available_memory_bytes(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the machine's memory, or the limit of a container around us where that is less."""
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder, is_version_2 in _groups_around("memory", root, own):
        with contextlib.suppress(OSError, ValueError):  # not there, or `max`
            name = "memory.max" if is_version_2 else "memory.limit_in_bytes"
            least = min(least, int((folder / name).read_text()))
    return least


def available_cores(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the number of cores that this process may use, or a container's limit of CPU time if that is less.

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


def available_threads(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the number of threads that there may be: the least that the machine, this user and a container allow."""
    of_user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    least = int(Path("/proc/sys/kernel/pid_max").read_text())
    if of_user != resource.RLIM_INFINITY:
        least = min(least, of_user)
    for folder, _ in _groups_around("pids", root, own):
        with contextlib.suppress(OSError, ValueError):  # not there, or `max`
            least = min(least, int((folder / "pids.max").read_text()))
    return least


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
