"""The limits of a tool's call and of a harness's program, in one table of the kernel's rlimits.

A fork bomb meets two walls: the filter (`seccomp.py`) lets a tool start no process and only threads of its own; their
number is bounded here in the tier `namespaces`, and by `threads.py` in the tier `landlock`, where RLIMIT_NPROC would
count all processes of the user.
"""

from __future__ import annotations

import resource

THREADS_OF_A_CALL = 64  # besides its first
TMP_BYTES = 16 << 20
_NONE = resource.RLIM_INFINITY

TABLE: dict[str, tuple[int, int, int]] = {
    # name: (the zygote, a tool's call, a program)
    "CORE": (0, 0, 0),
    "MEMLOCK": (0, 0, 0),
    "MSGQUEUE": (0, 0, 0),
    "FSIZE": (TMP_BYTES, TMP_BYTES, 8 << 30),
    # Unread bytes in a call's sockets and pipes are memory of the kernel, so a call has few descriptors.
    "NOFILE": (256, 64, 4096),
    # Counted in each user namespace apart from Linux 5.14 on, and for all of a user's together before.
    "NPROC": (_NONE, 1 + THREADS_OF_A_CALL, 4096),
    # "AS" and "CPU" are set for each call and each program: its own limits of memory and processor time.
}


def set_limit(name: str, most: int) -> None:
    """Set a limit of this process for ever; never above the one that it has."""
    number = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(number)[1]
    most = most if hard == _NONE else min(most, hard)
    resource.setrlimit(number, (most, most))


def limit_zygote() -> None:
    """Set the limits that the zygote can live with; each call inherits them and lowers NOFILE and NPROC."""
    for name, (of_zygote, _, _) in TABLE.items():
        if of_zygote != _NONE:
            set_limit(name, of_zygote)


def limit_program(memory_bytes: int | None, cpu_seconds: int | None) -> None:
    """Set the limits of a program; memory and processor time are those of each of its processes."""
    for name, (_, _, of_program) in TABLE.items():
        set_limit(name, of_program)
    for name, most in (("AS", memory_bytes), ("CPU", cpu_seconds)):
        if most is not None:
            set_limit(name, most)
