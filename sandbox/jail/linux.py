"""The Linux system calls of isolation that Python's standard library does not offer, through ctypes.

Every function raises OSError with the kernel's errno; none of them hides a failure.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from collections.abc import Callable

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
"""Flags of all kinds of namespaces but the user namespace, which is entered first (`launcher.unshare_user`)."""

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
MOUNT_READ_ONLY = 1

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
ADDR_NO_RANDOMIZE = 0x0040000
SIGKILL = 9

CAP_SYS_CHROOT = 18
CAP_SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522

_MACHINES = ("x86_64", "aarch64")
_NUMBERS = {  # of system calls, on these machines
    "pivot_root": (155, 41), "capset": (126, 91), "prctl": (157, 167), "seccomp": (317, 277), "pidfd_open": (434, 434),
    "mount_setattr": (442, 442), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446), "setns": (308, 268),
}  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)
for _name in ("setns", "prctl", "unshare", "mount", "umount2", "personality", "syscall"):
    getattr(libc, _name)  # looked up now: in a call's process the lookup would touch the tables of every library
_syscall = libc.syscall
_syscall.restype = ctypes.c_long


def machine() -> str:
    """Return the architecture's name as the kernel says it, after checking that this package knows its system calls."""
    name = platform.machine()
    if name not in _MACHINES:
        raise OSError(f"the sandbox knows the system calls of {_MACHINES}, this machine is {name!r}")
    return name


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _number(name: str) -> ctypes.c_long:
    return ctypes.c_long(_NUMBERS[name][_MACHINES.index(machine())])


def call(name: str, *words: object) -> int:
    """Make a system call that the C library has no function for."""
    return _check(_syscall(_number(name), *words), name)


def bound(name: str, *words: object) -> Callable[[], None]:
    """Return a function that makes one system call.

    It runs once in every call's process, where to make the arguments, or to look functions up, would cost as much as
    the system call: all is bound in advance.
    """
    get_errno, function, number = ctypes.get_errno, _syscall, _number(name)

    def make() -> None:
        if function(number, *words) < 0:
            raise OSError(get_errno(), name)

    return make


_fork = ctypes.PyDLL(None, use_errno=True).fork


def fork() -> int:
    """Do fork(2) without Python's own hooks, for a process with one thread: they would touch 200 pages in every child.

    The hooks renew locks that other threads might hold and reseed `random`; neither is needed here.
    """
    return _check(_fork(), "fork")


def unshare(flags: int) -> None:
    """Move this process (for CLONE_NEWPID: its next children) into new namespaces."""
    _check(libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def setns(fd: int, flags: int) -> None:
    """Enter the namespaces of `fd`; with a pidfd of oneself and CLONE_NEWPID it undoes an earlier unshare of pids."""
    _check(libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), "setns")


def user_namespace_enterer(descriptor: int) -> Callable[[], None]:
    """Return a function that enters the user namespace of a descriptor for ever."""
    return bound("setns", ctypes.c_int(descriptor), ctypes.c_int(CLONE_NEWUSER))


def pidfd_open(pid: int) -> int:
    """Return a descriptor of a process. `os` lacks this function if Python was built on an old system."""
    return call("pidfd_open", ctypes.c_int(pid), ctypes.c_uint(0))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Do mount(2)."""
    words = kind.encode() if kind is not None else None, ctypes.c_ulong(flags), options.encode() or None
    _check(libc.mount(source.encode(), target.encode(), *words), f"mount {kind or 'bind'} on {target}")


def unmount_detached(target: str) -> None:
    """Lazily unmount `target`."""
    _check(libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def restrict_mount(target: str, attributes: int) -> None:
    """Add attributes, and nosuid and nodev, to a mount and all that are mounted below it (Linux 5.12)."""
    nosuid, nodev, recursive, here = 2, 4, 0x8000, -100
    added = struct.pack("QQQQ", attributes | nosuid | nodev, 0, 0, 0)
    words = ctypes.c_int(here), target.encode(), ctypes.c_uint(recursive), added, ctypes.c_size_t(len(added))
    call("mount_setattr", *words)


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace and leave the former root at `old`."""
    call("pivot_root", new.encode(), old.encode())


def become_user(uid: int) -> None:
    """Leave root for ever: become this user and group, without others; nothing happens to an ordinary user."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def open_null_as(*descriptors: int) -> None:
    """Make each of these descriptors /dev/null, opened anew."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def prctl(option: int, *arguments: int) -> None:
    """Do prctl(2) with integer arguments; the rest are zeros."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _check(libc.prctl(ctypes.c_int(option), *padded), f"prctl({option})")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, SIGKILL)


def fix_addresses() -> None:
    """Switch off address-space randomisation for the next exec, so that runs repeat."""
    _check(libc.personality(ctypes.c_ulong(ADDR_NO_RANDOMIZE)), "personality(ADDR_NO_RANDOMIZE)")


def stack_setter() -> Callable[[int], None]:
    """Return a function that sets how many bytes of stack a new thread has, whether Python or a library starts it."""
    attributes = ctypes.create_string_buffer(128)  # a pthread_attr_t has 56 bytes, 64 on aarch64
    set_size, set_default = libc.pthread_attr_setstacksize, libc.pthread_setattr_default_np
    number = libc.pthread_attr_init(attributes)

    def set_bytes(size: int) -> None:
        error = number or set_size(attributes, ctypes.c_size_t(size)) or set_default(attributes)
        if error:
            raise OSError(error, f"pthread_setattr_default_np: {os.strerror(error)}")

    return set_bytes


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(ctypes.c_char)))


def _filter_program(instructions: bytes) -> _SockFprog:
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    return _SockFprog(len(instructions) // 8, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_char)))


def filter_installer(instructions: bytes) -> Callable[[], None]:
    """Return a function that restricts its process, and all its children, to a filter's calls; needs no_new_privs."""
    option, mode, zero = map(ctypes.c_ulong, (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, 0))
    return bound("prctl", option, mode, ctypes.byref(_filter_program(instructions)), zero, zero)


def capability_setter(*capabilities: int) -> Callable[[], None]:
    """Return a function that leaves its process exactly these capabilities, all below 32."""
    mask = sum(1 << capability for capability in capabilities)
    header, data = _CapHeader(_CAPABILITY_VERSION_3, 0), (_CapData * 2)(_CapData(mask, mask, mask), _CapData(0, 0, 0))
    return bound("capset", ctypes.byref(header), ctypes.byref(data))


_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
_SECCOMP_IOCTL_NOTIF_RECV, _SECCOMP_IOCTL_NOTIF_SEND = 0xC0502100, 0xC0182101
_SECCOMP_USER_NOTIF_FLAG_CONTINUE = 1
_NOTICE_BYTES = 80  # id, process, flags, the system call


def listen(instructions: bytes) -> int:
    """Install a filter whose USER_NOTIF verdicts wait on the descriptor that is returned; needs no_new_privs."""
    program = _filter_program(instructions)
    words = (_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER)
    return call("seccomp", *map(ctypes.c_ulong, words), ctypes.byref(program))


def hear(listener: int) -> tuple[int, int]:
    """Return the id of a system call that waits for an answer, and the number of its thread."""
    notice = bytearray(_NOTICE_BYTES)
    fcntl.ioctl(listener, _SECCOMP_IOCTL_NOTIF_RECV, notice)
    call, thread = struct.unpack_from("=QI", notice)
    return call, thread


def answer(listener: int, call: int, error: int) -> None:
    """Let the call go on (0), or have it fail with an errno."""
    flags = 0 if error else _SECCOMP_USER_NOTIF_FLAG_CONTINUE
    fcntl.ioctl(listener, _SECCOMP_IOCTL_NOTIF_SEND, struct.pack("=QqiI", call, 0, -error, flags))
