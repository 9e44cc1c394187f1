"""The filters of system calls: one table of calls with the processes that may make them, one builder of BPF programs.

Three kinds of processes are filtered: a tool's call, the zygote that forks the calls, and a harness's program
(`program.py`). A call that is not in the table, or has another argument than the table allows, fails with EPERM instead
of a kill: a library that probes for a feature falls back, and a tool gets a PermissionError that the harness reports as
`forbidden`.

In the tier `landlock` a tool has no files of its own, and the list is shorter: Landlock does not restrict changes of a
file's mode, owner, times or attributes, and before its third version not those of its length. There a tool opens files
for reading only and changes nothing.
"""

from __future__ import annotations

import errno
import struct


def _numbers(text: str) -> dict[str, tuple[int, int]]:
    """Return the numbers on x86-64 and aarch64 by name; `-` (here -1) where the architecture has no such call.

    >>> _numbers("dup 32 23, dup2 33 -")
    {'dup': (32, 23), 'dup2': (33, -1)}
    """
    entries = (entry.split() for entry in text.replace("\n", " ").split(","))
    return {name: (int(x86_64), -1 if aarch64 == "-" else int(aarch64)) for name, x86_64, aarch64 in entries}


# All filtered processes may make these, with any arguments. The commonest are first: the kernel reads them in order.
TOOLS = _numbers(
    # descriptors and files (the file system itself is read-only but for the private /tmp)
    """
    read 0 63, write 1 64, mmap 9 222, munmap 11 215, brk 12 214, madvise 28 233, fstat 5 80, newfstatat 262 79,
    lseek 8 62, close 3 57, stat 4 -, lstat 6 -, poll 7 -, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66,
    access 21 -, pipe 22 -, select 23 -, dup 32 23, dup2 33 -, sendfile 40 71, fsync 74 82, fdatasync 75 83,
    ftruncate 77 46, getdents 78 -, getcwd 79 17, chdir 80 49, fchdir 81 50, readlink 89 -, umask 95 166,
    statfs 137 43, fstatfs 138 44, getdents64 217 61, readlinkat 267 78, faccessat 269 48, pselect6 270 72,
    ppoll 271 73, dup3 292 24, pipe2 293 59, preadv 295 69, pwritev 296 70, copy_file_range 326 285, statx 332 291,
    faccessat2 439 439,
    """
    # events, and socket pairs within the process (asyncio wakes its loop through one)
    """
    epoll_create 213 -, epoll_wait 232 -, epoll_ctl 233 21, epoll_pwait 281 22, eventfd2 290 19, epoll_create1 291 20,
    recvfrom 45 207, shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209,
    """
    # memory, threads, time, signals to oneself
    """
    mprotect 10 226, mremap 25 216, msync 26 227, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
    sigaltstack 131 132, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, pause 34 -, alarm 37 -,
    getitimer 36 102, setitimer 38 103, nanosleep 35 101, sched_yield 24 124, set_robust_list 273 99, rseq 334 293,
    set_tid_address 218 96, membarrier 324 283, restart_syscall 219 128, exit 60 93, exit_group 231 94,
    gettimeofday 96 169, time 201 -, times 100 153, getrandom 318 278,
    """
    # questions about oneself
    """
    getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177,
    getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgrp 111 -, uname 63 160, getrlimit 97 163,
    getrusage 98 165, getcpu 309 168, arch_prctl 158 -
    """
)
# Programs, and tools that have files of their own, which are the tools of the tier `namespaces`.
WITH_FILES = _numbers("""
    truncate 76 45, rename 82 -, mkdir 83 -, rmdir 84 -, creat 85 -, link 86 -, unlink 87 -, symlink 88 -, chmod 90 -,
    fchmod 91 52, mkdirat 258 34, unlinkat 263 35, renameat 264 38, linkat 265 37, symlinkat 266 36, fchmodat 268 53,
    utimensat 280 88, renameat2 316 276
""")
# The zygote. The calls that it forks inherit its filter and add a second one, which takes these away again.
ZYGOTE = _numbers("""
    wait4 61 260, setpgid 109 154, setpriority 141 140, kill 62 129, recvmsg 47 212, setns 308 268, unshare 272 97,
    mount 165 40, umount2 166 39, capset 126 91, landlock_restrict_self 446 446,
    clone 56 220, clock_gettime 228 113, prctl 157 167, open 2 -, openat 257 56, ioctl 16 29
""")
PROGRAMS = _numbers(
    # child processes, as Python's subprocess starts, watches and ends them; the PID namespace holds no other process
    "execve 59 221, fork 57 -, vfork 58 -, wait4 61 260, waitid 247 95, kill 62 129, setsid 112 157,"
    # the model behind a relay, and servers within the program: its network namespace has only a loopback of its own
    "connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242, sendmsg 46 211, recvmsg 47 212,"
    # filelock; shutil.copy2, which stops at an EPERM (to set an attribute stays closed); pthread_getattr_np
    "flock 73 32, listxattr 194 11, llistxattr 195 12, sched_getaffinity 204 123"
)
# Calls whose arguments are looked at, by the two tables below or by a rule of their own in `_rules`.
_WITH_ARGUMENTS = _numbers("""
    open 2 -, openat 257 56, futex 202 98, sendto 44 206, clone 56 220, clone3 435 435, socket 41 198,
    socketpair 53 199, close_range 436 436, prlimit64 302 261, getpgid 121 155, getsid 124 156,
    sched_getaffinity 204 123, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, fcntl 72 25,
    setsockopt 54 208, ioctl 16 29, prctl 157 167
""")
NUMBERS = TOOLS | WITH_FILES | ZYGOTE | PROGRAMS | _WITH_ARGUMENTS
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_CLOCKS = tuple(range(12))  # the system's; the numbers above are clocks of devices and of other processes
# The checked argument's index, and its values for all processes.
VALUES: dict[str, tuple[int, tuple[int, ...]]] = {
    "socketpair": (0, (_AF_UNIX,)),
    # none or CLOSE_RANGE_CLOEXEC; CLOSE_RANGE_UNSHARE gives a thread descriptors of its own
    "close_range": (2, (0, 4)),
    # about oneself only
    "prlimit64": (0, (0,)),
    "getpgid": (0, (0,)),
    "getsid": (0, (0,)),
    "sched_getaffinity": (0, (0,)),
    "clock_gettime": (0, _CLOCKS),
    "clock_getres": (0, _CLOCKS),
    "clock_nanosleep": (0, _CLOCKS),
    # dup, flags, the size of a pipe; no other size, no locks, leases, signals, seals
    "fcntl": (1, (0, 1, 2, 3, 4, 1030, 1032)),
    "setsockopt": (2, (20, 21)),  # limits of time; no larger buffers, which memory limits do not count
    "ioctl": (1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # isatty, FIONREAD, FIONBIO, FIO(N)CLEX
    "prctl": (0, (3, 15, 16, 21, 39)),  # read: dumpable, seccomp, no_new_privs; name of a thread
}
# Further values for programs.
VALUES_FOR_PROGRAMS: dict[str, tuple[int, ...]] = {
    "fcntl": (5, 6, 7),  # SQLite's locks of files
    "setsockopt": (1, 2, 4, 5, 6, 9),  # no delay, reuse of an address, keep-alive of HTTP clients; no buffers, no BPF
}
# A program's sockets are of AF_UNIX or the internet, streams or datagrams, TCP or UDP: others load kernel modules.
_SOCKET_FLAGS = (0, 0x800, 0x80000, 0x80800)  # SOCK_NONBLOCK, SOCK_CLOEXEC
_SOCKETS_OF_PROGRAMS = (
    (0, (_AF_UNIX, _AF_INET, _AF_INET6)),
    (1, tuple(kind | flags for kind in (1, 2) for flags in _SOCKET_FLAGS)),
    (2, (0, 6, 17)),
)
# A futex that is not private belongs to every process that has mapped its page, as all calls have the libraries'. A
# process must be able to wait on one, since the kernel wakes the thread that joins another one.
_FUTEX_PRIVATE = 128
_FUTEX_WAITS = (0, 9, 9 | 256)  # FUTEX_WAIT, FUTEX_WAIT_BITSET, the same by the real-time clock
_FUTEX_WAKE = 1  # for programs: the locks of multiprocessing, which tqdm makes; glibc aborts if it is refused
_CLONE_THREAD = 0x00010000
# A new thread shares the memory, the folder, the descriptors and the signal handlers of its process: CLONE_VM,
# CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD. A thread with descriptors of its own would have 64 more of them.
# The flags are the first argument on both architectures.
_OF_A_THREAD = 0x00000100 | 0x00000200 | 0x00000400 | 0x00000800 | _CLONE_THREAD
# C libraries add CLONE_SYSVSEM, CLONE_SETTLS, CLONE_PARENT_SETTID, CLONE_CHILD_CLEARTID, CLONE_DETACHED (which has no
# effect) and CLONE_CHILD_SETTID.
_OF_A_LIBRARY = 0x00040000 | 0x00080000 | 0x00100000 | 0x00200000 | 0x00400000 | 0x01000000
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag of clone(2), which no program may have
_OPENING = {"open": 1, "openat": 2}  # the index of the flags
_OPENS_TO_CHANGE = 0o1 | 0o2 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
# A file without a name changes no folder, but takes a number that the next call's files would count on from. Libraries
# make one with a name when they hear that the file system has none.
_O_TMPFILE = 0o20000000  # without O_DIRECTORY, which differs between the architectures

# The kernel's virtual machine: an instruction has a code, two jumps (if true, if false) and a constant.
_LD_W_ABS, _ALU_AND_K, _JMP_JEQ_K, _JMP_JGE_K, _JMP_JSET_K, _RET_K = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_RET_ALLOW = 0x7FFF0000
_RET_ERRNO = 0x00050000
_RET_USER_NOTIF = 0x7FC00000
_RET_KILL_PROCESS = 0x80000000
_OFFSET_NUMBER, _OFFSET_ARCH = 0, 4
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_MACHINES = list(_AUDIT_ARCH)
_X32_BIT = 0x40000000


def _offset_argument(index: int) -> int:
    return 16 + 8 * index  # low half, little endian; the high half follows


def _instruction(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, k)


_ALLOW, _REFUSE = _instruction(_RET_K, _RET_ALLOW), _instruction(_RET_K, _RET_ERRNO | errno.EPERM)


def filter_programs(machine: str, *, changes: bool = True) -> tuple[bytes, bytes]:
    """Return two BPF programs that together allow the calls that a tool needs and answer EPERM to all others.

    The first is the zygote's. Its calls inherit it and add the second, which answers the zygote's own calls as for a
    tool and lets the rest pass: a short program is quickly installed. `changes` says whether tools have files of their
    own, which they may write, make, move and change.

    >>> [len(program) // 8 for program in filter_programs("aarch64")]
    [324, 73]
    """
    of_a_tool = _rules(machine, changes=changes)
    of_the_zygote = of_a_tool | {key: [_ALLOW] for key in ZYGOTE}
    last = {name: of_a_tool.get(name, [_REFUSE]) for name in ZYGOTE}
    return _program(machine, of_the_zygote, _REFUSE), _program(machine, last, _ALLOW)


def whole_program_filter(machine: str) -> bytes:
    """Return the BPF program of a harness's program: a tool's calls and those for programs; EPERM to all others."""
    rules = _rules(machine, changes=True)
    for name, values in VALUES_FOR_PROGRAMS.items():
        index, of_all = VALUES[name]
        rules[name] = _all_of((index, (*of_all, *values)))
    rules |= {key: [_ALLOW] for key in PROGRAMS}
    rules["futex"] = _futex_rule((*_FUTEX_WAITS, _FUTEX_WAKE))
    rules["socket"] = _all_of(*_SOCKETS_OF_PROGRAMS)
    rules["clone"] = [
        _instruction(_LD_W_ABS, _offset_argument(0)),
        _instruction(_JMP_JSET_K, _NEW_NAMESPACES, 0, 1),
        _REFUSE,
        _ALLOW,
    ]
    return _program(machine, rules, _REFUSE)


def thread_filter_program(machine: str) -> bytes:
    """Return the BPF program that makes every new thread wait for an answer of the listener, and allows the rest."""
    return b"".join(
        [
            _instruction(_LD_W_ABS, _OFFSET_ARCH),
            _instruction(_JMP_JEQ_K, _AUDIT_ARCH[machine], 0, 5),
            _instruction(_LD_W_ABS, _OFFSET_NUMBER),
            _instruction(_JMP_JEQ_K, NUMBERS["clone"][_MACHINES.index(machine)], 0, 3),
            _instruction(_LD_W_ABS, _offset_argument(0)),
            _instruction(_JMP_JSET_K, _CLONE_THREAD, 0, 1),
            _instruction(_RET_K, _RET_USER_NOTIF),
            _instruction(_RET_K, _RET_ALLOW),
        ]
    )


def _rules(machine: str, *, changes: bool) -> dict[str, list[bytes]]:
    """Return the answers to a tool's system calls by name, the commonest first; each rule ends with a verdict."""
    rules = {"futex": _futex_rule(), **{key: [_ALLOW] for key in TOOLS}}
    if changes:
        rules |= {key: [_ALLOW] for key in WITH_FILES}
    rules |= {name: _all_of(condition) for name, condition in VALUES.items()}
    for name, index in _OPENING.items():
        rules[name] = [
            _instruction(_LD_W_ABS, _offset_argument(index)),
            *([] if changes else [_instruction(_JMP_JSET_K, _OPENS_TO_CHANGE, 0, 1), _REFUSE]),
            _instruction(_JMP_JSET_K, _O_TMPFILE, 0, 1),
            _instruction(_RET_K, _RET_ERRNO | errno.EOPNOTSUPP),
            _ALLOW,
        ]
    # send(2) is sendto(2) without an address, and only that is allowed: to the other end of a pair of one's own. The
    # address is the fifth argument, of which both halves must be zero.
    rules["sendto"] = [
        _instruction(_LD_W_ABS, _offset_argument(4)),
        _instruction(_JMP_JEQ_K, 0, 0, 3),
        _instruction(_LD_W_ABS, _offset_argument(4) + 4),
        _instruction(_JMP_JEQ_K, 0, 0, 1),
        _ALLOW,
        _REFUSE,
    ]
    # A fork bomb ends here: a tool's clone(2) makes a thread of its own process or nothing.
    rules["clone"] = [
        _instruction(_LD_W_ABS, _offset_argument(0)),
        _instruction(_ALU_AND_K, ~_OF_A_LIBRARY & 0xFFFFFFFF),
        _instruction(_JMP_JEQ_K, _OF_A_THREAD, 0, 1),
        _ALLOW,
        _REFUSE,
    ]
    # clone3(2) keeps its flags in memory, which a filter cannot read; C libraries fall back to clone if it is absent.
    rules["clone3"] = [_instruction(_RET_K, _RET_ERRNO | errno.ENOSYS)]
    return rules


def _futex_rule(operations: tuple[int, ...] = _FUTEX_WAITS) -> list[bytes]:
    private = [_instruction(_LD_W_ABS, _offset_argument(1)), _instruction(_JMP_JSET_K, _FUTEX_PRIVATE, 0, 1), _ALLOW]
    return [*private, *_all_of((1, operations))]


def _all_of(*conditions: tuple[int, tuple[int, ...]]) -> list[bytes]:
    """Return the rule that allows a call if each of these arguments has one of its values."""
    rule = []
    for index, values in conditions:
        # A value that is one of them skips the comparisons that are left, and the refusal.
        found = [_instruction(_JMP_JEQ_K, value, len(values) - place, 0) for place, value in enumerate(values)]
        rule += [_instruction(_LD_W_ABS, _offset_argument(index)), *found, _REFUSE]
    return [*rule, _ALLOW]


def _program(machine: str, rules: dict[str, list[bytes]], otherwise: bytes) -> bytes:
    """Assemble the rules of system calls, in their order, and the answer to all other calls."""
    program = [
        _instruction(_LD_W_ABS, _OFFSET_ARCH),
        _instruction(_JMP_JEQ_K, _AUDIT_ARCH[machine], 1, 0),
        _instruction(_RET_K, _RET_KILL_PROCESS),  # 32-bit entry points
        _instruction(_LD_W_ABS, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        program += [_instruction(_JMP_JGE_K, _X32_BIT, 0, 1), _instruction(_RET_K, _RET_KILL_PROCESS)]
    for name, rule in rules.items():
        number = NUMBERS[name][_MACHINES.index(machine)]
        if number >= 0:
            program += [_instruction(_JMP_JEQ_K, number, 0, len(rule)), *rule]
    return b"".join([*program, otherwise])
