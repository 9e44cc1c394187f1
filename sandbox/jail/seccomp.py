"""The allow-list of system calls of a tool, as BPF programs for x86-64 and aarch64.

Where no namespace gives a tool files of its own, the list is shorter: Landlock does not ask who may change a file's
mode, owner, times or attributes, and before its third version not who may cut it off. There nothing that changes a file
or a folder is allowed, and files open for reading only.

Unknown calls fail with EPERM instead of killing: a library that probes for a feature falls back, and a tool that
tries something forbidden gets a PermissionError that the harness reports as `forbidden`.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# name: (x86_64, aarch64); -1 where the architecture has no such call.
_ALLOWED: dict[str, tuple[int, int]] = {
    # descriptors and files (the file system itself is read-only but for the private /tmp)
    "read": (0, 63), "write": (1, 64), "open": (2, -1), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80),
    "lstat": (6, -1), "poll": (7, -1), "lseek": (8, 62), "pread64": (17, 67), "pwrite64": (18, 68),
    "readv": (19, 65), "writev": (20, 66), "access": (21, -1), "pipe": (22, -1), "select": (23, -1),
    "dup": (32, 23), "dup2": (33, -1), "sendfile": (40, 71), "fsync": (74, 82), "fdatasync": (75, 83),
    "truncate": (76, 45), "ftruncate": (77, 46), "getdents": (78, -1), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "rename": (82, -1), "mkdir": (83, -1), "rmdir": (84, -1), "creat": (85, -1), "link": (86, -1),
    "unlink": (87, -1), "symlink": (88, -1), "readlink": (89, -1), "chmod": (90, -1), "fchmod": (91, 52),
    "umask": (95, 166), "statfs": (137, 43), "fstatfs": (138, 44), "getdents64": (217, 61),
    "openat": (257, 56), "mkdirat": (258, 34), "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38),
    "linkat": (265, 37), "symlinkat": (266, 36), "readlinkat": (267, 78), "fchmodat": (268, 53),
    "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73), "utimensat": (280, 88), "dup3": (292, 24),
    "pipe2": (293, 59), "preadv": (295, 69), "pwritev": (296, 70), "renameat2": (316, 276),
    "copy_file_range": (326, 285), "statx": (332, 291), "faccessat2": (439, 439),
    # events, and socket pairs within the process (asyncio wakes its loop through one)
    "epoll_create": (213, -1), "epoll_wait": (232, -1), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19), "epoll_create1": (291, 20), "recvfrom": (45, 207),
    "shutdown": (48, 210), "getsockname": (51, 204), "getpeername": (52, 205), "getsockopt": (55, 209),
    # memory, threads, time, signals to oneself
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "msync": (26, 227),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "pause": (34, -1),
    "alarm": (37, -1), "getitimer": (36, 102), "setitimer": (38, 103), "nanosleep": (35, 101),
    "sched_yield": (24, 124), "set_robust_list": (273, 99), "rseq": (334, 293), "set_tid_address": (218, 96),
    "membarrier": (324, 283), "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153), "getrandom": (318, 278),
    # who and where am I
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "getgid": (104, 176),
    "geteuid": (107, 175), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "getpgrp": (111, -1), "uname": (63, 160), "getrlimit": (97, 163),
    "getrusage": (98, 165), "getcpu": (309, 168), "arch_prctl": (158, -1),
}  # fmt: skip

# name: (x86_64, aarch64, index of the checked argument, the values it may have)
_AF_UNIX = 1
_CLOCKS = tuple(range(12))  # the system's; all above are clocks of devices and of one process, which may be another's
_ALLOWED_WITH_ARGUMENT: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "socketpair": (53, 199, 0, (_AF_UNIX,)),
    # none or CLOSE_RANGE_CLOEXEC; CLOSE_RANGE_UNSHARE gives a thread descriptors of its own
    "close_range": (436, 436, 2, (0, 4)),
    "prlimit64": (302, 261, 0, (0,)),  # only one's own limits, and so on
    "getpgid": (121, 155, 0, (0,)),
    "getsid": (124, 156, 0, (0,)),
    "sched_getaffinity": (204, 123, 0, (0,)),
    "clock_gettime": (228, 113, 0, _CLOCKS),
    "clock_getres": (229, 114, 0, _CLOCKS),
    "clock_nanosleep": (230, 115, 0, _CLOCKS),
    # dup, flags, the size of a pipe; no other size, no locks, leases, signals, seals
    "fcntl": (72, 25, 1, (0, 1, 2, 3, 4, 1030, 1032)),
    "setsockopt": (54, 208, 2, (20, 21)),  # limits of time; no larger buffers, which memory limits do not count
    "ioctl": (16, 29, 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # isatty, FIONREAD, FIONBIO, FIO(N)CLEX
    "prctl": (157, 167, 0, (3, 15, 16, 21, 39)),  # read: dumpable, seccomp, no_new_privs; name of a thread
}
# A futex that is not private is one for every process that has mapped its page, as all calls have the libraries'. To
# wait on one must be possible: the kernel wakes who joins a thread.
_FUTEX = (202, 98)
_OPERATION_OF_FUTEX = 1
_FUTEX_PRIVATE = 128
_FUTEX_WAITS = (0, 9, 9 | 256)  # FUTEX_WAIT, FUTEX_WAIT_BITSET, the same by the real-time clock
_SENDTO = (44, 206)  # send(2) is sendto(2) without an address, and only that is allowed: to the other end of the pair
_ADDRESS_OF_SENDTO = 4
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_CLONE_THREAD = 0x00010000
# A new thread shares the memory, the folder, the descriptors and the signal handlers of its process: CLONE_VM,
# CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD. A thread with descriptors of its own would have 64 more of them.
# The flags are the first argument on both architectures.
_OF_A_THREAD = 0x00000100 | 0x00000200 | 0x00000400 | 0x00000800 | _CLONE_THREAD
# C libraries add CLONE_SYSVSEM, CLONE_SETTLS, CLONE_PARENT_SETTID, CLONE_CHILD_CLEARTID, CLONE_DETACHED (which has no
# effect) and CLONE_CHILD_SETTID.
_OF_A_LIBRARY = 0x00040000 | 0x00080000 | 0x00100000 | 0x00200000 | 0x00400000 | 0x01000000
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag of clone(2), which no program may have
# What the zygote does that a tool may not, or not with every argument: names as above.
_ZYGOTE = {
    "clone": _CLONE, "wait4": (61, 260), "setpgid": (109, 154), "setpriority": (141, 140), "kill": (62, 129),
    "clock_gettime": (228, 113),  # the clocks of its calls' processes
    "recvmsg": (47, 212), "setns": (308, 268), "unshare": (272, 97), "mount": (165, 40), "umount2": (166, 39),
    # and its calls' processes before they add the second program
    "capset": (126, 91), "prctl": (157, 167), "landlock_restrict_self": (446, 446), "open": (2, -1),
    "openat": (257, 56),
    "ioctl": (16, 29),  # answers for threads
}  # fmt: skip
# Probed by libraries which fall back when told "not there"; EPERM would be taken for an error.
_ABSENT = {"clone3": _CLONE3}
# Calls that a harness's program may make and a tool may not: (x86_64, aarch64, the reason).
_OPEN_TO_PROGRAMS: dict[str, tuple[int, int, str]] = {
    "execve": (59, 221, "a console script starts its interpreter, and a program starts others"),
    "fork": (57, -1, "a program has child processes"),
    "vfork": (58, -1, "Python's subprocess starts its children so"),
    "wait4": (61, 260, "a program waits for its children"),
    "waitid": (247, 95, "subprocess looks so whether a child has ended"),
    "kill": (62, 129, "a program ends its children; its PID namespace holds nobody else"),
    "setsid": (112, 157, "subprocess's start_new_session; the namespace ends what leaves the session"),
    "connect": (42, 203, "the model is asked through a relay on the loopback of the program's own network namespace"),
    "bind": (49, 200, "the resolver and servers within the program; the namespace has nothing but that loopback"),
    "listen": (50, 201, "a server within the program, as for bind"),
    "accept": (43, 202, "a server within the program, as for bind"),
    "accept4": (288, 242, "a server within the program, as for bind"),
    "sendmsg": (46, 211, "asyncio writes several buffers at once"),
    "recvmsg": (47, 212, "the other half of sendmsg"),
    "flock": (73, 32, "filelock guards files of the run's folder"),
    "listxattr": (194, 11, "shutil.copy2 stops at an EPERM here; to set an attribute stays closed"),
    "llistxattr": (195, 12, "shutil.copy2 of a link, as for listxattr"),
    "sched_getaffinity": (204, 123, "pthread_getattr_np asks for a thread by its number"),
}
# Values of an argument that a program may give beside a tool's, and the reason.
_VALUES_FOR_PROGRAMS: dict[str, tuple[tuple[int, ...], str]] = {
    "fcntl": ((5, 6, 7), "SQLite's locks of files"),
    "setsockopt": (
        (1, 2, 4, 5, 6, 9),
        "no delay, reuse of an address and keep-alive of HTTP clients; no buffers, no BPF",
    ),
}
# A socket is of AF_UNIX, AF_INET or AF_INET6, a stream or datagrams, of TCP or UDP: another would load a kernel module.
_SOCKET = (41, 198)
_SOCKET_FLAGS = (0, 0x800, 0x80000, 0x80800)  # SOCK_NONBLOCK, SOCK_CLOEXEC
_SOCKETS_OF_PROGRAMS = (
    (0, (_AF_UNIX, 2, 10)),
    (1, tuple(kind | flags for kind in (1, 2) for flags in _SOCKET_FLAGS)),
    (2, (0, 6, 17)),
)
_FUTEX_WAKE = 1  # the locks of multiprocessing, which tqdm makes; glibc aborts if it is refused

_LD_W_ABS, _ALU_AND_K, _JMP_JEQ_K, _JMP_JGE_K, _JMP_JSET_K, _RET_K = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_RET_ALLOW = 0x7FFF0000
_RET_ERRNO = 0x00050000
_RET_USER_NOTIF = 0x7FC00000
_RET_KILL_PROCESS = 0x80000000
_OFFSET_NUMBER, _OFFSET_ARCH = 0, 4


def _offset_argument(index: int) -> int:
    return 16 + 8 * index  # low half, little endian; the high half follows


def _instruction(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, k)


_ALLOW, _REFUSE = _instruction(_RET_K, _RET_ALLOW), _instruction(_RET_K, _RET_ERRNO | errno.EPERM)


def filter_programs(machine: str, *, changes: bool = True) -> tuple[bytes, bytes]:
    """Return two BPF programs that together allow what a tool needs and answer EPERM to everything else.

    The first is for the zygote: it allows what the zygote itself does besides. Its calls inherit it, and add the
    second, which takes that away. The kernel compiles a program when it is installed, and a short one in no time.

    Args:
      machine: `x86_64` or `aarch64`.
      changes: whether files may be written, made, moved and given other modes and times (only where they are its own).

    >>> [len(program) // 8 for program in filter_programs("aarch64")]
    [355, 93]
    """
    column = 0 if machine == "x86_64" else 1
    rules = _rules(column, changes=changes)
    of_the_zygote = [numbers[column] for numbers in _ZYGOTE.values() if numbers[column] >= 0]
    first = rules | {number: [_ALLOW] for number in of_the_zygote}
    last = {number: rules.get(number, [_REFUSE]) for number in of_the_zygote}
    return _program(machine, first, _REFUSE), _program(machine, last, _ALLOW)


def _program(machine: str, rules: dict[int, list[bytes]], otherwise: bytes) -> bytes:
    """Assemble what is said of each system call, the commonest first, and `otherwise` of all the others."""
    program = [
        _instruction(_LD_W_ABS, _OFFSET_ARCH),
        _instruction(_JMP_JEQ_K, _AUDIT_ARCH[machine], 1, 0),
        _instruction(_RET_K, _RET_KILL_PROCESS),  # 32-bit entry points
        _instruction(_LD_W_ABS, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        program += [
            _instruction(_JMP_JGE_K, _X32_BIT, 0, 1),
            _instruction(_RET_K, _RET_KILL_PROCESS),
        ]
    for number, block in rules.items():
        program += [_instruction(_JMP_JEQ_K, number, 0, len(block)), *block]
    return b"".join([*program, otherwise])


def _rules(column: int, *, changes: bool) -> dict[int, list[bytes]]:
    """What a tool's system calls are answered, by number, the commonest first; each rule ends with a verdict."""
    refused = frozenset() if changes else _CHANGING_CALLS | {*_OPENING}
    allowed = sorted(
        (numbers[column] for name, numbers in _ALLOWED.items() if numbers[column] >= 0 and name not in refused),
        key=_hot_first(column),
    )
    rules = {_FUTEX[column]: _futex_rule()} | {number: [_ALLOW] for number in allowed}
    for x86_64, aarch64, argument, values in _ALLOWED_WITH_ARGUMENT.values():
        rule = [_instruction(_LD_W_ABS, _offset_argument(argument))]
        for value in values:
            rule += [_instruction(_JMP_JEQ_K, value, 0, 1), _ALLOW]
        rules[(x86_64, aarch64)[column]] = [*rule, _REFUSE]
    rules[_SENDTO[column]] = [
        _instruction(_LD_W_ABS, _offset_argument(_ADDRESS_OF_SENDTO)),
        _instruction(_JMP_JEQ_K, 0, 0, 3),
        _instruction(_LD_W_ABS, _offset_argument(_ADDRESS_OF_SENDTO) + 4),
        _instruction(_JMP_JEQ_K, 0, 0, 1),
        _ALLOW,
        _REFUSE,
    ]
    for name, argument in _OPENING.items():
        rules[_ALLOWED[name][column]] = [
            _instruction(_LD_W_ABS, _offset_argument(argument)),
            *([] if changes else [_instruction(_JMP_JSET_K, _OPENS_TO_CHANGE, 0, 1), _REFUSE]),
            _instruction(_JMP_JSET_K, _O_TMPFILE, 0, 1),
            _instruction(_RET_K, _RET_ERRNO | errno.EOPNOTSUPP),
            _ALLOW,
        ]
    rules[_CLONE[column]] = [
        _instruction(_LD_W_ABS, _offset_argument(0)),
        _instruction(_ALU_AND_K, ~_OF_A_LIBRARY & 0xFFFFFFFF),
        _instruction(_JMP_JEQ_K, _OF_A_THREAD, 0, 1),
        _ALLOW,
        _REFUSE,
    ]
    for numbers in _ABSENT.values():
        rules[numbers[column]] = [_instruction(_RET_K, _RET_ERRNO | errno.ENOSYS)]
    return {number: rule for number, rule in rules.items() if number >= 0}


def _futex_rule(operations: tuple[int, ...] = _FUTEX_WAITS) -> list[bytes]:
    rule = [
        _instruction(_LD_W_ABS, _offset_argument(_OPERATION_OF_FUTEX)),
        _instruction(_JMP_JSET_K, _FUTEX_PRIVATE, 0, 1),
        _ALLOW,
    ]
    for operation in operations:
        rule += [_instruction(_JMP_JEQ_K, operation, 0, 1), _ALLOW]
    return [*rule, _REFUSE]


def _all_of(*arguments: tuple[int, tuple[int, ...]]) -> list[bytes]:
    """Return the rule that allows a call if each of these arguments has one of its values."""
    rule = []
    for argument, values in arguments:
        # A value that is one of them skips the comparisons that are left, and the refusal.
        found = [_instruction(_JMP_JEQ_K, value, len(values) - index, 0) for index, value in enumerate(values)]
        rule += [_instruction(_LD_W_ABS, _offset_argument(argument)), *found, _REFUSE]
    return [*rule, _ALLOW]


def whole_program_filter(machine: str) -> bytes:
    """Return the BPF program of a harness's program: a tool's calls and those of the two tables for programs.

    Everything else fails with EPERM, as it does for a tool.

    >>> len(whole_program_filter("aarch64")) // 8 < 4096  # the kernel's maximum
    True
    """
    column = 0 if machine == "x86_64" else 1
    rules = _rules(column, changes=True)
    rules |= {numbers[column]: [_ALLOW] for *numbers, _ in _OPEN_TO_PROGRAMS.values() if numbers[column] >= 0}
    for name, (values, _) in _VALUES_FOR_PROGRAMS.items():
        *numbers, argument, of_tools = _ALLOWED_WITH_ARGUMENT[name]
        rules[numbers[column]] = _all_of((argument, (*of_tools, *values)))
    rules[_FUTEX[column]] = _futex_rule((*_FUTEX_WAITS, _FUTEX_WAKE))
    rules[_SOCKET[column]] = _all_of(*_SOCKETS_OF_PROGRAMS)
    rules[_CLONE[column]] = [
        _instruction(_LD_W_ABS, _offset_argument(0)),
        _instruction(_JMP_JSET_K, _NEW_NAMESPACES, 0, 1),
        _REFUSE,
        _ALLOW,
    ]
    return _program(machine, rules, _REFUSE)


def thread_filter_program(machine: str) -> bytes:
    """Return the BPF program that has every new thread wait for a word of who listens, and touches nothing else.

    >>> len(thread_filter_program("aarch64")) // 8
    8
    """
    return b"".join(
        [
            _instruction(_LD_W_ABS, _OFFSET_ARCH),
            _instruction(_JMP_JEQ_K, _AUDIT_ARCH[machine], 0, 5),
            _instruction(_LD_W_ABS, _OFFSET_NUMBER),
            _instruction(_JMP_JEQ_K, _CLONE[0 if machine == "x86_64" else 1], 0, 3),
            _instruction(_LD_W_ABS, _offset_argument(0)),
            _instruction(_JMP_JSET_K, _CLONE_THREAD, 0, 1),
            _instruction(_RET_K, _RET_USER_NOTIF),
            _instruction(_RET_K, _RET_ALLOW),
        ]
    )


_OPENING = {"open": 1, "openat": 2}  # and which of their arguments are the flags
_OPENS_TO_CHANGE = 0o1 | 0o2 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
# A file without a name changes no folder, but takes a number that the next call's files would count on from. Libraries
# make one with a name when they hear that the file system has none.
_O_TMPFILE = 0o20000000  # without O_DIRECTORY, which differs between the architectures
_CHANGING_CALLS = frozenset(
    {
        "truncate", "rename", "mkdir", "rmdir", "creat", "link", "unlink", "symlink", "chmod", "fchmod", "mkdirat",
        "unlinkat", "renameat", "linkat", "symlinkat", "fchmodat", "utimensat", "renameat2",
    }
)  # fmt: skip
_HOT = ("read", "write", "mmap", "munmap", "brk", "madvise", "openat", "fstat", "newfstatat", "lseek", "close")


def _hot_first(column: int) -> Callable[[int], tuple[int, int]]:
    """A sort key that puts the commonest calls at the head of the linear program."""
    hot = {_ALLOWED[name][column]: position for position, name in enumerate(_HOT)}
    return lambda number: (hot.get(number, len(hot)), number)
