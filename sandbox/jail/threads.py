"""How many threads a call may have where its user has others besides: each new one waits for a word of the zygote.

RLIMIT_NPROC counts all threads of a user. A worker without a user namespace of its own shares the user with other
programs, and their threads would make a tool fail. There the limit stays as it is, and a filter makes the kernel ask.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource

from sandbox.jail import linux, seccomp
from sandbox.jail.limits import THREADS_OF_A_CALL

_TEXT_BYTES = 8192


class Threads:
    """Answers for every thread that a call wants to start."""

    def __init__(self) -> None:
        """Install the filter: this process and all that it forks wait for `decide` when they want a new thread."""
        self.listener = linux.listen(seccomp.thread_filter_program(linux.machine()))
        self._limit = min(_limits_of_the_surroundings())

    def decide(self) -> tuple[int, bool]:
        """Answer the next thread that waits; return its process, and whether there was room for one.

        Raises:
            OSError: its process has ended, or /proc does not show it.
        """
        call, thread = linux.hear(self.listener)
        try:
            status = dict(line.split(":", 1) for line in _text(f"/proc/{thread}/status").splitlines())
        except OSError:  # it has ended, or /proc hides it, and then its threads cannot be counted
            linux.answer(self.listener, call, errno.EAGAIN)
            raise
        process, threads = int(status["Tgid"]), int(status["Threads"])
        has_room = self._has_room()
        linux.answer(self.listener, call, 0 if threads <= THREADS_OF_A_CALL and has_room else errno.EAGAIN)
        return process, has_room

    def _has_room(self) -> bool:
        """Whether another process can be had; tried only where the machine has so many that it might be none."""
        everybodys = int(_text("/proc/loadavg").split()[3].split("/")[1])
        if everybodys + THREADS_OF_A_CALL < self._limit:
            return True
        try:
            pid = linux.fork()
        except OSError:
            return False
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return True


def _limits_of_the_surroundings() -> list[int]:
    """How many threads there may be: on the machine, of this user, and in each group around us."""
    of_user = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    found = [int(_text("/proc/sys/kernel/pid_max")), *([of_user] if of_user != resource.RLIM_INFINITY else [])]
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            group = f"/sys/fs/cgroup{'/pids' if controllers else ''}{path}".rstrip("/")
            while group.startswith("/sys/fs/cgroup"):
                with contextlib.suppress(OSError, ValueError):  # not there, or `max`
                    found.append(int(_text(f"{group}/pids.max")))
                group = group.rpartition("/")[0]
    return found


def _text(path: str) -> str:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, _TEXT_BYTES).decode()
    finally:
        os.close(fd)
