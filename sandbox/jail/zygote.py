"""The zygote, process 1 of a jail: a warm interpreter that forks a child for each call and never reads a request.

The server sends a `CALL` message for each call over a SOCK_SEQPACKET pair, with the descriptor of the call's channel.
The child alone reads that channel. The zygote enforces the time limits, and sends one `ENDED` message when the child
has ended. When the server closes its end of the pair, the zygote exits, and the kernel ends everything in the jail.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import heapq
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from sandbox.jail import determinism, harness, landlock, launcher, limits, linux, packages, seccomp

CALL = struct.Struct("<cQddQ")  # b"c", call id, wall seconds, CPU seconds, memory bytes; + one descriptor
CANCEL = struct.Struct("<cQ")  # b"k", call id
# b"e", call id, wait status, why, wall seconds, CPU seconds, max RSS bytes; for NOT_RESTRICTED the reason follows
ENDED = struct.Struct("<cQiBddQ")
BY_ITSELF, WALL_LIMIT, CPU_LIMIT, CANCELLED, NOT_STARTED, NOT_RESTRICTED = range(6)

# Arguments: the function that enters the user namespace, channel, witness, CPU seconds, memory bytes.
Run = Callable[[Callable[[], None] | None, int, int, float, int], NoReturn]

DEMOTED_AFTER_SECONDS = 0.1
_clock_gettime = time.clock_gettime  # the real clock, before `determinism` replaces it for the tools
_DEMOTED_BY = 19  # nice levels, the most there are, since each thread of a call adds its own weight
_PRELOADED = (
    "abc array ast base64 binascii bisect calendar cmath collections collections.abc colorsys "
    "contextlib copy csv dataclasses datetime decimal difflib enum fnmatch fractions functools glob "
    "hashlib heapq hmac inspect io ipaddress itertools json keyword locale math numbers "
    "operator os pathlib pprint queue random re secrets shlex _strptime sqlite3 statistics string struct "
    "textwrap threading time timeit traceback types typing unicodedata urllib.parse uuid warnings weakref zlib "
    "zoneinfo encodings.latin_1 encodings.ascii encodings.utf_16 "
)
# More modules here would make the fork for every call slower, so the few calls that need a rare module import it.


class _Slot:
    """A place for one call at a time: a mount namespace with a /tmp of its own, and a user namespace."""

    __slots__ = ("enter_user_namespace", "fresh_since", "namespace", "pristine", "root")

    def __init__(self, namespace: int, root: int, user: int) -> None:
        self.namespace, self.root = namespace, root
        self.enter_user_namespace = linux.user_namespace_enterer(user) if user >= 0 else None
        self.note()

    def note(self) -> None:
        """Remember the state of an untouched /tmp."""
        self.pristine = self._changed_at() if self.root >= 0 else 0
        self.fresh_since = time.monotonic()

    def is_dirty(self, used_since: float) -> bool:
        """Say whether a call may have changed /tmp: if so its ctime differs, which no process can set back.

        Some kernels count ctime in ticks. So a call within 50 ms of the mount counts as a change; its ctime may agree.
        """
        return self.root >= 0 and (used_since - self.fresh_since < 0.05 or self._changed_at() != self.pristine)

    def _changed_at(self) -> int:
        return os.stat("tmp", dir_fd=self.root).st_ctime_ns


@dataclass(eq=False, slots=True)
class _Child:
    """A call in flight."""

    call: int
    pid: int
    slot: _Slot
    witness: int
    started: float
    deadline: float
    cpu_seconds: float
    why: int = BY_ITSELF
    demoted: bool = False

    def testimony(self) -> bytes:
        """Return the text that the process wrote to its witness, after its end; this can be called once."""
        try:
            return os.read(self.witness, 1024)
        finally:
            os.close(self.witness)


def main() -> NoReturn:
    """Serve calls until the server goes away."""
    linux.die_with_parent()  # the launcher's own call was undone when it became another user
    with open(int(sys.argv[1])) as file:
        plan = json.load(file)
    os.chdir("/")  # out of the folder of this code
    log = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(0, 2)  # no tool writes into the server's log
    try:
        changes = plan["tier"] == "namespaces"
        own_filter, filter_of_calls = seccomp.filter_programs(linux.machine(), changes=changes)
        run, shared_bytes = _prepared(dict(plan), linux.filter_installer(filter_of_calls))
        zygote = Zygote(plan["control_fd"], plan["slots"], run, shared_bytes)
        if plan["tier"] != "namespaces":
            zygote.threads = limits.Threads(plan["most_threads"])
        linux.filter_installer(own_filter)()
        zygote.serve()
    except BaseException as error:  # noqa: BLE001  # any error belongs in the log
        traceback.print_exc(file=log)
        launcher.say_failure(plan["control_fd"], error)
        os._exit(1)
    os._exit(0)


def _prepared(plan: dict, install_filter: Callable[[], None]) -> tuple[Run, int]:
    """Return the function that a call's process runs, and the bytes of packages that it shares with the zygote."""
    tier, streams, begin = plan["tier"], harness.Streams(), determinism.install()
    ruleset, shared_bytes = landlock.ruleset(tier, plan["readable"], plan["listed"]), 0
    for name in _PRELOADED.split():
        __import__(name)
    if plan["packages"]["modules"]:
        before = _resident_bytes_of_a_child()
        begin = packages.load(**plan["packages"], begin=begin, tier=tier)
        shared_bytes = max(0, _resident_bytes_of_a_child() - before)
    limits.limit_zygote()
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    harness.forget_the_outside(plan)
    harness.rehearse(begin)
    streams.install()
    gc.unfreeze()  # the rehearsals have frozen their garbage, too
    gc.collect()
    gc.freeze()
    gc.disable()  # its counters would tell a call how many calls came before it
    return harness.runner(tier, install_filter, ruleset, streams, begin, address_space_bytes()), shared_bytes


class Zygote:
    """Forks the processes of one worker's calls, watches them, and reports how they ended."""

    def __init__(self, control_fd: int, slots: list[list[int]], run: Run, shared_bytes: int) -> None:
        """Take over the control socket and the slots; the first slot is the zygote's own.

        `shared_bytes` of packages do not count as a call's use of memory.
        """
        self._control = socket.socket(fileno=control_fd)
        self._control.setblocking(False)
        self._run, self._shared_bytes = run, shared_bytes
        self._demoted_niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _DEMOTED_BY)
        self._children: dict[int, _Child] = {}
        self._pid_of_call: dict[int, int] = {}
        self._timers: list[tuple[float, int, int]] = []  # (time of the next look, pid, call)
        self.threads: limits.Threads | None = None
        """Decides whether a call may start a thread; None if the kernel limits the threads by itself."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._slots = [_Slot(*fds) for fds in slots]
        self._base_namespace = self._slots.pop(0).namespace
        self._itself = linux.pidfd_open(1) if self._base_namespace >= 0 else -1
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve calls until the server goes away."""
        self._control.send(json.dumps({"ready": True}).encode())
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        if self.threads is not None:
            poll.register(self.threads.listener, select.POLLIN)
        control_fd, wake_read = self._control.fileno(), self._wake_read
        while True:
            timeout = None
            if self._timers:
                timeout = max(0, (self._timers[0][0] - time.monotonic()) * 1000)
            for fd, _ in poll.poll(timeout):
                if fd == wake_read:
                    os.read(wake_read, 4096)
                elif fd != control_fd and self.threads is not None:
                    self._answer(self.threads)
                elif fd == control_fd and not self._receive():
                    return
            self._bury()
            self._look_at_the_clock()

    def _answer(self, threads: limits.Threads) -> None:
        """Let a call start a thread; if the machine has no room for it, end the call as a failure of the service."""
        try:
            pid, has_room = threads.decide()
        except OSError:  # the call has just ended
            return
        if not has_room and pid in self._children:
            self._kill(pid, NOT_STARTED)

    def _receive(self) -> bool:
        """Handle all waiting messages; return False if the server has gone."""
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._control, 256, 1)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                return False
            if not message:
                return False
            if message[:1] == b"k":
                self._kill(self._pid_of_call.get(CANCEL.unpack(message)[1]), CANCELLED)
                continue
            _, call, wall_seconds, cpu_seconds, memory_bytes = CALL.unpack(message)
            self._start(call, descriptors[0], wall_seconds, cpu_seconds, memory_bytes)

    def _start(self, call: int, channel: int, wall_seconds: float, cpu_seconds: float, memory_bytes: int) -> None:
        started, slot, opened = time.monotonic(), None, [channel]
        try:
            testimony, witness = os.pipe2(os.O_CLOEXEC)
            opened += (testimony, witness)
            slot = self._slots.pop()
            # Opened anew for each call: a flag that a tool sets on an open file holds for all processes that share it.
            linux.open_null_as(0, 1, 2)
            pid = self._fork(slot)
        except (OSError, IndexError) as error:
            for fd in opened:
                os.close(fd)
            if slot is not None:
                self._slots.append(slot)
            self._report(call, getattr(error, "errno", None) or errno.EAGAIN, NOT_STARTED, 0.0, 0.0, 0)
            return
        if pid == 0:
            self._run(slot.enter_user_namespace, channel, witness, cpu_seconds, memory_bytes)
        # A process group of its own, which the tool cannot leave: all threads of the call can be demoted at once.
        with contextlib.suppress(ProcessLookupError):
            os.setpgid(pid, pid)
        os.close(channel)
        os.close(witness)
        child = _Child(call, pid, slot, testimony, started, started + wall_seconds, cpu_seconds)
        self._children[pid] = child
        self._pid_of_call[call] = pid
        first_look = min(wall_seconds, cpu_seconds, DEMOTED_AFTER_SECONDS)
        heapq.heappush(self._timers, (started + first_look, pid, call))

    def _fork(self, slot: _Slot) -> int:
        """Fork a call's process; in the tier `namespaces` in its slot's /tmp, as process 1 of a PID namespace.

        The zygote enters the namespaces and comes back, since each system call in the child would copy pages of memory.
        """
        if self._itself < 0:
            return linux.fork()
        pid = -1
        try:
            linux.setns(slot.namespace, linux.CLONE_NEWNS)
            os.chdir("/tmp")
            linux.unshare(linux.CLONE_NEWPID)
            pid = linux.fork()
        finally:
            if pid:  # the child stays in the namespaces
                linux.setns(self._itself, linux.CLONE_NEWPID)
                linux.setns(self._base_namespace, linux.CLONE_NEWNS)
        return pid

    def _bury(self) -> None:
        while self._children:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self._children.pop(pid)
            del self._pid_of_call[child.call]
            wall_seconds = time.monotonic() - child.started
            cpu_seconds = usage.ru_utime + usage.ru_stime
            why = child.why
            if why == BY_ITSELF and status == signal.SIGKILL and cpu_seconds >= child.cpu_seconds:
                why = CPU_LIMIT  # RLIMIT_CPU has ended it before the zygote looked
            testimony = child.testimony()
            if why == BY_ITSELF and testimony != harness.RESTRICTED:
                why = NOT_RESTRICTED
            if why == NOT_STARTED:  # `_answer` has killed it for want of a thread
                status = errno.EAGAIN
            if child.slot.is_dirty(child.started):
                linux.setns(child.slot.namespace, linux.CLONE_NEWNS)
                linux.unmount_detached("/tmp")
                launcher.mount_tmp()
                linux.setns(self._base_namespace, linux.CLONE_NEWNS)
                child.slot.note()
            self._slots.append(child.slot)
            rss_bytes = max(0, usage.ru_maxrss * 1024 - self._shared_bytes)
            reason = testimony if why == NOT_RESTRICTED else b""
            self._report(child.call, status, why, wall_seconds, cpu_seconds, rss_bytes, reason)

    def _report(self, call: int, status: int, why: int, wall: float, cpu: float, rss: int, reason: bytes = b"") -> None:
        message = ENDED.pack(b"e", call, status, why, wall, cpu, rss) + reason
        while True:
            try:
                self._control.send(message)
                return
            except BlockingIOError:
                select.select([], [self._control], [])  # no report may be lost

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, pid, call = heapq.heappop(self._timers)
            child = self._children.get(pid)
            if child is None or child.call != call:  # the call has ended, and another may have its pid
                continue
            if now >= child.deadline:
                self._kill(pid, WALL_LIMIT)
                continue
            try:
                used = _clock_gettime((~pid << 3) | 2)  # its CPU clock, as clock_getcpuclockid(3) computes it
            except OSError:  # the process has just ended; its SIGCHLD is on the way
                continue
            if used >= child.cpu_seconds:
                self._kill(pid, CPU_LIMIT)
                continue
            if not child.demoted and now - child.started >= DEMOTED_AFTER_SECONDS:
                child.demoted = True
                os.setpriority(os.PRIO_PGRP, pid, self._demoted_niceness)  # PRIO_PROCESS would demote one thread
            next_look = min(child.deadline, now + max(child.cpu_seconds - used, 0.005))
            if not child.demoted:
                next_look = min(next_look, child.started + DEMOTED_AFTER_SECONDS)
            heapq.heappush(self._timers, (max(next_look, now + 0.001), pid, call))

    def _kill(self, pid: int | None, why: int) -> None:
        if pid is None:
            return
        self._children[pid].why = why
        os.kill(pid, signal.SIGKILL)


def _resident_bytes_of_a_child() -> int:
    """Return the resident bytes of a process that is forked here and ends at once."""
    pid = linux.fork()
    if pid == 0:
        os._exit(0)
    return os.wait4(pid, 0)[2].ru_maxrss * 1024


def address_space_bytes() -> int:
    """Return the bytes of this process's address space, found without /proc: the least RLIMIT_AS that grants a page.

    >>> address_space_bytes() > 1 << 20
    True
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    low, high = 0, 1 << 47
    while high - low > 4096:
        middle = (low + high) // 2
        resource.setrlimit(resource.RLIMIT_AS, (middle, hard))
        try:
            mmap.mmap(-1, 4096).close()
            high = middle
        except (OSError, MemoryError):
            low = middle
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return high
