"""The limits of a tool's call and of a harness's program: one table of the kernel's rlimits, and the count of threads.

A fork bomb meets two walls. The filter (`seccomp.py`) lets a tool start no process, and only threads of its own. Their
number is bounded here: by RLIMIT_NPROC in the tier `namespaces`, where each call has a user namespace of its own, and
by `Threads` in the tier `landlock`. There RLIMIT_NPROC would count all threads of the user, those of other programs as
well; so that limit stays as it is, and a filter makes the kernel ask the zygote for each new thread.
"""

from __future__ import annotations

import errno
import os
import resource

from sandbox.jail import linux, seccomp

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
    """Set a limit of this process for ever, at most to its present limit."""
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


class Threads:
    """Answers for every thread that a call wants to start."""

    def __init__(self, most_threads: int) -> None:
        """Install the filter: this process and all that it forks wait for `decide` when they want a new thread.

        `most_threads` is the number of threads that machine, user and container allow.
        """
        self._most_threads = most_threads
        self.listener = linux.listen(seccomp.thread_filter_program(linux.machine()))

    def decide(self) -> tuple[int, bool]:
        """Answer the next thread that waits; return its process, and whether the machine had room for one.

        Raises:
            OSError: its process has ended, or /proc does not show it.
        """
        call, thread = linux.hear(self.listener)
        try:
            with open(f"/proc/{thread}/status", "rb") as file:  # bytes: the tool chooses the thread's name in it
                status = dict(line.split() for line in file if line.startswith((b"Tgid:", b"Threads:")))
            process, threads = int(status[b"Tgid:"]), int(status[b"Threads:"])
        except (OSError, ValueError, KeyError) as error:  # then its threads cannot be counted
            linux.answer(self.listener, call, errno.EAGAIN)
            raise OSError(f"the threads of process {thread} cannot be counted: {error}") from error
        has_room = _has_room(self._most_threads)
        linux.answer(self.listener, call, 0 if threads <= THREADS_OF_A_CALL and has_room else errno.EAGAIN)
        return process, has_room


def _has_room(most_threads: int) -> bool:
    """Say whether another process can be had; one is forked only if the machine's threads are near `most_threads`."""
    with open("/proc/loadavg") as file:
        of_the_machine = int(file.read().split()[3].split("/")[1])
    if of_the_machine + THREADS_OF_A_CALL < most_threads:
        return True
    try:
        pid = linux.fork()
    except OSError:
        return False
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True
