"""The root of a confined process: an empty file system in memory, in which chosen files of the host are shown."""

from __future__ import annotations

import os

from sandbox.jail import linux

OUTSIDE, INSIDE = "/outside", "/inside"
"""Paths of the host's root and of the new one, between `begin` and `enter`."""


def begin(options: str) -> None:
    """Make a new root in this mount namespace; `options` are those of its tmpfs."""
    os.umask(0o022)
    # Private first: mounts made below must not travel back to the host's namespace.
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("root", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    os.chdir("/tmp")
    for directory in (OUTSIDE, INSIDE):
        os.mkdir(directory[1:])
    linux.mount(INSIDE[1:], INSIDE[1:], None, linux.MS_BIND)  # a mount point of its own, to become the root
    linux.pivot_root(".", OUTSIDE[1:])
    os.chdir("/")


def show(path: str, at: str = "", flags: int = 0) -> str:
    """Show a file or folder of the host in the new root, by default at the same path; return its path meanwhile."""
    source, target = OUTSIDE + path, INSIDE + (at or path)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.mount(source, target, None, linux.MS_BIND | flags)
    return target


def enter() -> None:
    """Make the new root, read-only, the root of this mount namespace; the host's root is gone then."""
    os.chdir(INSIDE)
    # pivot_root(2)'s own idiom: the old root comes to lie over the new one, and is taken off.
    linux.pivot_root(".", ".")
    linux.unmount_detached(".")
    os.chdir("/")
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("none", "/", None, flags)
