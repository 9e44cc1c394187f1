"""The Landlock rules of a call, for the kernels that have it."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable

from sandbox.jail import linux

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 10, 1 << 11
_FS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP_BIND_AND_CONNECT = 3  # from ABI 4
_ABSTRACT_SOCKETS_AND_SIGNALS = 3  # from ABI 6


def version() -> int:
    """Return the kernel's Landlock ABI, 0 where it has none or has it switched off."""
    try:
        return linux.call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def ruleset(tier: str, readable: list[str], listed: list[str]) -> int:
    """Return the descriptor of the rules for a tier; -1 for none.

    With namespaces the mounts decide which files can be read and written, and Landlock adds the rest: nothing can be
    executed, no device, socket or FIFO made, no TCP, no signal out of the call. Without namespaces the paths in
    `readable` are all that can be read, the names below the paths in `listed` can be listed, and nothing can
    be written.

    Raises:
        OSError: the tier needs Landlock, and the kernel has none.
    """
    abi = version()
    if tier == "namespaces" and abi == 0:
        return -1
    if abi == 0:
        raise OSError("this kernel has no Landlock (or not in its list of active security modules)")
    if tier == "namespaces":
        handled = _EXECUTE | _MAKE_CHAR | _MAKE_SOCK | _MAKE_FIFO | _MAKE_BLOCK
    else:
        handled = _FS_BY_ABI[min(abi, 5)]
    denied = struct.pack("QQQ", handled, _TCP_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS)
    denied = denied[: 8 if abi < 4 else 16 if abi < 6 else 24]
    rules = linux.call("landlock_create_ruleset", denied, ctypes.c_size_t(len(denied)), ctypes.c_uint32(0))
    for path in readable:
        if os.path.exists(path):
            _allow(rules, path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
    for path in listed:
        _allow(rules, path, _READ_DIR)
    return rules


def _allow(rules: int, path: str, access: int) -> None:
    """Allow `access` beneath `path`."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        beneath = struct.pack("=Qi", access, fd)
        linux.call("landlock_add_rule", ctypes.c_int(rules), ctypes.c_int(1), beneath, ctypes.c_uint32(0))
    finally:
        os.close(fd)


def enforcer(rules: int) -> Callable[[], None]:
    """Return a function that enforces the rules on its process for ever; needs no_new_privs."""
    return linux.bound("landlock_restrict_self", ctypes.c_int(rules), ctypes.c_uint32(0))
