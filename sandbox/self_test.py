"""Which tier of isolation holds on this machine: found by starting it and really trying to escape, never assumed.

The probe below is a tool like any other. It runs through the service's own pool, tries what hostile tools try and
reports what succeeded. One success, and the tier does not count.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import pydantic

from sandbox.errors import SandboxError
from sandbox.execution import Execution
from sandbox.isolation import Tier, layers_of
from sandbox.jail.launcher import SANDBOX_UID
from sandbox.packages import NO_PACKAGES, AllowedPackages, PackageUnavailable, outside
from sandbox.pool import Pool
from sandbox.protocol import ExecuteRequest, Limits
from sandbox.worker import ServiceFault

PROBE = """
import ctypes, errno, fcntl, os, socket, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {  # x86_64, aarch64
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "kill": (62, 129), "tgkill": (234, 131),
    "ptrace": (101, 117), "setuid": (105, 146), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "mknodat": (259, 33),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "memfd_create": (319, 279),
    "add_key": (248, 217), "keyctl": (250, 219), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "flock": (73, 32),
    "personality": (135, 92), "init_module": (175, 105), "kexec_load": (246, 104), "reboot": (169, 142),
    "swapon": (167, 224), "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "clock_settime": (227, 112), "sethostname": (170, 161), "seccomp": (317, 277),
    "mq_open": (240, 180), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "landlock_create_ruleset": (444, 444), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "fchmodat2": (452, 452),
    "file_setattr": (469, 469), "openat2": (437, 437), "fallocate": (285, 47), "getpriority": (140, 141),
    "connect": (42, 203), "bind": (49, 200), "sendmsg": (46, 211), "sendmmsg": (307, 269), "recvmsg": (47, 212),
    "get_robust_list": (274, 100), "mincore": (27, 232), "fadvise64": (221, 223), "sysinfo": (99, 179),
}
CHANGES = {  # which only a tool with files of its own may make
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "utimensat": (280, 88), "truncate": (76, 45),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "unlink": (87, None), "unlinkat": (263, 35), "mkdir": (83, None),
    "mkdirat": (258, 34), "rmdir": (84, None), "creat": (85, None),
}

def probe(canary, outside, tmp):
    socket_path = outside + "/socket"
    column = 1 if os.uname().machine == "aarch64" else 0
    escapes = []
    for name, numbers in (NUMBERS if tmp else NUMBERS | CHANGES).items():
        if numbers[column] is not None:
            ctypes.set_errno(0)
            # Arguments that no kernel accepts: only the filter's EPERM (or a call that is not there) is an answer.
            result = libc.syscall(ctypes.c_long(numbers[column]), *[ctypes.c_long(-1)] * 6)
            if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
                escapes.append(f"system call {name} is not filtered")
    families = {name: getattr(socket, name) for name in dir(socket) if name.startswith("AF_")}
    for name, family in sorted(families.items()):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind).close()
                escapes.append(f"a socket of {name} can be made")
            except OSError:
                pass
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for address in (socket_path, "\\0" + socket_path[1:]):
        try:
            ours.sendto(b"escape", address)
            escapes.append("a datagram can be sent to a socket of the host")
        except PermissionError as error:
            if error.errno != errno.EPERM:  # Landlock's, which knows no sockets with a path
                escapes.append("a datagram with an address is not filtered")
        except OSError:
            escapes.append("a datagram with an address is not filtered")
    for option in (7, 8, 32, 33):  # SO_SNDBUF, SO_RCVBUF, and both by force
        try:
            ours.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
            escapes.append("the buffer of a socket can be enlarged")
        except PermissionError:
            pass
    ours.close(), theirs.close()
    # The process group, session, cores and clock of a process that is there, a wake for anybody, descriptors of a
    # thread's own (by arguments that the kernel would not accept either).
    refused = {
        "getpgid": (121, 155, (1,)), "getsid": (124, 156, (1,)), "sched_getaffinity": (204, 123, (1,)),
        "clock_gettime": (228, 113, ((~1 << 3) | 2,)), "futex": (202, 98, (id(escapes), 1, 1)),
        "clone": (56, 220, (0x10800,)), "close_range": (436, 436, (9, 8, 2)),
    }
    for name, numbers_and_words in refused.items():
        ctypes.set_errno(0)
        words = (numbers_and_words[column], *numbers_and_words[2], 0, 0, 0)
        if libc.syscall(*map(ctypes.c_long, words)) != -1 or ctypes.get_errno() != errno.EPERM:
            escapes.append(f"system call {name} is allowed with arguments that it may not have")
    try:
        os.utime(0)
        escapes.append("the times of the host's null device can be changed")
    except OSError:
        pass
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(writer, 1031, 1 << 18)  # F_SETPIPE_SZ
        escapes.append("a pipe can be enlarged")
    except PermissionError:
        pass
    os.close(reader), os.close(writer)
    end, started = threading.Event(), []
    threading.stack_size(1 << 16)
    try:
        while len(started) < 256:
            started.append(threading.Thread(target=end.wait))
            started[-1].start()
        escapes.append("threads are not bounded")
    except RuntimeError:
        if len(started) < 9:
            escapes.append("no thread can be started, or /proc does not show them")
    end.set()
    kept = []
    try:
        while len(kept) < 256:
            kept.append(os.dup(3))
        escapes.append("descriptors are not bounded")
    except OSError:
        pass
    for fd in kept:
        os.close(fd)
    secret = ("/etc/passwd", "/etc/hostname", "/proc/self/environ", "/proc/1/root", "/sys/kernel", "/dev/shm")
    for path in (canary, *secret):
        try:
            os.close(os.open(path, os.O_RDONLY))
            escapes.append(f"{path if path != canary else 'a file of the host'} can be read")
        except OSError:
            pass
    for path in (outside, "/", os.path.dirname(os.__file__)):
        try:
            os.close(os.open(f"{path}/escape", os.O_CREAT | os.O_WRONLY))
            escapes.append(f"{path if path != outside else 'a directory of the host'} can be written")
        except OSError:
            pass
    for path in (canary, outside):
        for name, change in (
            ("mode", lambda: os.chmod(path, 0o666)), ("times", lambda: os.utime(path, (1, 1))),
            ("owner", lambda: os.chown(path, os.getuid(), os.getgid())), ("name", lambda: os.rename(path, path + "x")),
            ("size", lambda: os.truncate(path, 0)), ("attributes", lambda: os.setxattr(path, "user.escape", b"x")),
            ("content", lambda: os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))),
            ("links", lambda: os.link(path, outside + "/link")), ("existence", lambda: os.remove(path)),
        ):
            try:
                change()
                escapes.append(f"the {name} of {'a file' if path == canary else 'a directory'} can be changed")
            except OSError:
                pass
    for name, words in (("fork", lambda: os.fork()), ("exec", lambda: os.execv("/bin/sh", ["sh", "-c", "exit"]))):
        try:
            if words() == 0:
                os._exit(0)
            escapes.append(f"{name} works")
        except OSError:
            pass
    if os.environ or b"PYTHON" in (ctypes.c_char_p.in_dll(ctypes.CDLL(None), "environ").value or b""):
        escapes.append("an environment is visible")
    for fd in range(256):
        try:
            os.fstat(fd)
        except OSError:
            continue
        if fd > 3:
            escapes.append(f"descriptor {fd} is inherited")
    if 0 in os.getresuid():
        escapes.append("the tool runs as root")
    if libc.prctl(39, 0, 0, 0, 0) != 1:
        escapes.append("no_new_privs is not set")
    if libc.prctl(21, 0, 0, 0, 0) != 2:
        escapes.append("no seccomp filter is active")
    try:
        bytearray(1 << 30)
        escapes.append("the memory limit does not hold")
    except MemoryError:
        pass
    if tmp:
        with open("/tmp/full", "wb") as file:
            try:
                for _ in range(64):
                    file.write(bytes(1 << 20))
                file.flush()
                escapes.append("/tmp is not bounded")
            except OSError:
                pass
    return escapes
"""

PACKAGE_PROBE = """
import importlib, os, sys

COMPUTATIONS = {
    "dateutil": "__import__('dateutil.parser').parser.isoparse('2026-01-31').day == 31",
    "numpy": "float(numpy.dot(numpy.arange(4.0), numpy.arange(4.0))) == 14.0 and numpy.linalg.det(numpy.eye(2)) == 1",
    "pandas": "int(pandas.DataFrame({'a': [1, 2], 'b': [3, 4]}).sum().sum()) == 10",
    "scipy": "abs(__import__('scipy.special').special.gamma(5) - 24) < 1e-9",
    "sympy": "sympy.diff(sympy.Symbol('x') ** 2) == 2 * sympy.Symbol('x')",
}

def probe(modules, outside, files):
    escapes = []
    for name in modules:
        try:
            module = importlib.import_module(name)
            if not eval(COMPUTATIONS.get(name, "bool(dir(module))"), {name: module, "module": module}):
                escapes.append(f"{name} computes something else than it should")
        except BaseException as error:
            escapes.append(f"{name} cannot be used: {type(error).__name__}: {error}")
            continue
        path = getattr(module, "__file__", None)
        if path is None:
            continue
        folder = os.path.dirname(path)
        # Changes nothing of its own choice: where one of them succeeds, what is there is set again.
        for what, change in (
            ("content", lambda: os.close(os.open(path, os.O_RDWR))),
            ("mode", lambda: os.chmod(path, os.stat(path).st_mode & 0o7777)),
            ("times", lambda: os.utime(path, ns=(os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns))),
            ("name", lambda: os.rename(path, path)), ("links", lambda: os.link(path, folder + "/escape")),
            ("folder", lambda: os.close(os.open(folder + "/escape", os.O_CREAT | os.O_WRONLY))),
        ):
            try:
                change()
                escapes.append(f"the {what} of {name}'s files can be changed")
            except OSError:
                pass
    for name in outside:
        try:
            importlib.import_module(name)
            escapes.append(f"the module {name} is not of the packages that are allowed, and can be imported")
        except (ImportError, OSError):
            pass
    for path in files:
        try:
            os.close(os.open(path, os.O_RDONLY))
            escapes.append(f"{path} is no file of the packages that are allowed, and can be read")
        except OSError:
            pass
    return escapes
"""

_PYTHON = "import sys\ndef version(): return '%d.%d.%d' % sys.version_info[:3]\n"

_FIXES = {
    Tier.NAMESPACES: (
        "allow unprivileged user namespaces (sysctl user.max_user_namespaces > 0, kernel.unprivileged_userns_clone=1, "
        "on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0 or a profile for this Python; in Docker a seccomp "
        "profile that allows unshare, setns, mount, umount2 and pivot_root, see docs/sandbox.md)"
    ),
    Tier.LANDLOCK: (
        "Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK and `landlock` in the kernel's `lsm=` list, seccomp "
        "allowed, and a Python that every user may read (or start the service as an ordinary user)"
    ),
}


class IsolationUnavailable(SandboxError):
    """No tier that is strong enough holds on this machine; the message says why and what to do."""


@dataclass(frozen=True)
class Isolation:
    """The tier that held, its layers, the version of the tools' Python, and why stronger tiers did not hold."""

    tier: Tier
    layers: dict[str, bool]
    python: str
    refused: dict[str, str] = field(default_factory=dict)
    packages: AllowedPackages = NO_PACKAGES
    """Those that tools may import, each of which was probed."""


async def establish(minimum: Tier, packages: AllowedPackages = NO_PACKAGES) -> Isolation:
    """Establish the strongest tier that withstands the probe, and that tools may import each of the packages there.

    Raises:
        IsolationUnavailable: none of `minimum` or above does; the message says why, and how to have each.
        PackageUnavailable: the tier withstands it without packages, and one of these cannot be had there.
    """
    refused: dict[str, str] = {}
    for tier in [Tier.NAMESPACES] if minimum is Tier.NAMESPACES else Tier:
        try:
            layers, python = await _probe(tier)
        except ServiceFault as error:
            refused[tier] = str(error)
            continue
        if packages.modules:
            await _probe_with_packages(tier, packages)
        return Isolation(tier, layers, python, refused, packages)
    lines = [f"no isolation of at least the tier `{minimum}` holds on this machine"]
    for name, why in refused.items():
        lines += [f"  {name}: {why}", f"    to have it: {_FIXES[Tier(name)]}"]
    raise IsolationUnavailable("\n".join(lines))


async def _probe_with_packages(tier: Tier, packages: AllowedPackages) -> None:
    """See that each package can be used, that none weakens the tier, and that no other module has come in with them.

    A weaker tier is never tried for a package's sake.

    Raises:
        PackageUnavailable: the message names the package.
    """
    where = f"in the tier `{tier}`"
    # Where the weaker tiers show paths of the host: files of ours, and of what we import ourselves.
    modules_outside, files_outside = outside(packages, in_namespaces=tier is Tier.NAMESPACES)
    files_outside += [__file__, *([] if "pydantic" in packages.modules else [pydantic.__file__])]
    try:
        await _probe(tier, packages)
        pool = Pool(tier, workers=1, max_children=2, packages=packages)
        try:
            await pool.start()
            execution = Execution(pool)
            for position, (name, modules) in enumerate(packages.modules.items()):
                is_first = position == 0  # once for all of them
                request = ExecuteRequest(
                    source=PACKAGE_PROBE,
                    function="probe",
                    arguments={
                        "modules": [module for module in modules if not module.startswith("_")],
                        "outside": modules_outside if is_first else [],
                        "files": files_outside if is_first else [],
                    },
                    limits=Limits(wall_seconds=60, cpu_seconds=30),
                )
                reply = await execution.execute("self-test", request)
                if reply["status"] != "ok":
                    raise ServiceFault(f"{name}: {reply['error']['kind']}: {reply['error']['message']}")
                if reply["value"]:
                    raise ServiceFault("; ".join(reply["value"]))
        finally:
            await pool.close()
    except ServiceFault as error:
        raise PackageUnavailable(f"expected that tools can import {packages} {where}, found that {error}") from None


async def _probe(tier: Tier, packages: AllowedPackages = NO_PACKAGES) -> tuple[dict[str, bool], str]:
    """The active layers and the version of Python.

    Raises:
        ServiceFault: the tier does not hold.
    """
    pool = Pool(tier, workers=1, max_children=2, packages=packages)
    try:
        await pool.start()
        with _bait() as (canary, outside):
            request = ExecuteRequest(
                source=PROBE,
                function="probe",
                arguments={"canary": canary, "outside": outside, "tmp": tier is Tier.NAMESPACES},
                limits=Limits(wall_seconds=20, cpu_seconds=10),
            )
            # Looked at from outside as well: a change that the probe made and could not notice counts as an escape.
            execution = Execution(pool)
            before = _seen_from_outside(canary, outside)
            reply = await execution.execute("self-test", request)
            changed = _seen_from_outside(canary, outside) != before
        if reply["status"] != "ok":
            raise ServiceFault(f"the self-test did not finish: {reply['error']['kind']}: {reply['error']['message']}")
        if reply["value"]:
            raise ServiceFault(f"the self-test escaped: {'; '.join(reply['value'])}")
        if changed:
            raise ServiceFault("the self-test escaped: it changed a file of the host and did not say so")
        python = await execution.execute("self-test", ExecuteRequest(source=_PYTHON, function="version"))
        worker = pool.workers[0]
        probed = {"seccomp": True, "no_new_privs": True, "rlimits": True}
        return layers_of(tier, worker.process.pid) | worker.layers | probed, str(python["value"])
    finally:
        await pool.close()


@contextlib.contextmanager
def _bait() -> Iterator[tuple[str, str]]:
    """A file and a directory of the host that the tools' own user owns, and no tool should touch."""
    with tempfile.TemporaryDirectory(prefix="sandbox-self-test-") as folder:
        path = os.path.join(folder, "canary")
        with open(path, "w") as file:
            file.write(secrets.token_hex(16))
        for bait, mode in ((path, 0o644), (folder, 0o777)):
            os.chmod(bait, mode)
            if os.geteuid() == 0:
                os.chown(bait, SANDBOX_UID, SANDBOX_UID)
        yield path, folder


def _seen_from_outside(*paths: str) -> list[tuple[int, ...]]:
    """What any change to a file leaves behind, whatever else it sets back: the kernel's own time of change."""
    found = [os.stat(path) for path in paths if os.path.exists(path)]
    return [(status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_ctime_ns) for status in found]
