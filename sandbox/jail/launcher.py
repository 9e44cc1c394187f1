"""Builds one jail and starts its zygote: `python -I -S -c "…launcher.main()" '<json plan>'`, one process per worker.

The launcher enters fresh namespaces, assembles a read-only root of the interpreter's own files, gives up root, and
executes the interpreter inside as process 1. It then only waits: when it ends, the kernel ends the jail, and when
the jail ends, it ends with the same status.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
from typing import NoReturn

from sandbox.jail import limits, linux, packages, root

SANDBOX_UID = 65534
HOME = "/python"
CHANNEL = 3  # the one descriptor of a call's process besides the standard ones
ZYGOTE_CAPABILITIES = (linux.CAP_SYS_ADMIN, linux.CAP_SYS_CHROOT)  # in its own user namespace, to enter slots
_ZYGOTE_PROGRAM = (
    "import posix, sys; sys.path.insert(0, posix.getcwd()); from sandbox.jail import zygote; zygote.main()"
)
_ATIME_FLAGS = ((os.ST_NOATIME, 1024), (os.ST_NODIRATIME, 2048), (os.ST_RELATIME, 1 << 21))


def main() -> NoReturn:
    """Read the plan from the command line, build the jail, start the zygote, wait for it."""
    plan = json.loads(sys.argv[1])
    linux.die_with_parent()
    linux.open_null_as(0, 1)  # the error stream is the server's log until the zygote leaves it
    if plan["control_fd"] == CHANNEL:  # which stays free for the channel of a call
        plan["control_fd"] = fcntl.fcntl(CHANNEL, fcntl.F_DUPFD, CHANNEL + 1)
    os.dup2(0, CHANNEL)
    try:
        status = _launch_in_namespaces(plan) if plan["tier"] == "namespaces" else _launch_without(plan)
    except Exception as error:  # noqa: BLE001  # the server judges it
        say_failure(plan["control_fd"], error)
        os._exit(1)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def say_failure(control_fd: int, error: BaseException) -> None:
    """Tell the server why there will be no jail."""
    with contextlib.suppress(OSError):  # the server may have gone
        os.write(control_fd, json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"[:1000]}).encode())


def _execute_zygote(python: str, home: str, libraries: str, plan: dict) -> NoReturn:
    """Turn this process into the zygote: an interpreter that reads its plan from a descriptor.

    A process can read the command line that it was started with, and so can the calls that it forks. So the command
    line holds no path but the interpreter's, and the plan no path of the host that the zygote does not need.
    """
    del plan["python"], plan["packages_folder"]
    os.chdir(plan["code_directory"])
    descriptor = os.memfd_create("plan", 0)
    with open(descriptor, "w", closefd=False) as file:
        json.dump(plan, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    command = [python, "-s", "-S", "-P", "-c", _ZYGOTE_PROGRAM, str(descriptor)]
    environment = {  # the tool itself sees none of it
        "PYTHONHOME": home,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "LD_LIBRARY_PATH": libraries,
        "LD_BIND_NOW": "1",  # else every call's process would bind a function at its first use
        "MALLOC_ARENA_MAX": "1",  # each thread's arena would take up to 128 MB of a call's address space
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
    }
    os.execve(python, command, environment)


def _launch_without(plan: dict) -> NoReturn:
    """Launch in the tier `landlock`: the zygote is a process of an unprivileged user on the host's file system."""
    linux.become_user(SANDBOX_UID)
    python = plan["python"]
    for path in (python["executable"], f"{python['stdlib']}/os.py", __file__, plan["packages_folder"] or "/"):
        if not os.access(path, os.R_OK):
            raise PermissionError(
                f"uid {os.geteuid()} cannot read {path}: install Python, this package and those of tools where every "
                "user may read them, or start the service as an ordinary user"
            )
    plan["slots"] = [[-1, -1, -1]] * (plan["max_children"] + 1)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.fix_addresses()
    _execute_zygote(python["executable"], python["stdlib"].rsplit("/lib/", 1)[0], "", plan)


def _launch_in_namespaces(plan: dict) -> int:
    unshare_user()
    linux.unshare(linux.ALL_NAMESPACES)
    zygote = os.fork()
    if zygote == 0:
        _become_zygote(plan)
    os.close(plan["control_fd"])  # the zygote's alone: the server sees its end when the zygote ends
    return os.waitpid(zygote, 0)[1]


def _become_zygote(plan: dict) -> NoReturn:
    linux.die_with_parent()
    socket.sethostname("sandbox")
    host_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)  # opened now: the new root has none
    _build_root(plan)
    plan["slots"] = _make_slots(plan, f"{os.readlink('self', dir_fd=host_proc)}/ns/mnt", host_proc)
    os.close(host_proc)
    # Uid 0 is given up for ever. Inside the jail, the zygote keeps the right to give each call its own namespaces.
    linux.prctl(linux.PR_SET_KEEPCAPS, 1)  # else `become_user` would drop every capability
    linux.become_user(SANDBOX_UID)
    linux.capability_setter(*ZYGOTE_CAPABILITIES)()
    linux.fix_addresses()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    for capability in ZYGOTE_CAPABILITIES:
        linux.prctl(linux.PR_CAP_AMBIENT, linux.PR_CAP_AMBIENT_RAISE, capability)
    _execute_zygote(f"{HOME}/bin/python", HOME, "/lib", plan)


def unshare_user() -> None:
    """Enter a user namespace that has one unprivileged uid and, if root started us, uid 0, which owns the files.

    A process that stays in the parent namespace writes the maps, since only such a one may map two ids.
    """
    uid, gid = os.geteuid(), os.getegid()
    here, there = socket.socketpair()
    us = os.open(f"/proc/{os.getpid()}", os.O_PATH | os.O_DIRECTORY)
    mapper = os.fork()
    if mapper == 0:
        here.close()
        there.recv(1)  # waits for the namespace whose maps are written below
        try:
            if uid == 0:
                both = f"0 0 1\n{SANDBOX_UID} {SANDBOX_UID} 1\n"
                _write_maps(us, "allow", both, both)
            else:
                _write_maps(us, "deny", f"{SANDBOX_UID} {uid} 1\n", f"{SANDBOX_UID} {gid} 1\n")
            there.send(b"mapped")
        except OSError as error:
            there.send(str(error).encode())
        os._exit(0)
    there.close()
    os.close(us)
    linux.unshare(linux.CLONE_NEWUSER)
    here.send(b"x")
    answer = here.recv(200)
    os.waitpid(mapper, 0)
    here.close()
    if answer != b"mapped":
        raise PermissionError(f"user namespace: {answer.decode()}")


def _write_maps(process: int, setgroups: str, uid_map: str, gid_map: str) -> None:
    """Write the maps of a process's user namespace; `process` is the descriptor of its folder in /proc."""
    for name, text in (("setgroups", setgroups), ("uid_map", uid_map), ("gid_map", gid_map)):
        try:
            descriptor = os.open(name, os.O_WRONLY, dir_fd=process)
            os.write(descriptor, text.encode())
            os.close(descriptor)
        except OSError as error:
            raise PermissionError(f"writing /proc/self/{name}: {error.strerror}") from None


def _build_root(plan: dict) -> None:
    """Assemble the read-only root: interpreter, standard library, shared libraries, our harness, an empty /tmp."""
    own_folder, code = os.path.dirname(__file__), {}
    for name in os.listdir(own_folder):
        if name.endswith(".py"):
            with open(os.path.join(own_folder, name)) as file:
                code[name] = file.read()
    root.begin("size=4m,nr_inodes=512,mode=755")
    python = plan["python"]
    stdlib = f"{HOME}/lib/python{python['version']}"
    for directory in (f"{HOME}/bin", f"{HOME}/lib", "/lib", "/tmp", "/harness/sandbox/jail"):
        os.makedirs(root.INSIDE + directory)
    binds = [(python["stdlib"], stdlib), (python["executable"], f"{HOME}/bin/python")]
    binds += [(path, f"/lib/{os.path.basename(path)}") for path in python["libraries"]]
    if python["loader"]:
        binds.append((python["loader"], python["loader_path"]))
    if os.path.isdir(f"{root.OUTSIDE}/usr/share/zoneinfo"):
        binds.append(("/usr/share/zoneinfo", "/usr/share/zoneinfo"))
    if plan["packages_folder"]:
        binds.append((plan["packages_folder"], packages.FOLDER))
    for source, target in binds:
        _show_read_only(source, target)
    # Read-only as well: the device can be written all the same, but its times and mode, which are the host's, cannot.
    _show_read_only("/dev/null", "/dev/null", linux.MS_NOSUID)
    for path, names in python["libraries"].items():
        for name in names:
            if name != os.path.basename(path):
                os.symlink(os.path.basename(path), f"{root.INSIDE}/lib/{name}")
    hidden = f"{root.INSIDE}{stdlib}/site-packages"  # the host's own packages are not for tools
    if os.path.isdir(hidden):
        linux.mount("none", hidden, "tmpfs", linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV, "size=4k")
    for name, text in code.items():
        with open(f"{root.INSIDE}/harness/sandbox/jail/{name}", "w") as file:
            file.write(text)
    root.enter()


def mount_tmp() -> None:
    """Mount a fresh, bounded /tmp in this mount namespace."""
    # Without access times: they would tell a call which files an earlier call has read.
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC | linux.MS_NOATIME
    owner = f"uid={SANDBOX_UID},gid={SANDBOX_UID}"
    linux.mount("tmp", "/tmp", "tmpfs", flags, f"size={limits.TMP_BYTES},nr_inodes=1024,mode=700,{owner}")


def _make_slots(plan: dict, own_namespace: str, host_proc: int) -> list[list[int]]:
    """Return three descriptors for each slot: a mount namespace with its own /tmp, its root folder, a user namespace.

    The first slot is the zygote's own, without a /tmp. Entering a namespace that exists is cheap; to make and unmake
    one for each call would wait for the kernel's RCU every time.
    """
    slots = []
    base = os.open(own_namespace, os.O_RDONLY, dir_fd=host_proc)
    for index in range(plan["max_children"] + 1):
        if index:
            linux.setns(base, linux.CLONE_NEWNS)
            linux.unshare(linux.CLONE_NEWNS)
            mount_tmp()
        mounts = os.open(own_namespace, os.O_RDONLY, dir_fd=host_proc)
        slots.append([mounts, os.open("/", os.O_PATH), _make_user_namespace(host_proc)])
    linux.setns(base, linux.CLONE_NEWNS)
    os.close(base)
    for fd in (fd for slot in slots for fd in slot):
        os.set_inheritable(fd, True)
    return slots


def _make_user_namespace(host_proc: int) -> int:
    """Return the descriptor of a user namespace below ours whose only user is the one that tools run as.

    The kernel counts the threads of a user in each user namespace apart. So a call that has one of its own can start
    as many as RLIMIT_NPROC says, however many its neighbours have.

    Raises:
        PermissionError: the kernel refused; the message says at which step.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    maker = os.fork()
    if maker == 0:
        try:
            linux.become_user(SANDBOX_UID)
            linux.unshare(linux.CLONE_NEWUSER)
            linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else the files of this process in /proc belong to root
            one_to_one = f"{SANDBOX_UID} {SANDBOX_UID} 1\n"
            _write_maps(os.open("self", os.O_PATH | os.O_DIRECTORY, dir_fd=host_proc), "deny", one_to_one, one_to_one)
            socket.send_fds(there, [b"made"], [os.open("self/ns/user", os.O_RDONLY, dir_fd=host_proc)])
        except OSError as error:
            there.send(str(error).encode())
        os._exit(0)
    there.close()
    said, descriptors, _, _ = socket.recv_fds(here, 500, 1)
    os.waitpid(maker, 0)
    here.close()
    if said != b"made":
        raise PermissionError(f"user namespace of a call: {said.decode()}")
    return descriptors[0]


def _show_read_only(path: str, at: str, flags: int = linux.MS_NOSUID | linux.MS_NODEV) -> None:
    target = root.show(path, at)
    found = os.statvfs(target).f_flag  # the host's flags must stay; a user namespace may only add some
    locked = (found & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)) | sum(
        mount_flag for stat_flag, mount_flag in _ATIME_FLAGS if found & stat_flag
    )
    linux.mount("none", target, None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | flags | locked)
