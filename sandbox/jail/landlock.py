"""The Landlock rules of a call, for the kernels that have it."""

from __future__ import annotations

import os

from sandbox.jail import linux

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 10, 1 << 11
_FS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP_BIND_AND_CONNECT = 3  # from ABI 4
_ABSTRACT_SOCKETS_AND_SIGNALS = 3  # from ABI 6


def ruleset(tier: str, readable: list[str], listed: list[str]) -> int:
    """Return the descriptor of the rules for a tier; -1 for none.

    With namespaces the mounts decide which files can be read and written, and Landlock adds the rest: nothing can be
    executed, no device, socket or FIFO made, no TCP, no signal out of the call. Without namespaces the paths in
    `readable` are all that can be read, the names below the paths in `listed` can be listed, and nothing can
    be written.

    Raises:
        OSError: the tier needs Landlock, and the kernel has none.
    """
    abi = linux.landlock_abi()
    if tier == "namespaces" and abi == 0:
        return -1
    if abi == 0:
        raise OSError("this kernel has no Landlock (or not in its list of active security modules)")
    if tier == "namespaces":
        handled = _EXECUTE | _MAKE_CHAR | _MAKE_SOCK | _MAKE_FIFO | _MAKE_BLOCK
    else:
        handled = _FS_BY_ABI[min(abi, 5)]
    network = _TCP_BIND_AND_CONNECT if abi >= 4 else 0
    scopes = _ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0
    rules = linux.landlock_create(handled, network, scopes, abi)
    for path in readable:
        if os.path.exists(path):
            linux.landlock_allow_path(rules, path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
    for path in listed:
        linux.landlock_allow_path(rules, path, _READ_DIR)
    return rules
