"""The memory, cores and threads that this process may use: the machine's, or a container's limit if that is less."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_memory_bytes(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the machine's memory, or the limit of a container around us where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(int(words[0]) for words in _limits("memory.max", root, own))])


def available_cores(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the number of cores that this process may use, or a container's limit of CPU time if that is less.

    A limit of 3.5 cores is 3, one of half a core is 1.
    """
    quotas = [int(quota) / int(period) for quota, period in _limits("cpu.max", root, own)]
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def available_threads(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the number of threads that there may be: the least that the machine, this user and a container allow."""
    of_user = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    allowed = [] if of_user == resource.RLIM_INFINITY else [of_user]
    allowed += [int(words[0]) for words in _limits("pids.max", root, own)]
    return min([int(Path("/proc/sys/kernel/pid_max").read_text()), *allowed])


def has_version_1(own: Path = _OWN) -> bool:
    """Say whether this host has cgroups of version 1, whose limits are not read here."""
    controllers = (set(line.split(":")[1].split(",")) for line in own.read_text().splitlines())
    return any(names & {"memory", "cpu", "pids"} for names in controllers)


def _limits(name: str, root: Path, own: Path) -> Iterator[list[str]]:
    """Yield the words of a limit's file in each cgroup (version 2) that limits us: ours, and every one above it."""
    for line in own.read_text().splitlines():
        if line.startswith("0::"):
            # In a container the path may be the host's, of which only the top is there.
            group = root / line[3:].lstrip("/")
            for folder in (group, *group.parents[: len(group.parts) - len(root.parts)]):
                with contextlib.suppress(OSError):
                    words = (folder / name).read_text().split()
                    if words[0] != "max":
                        yield words
