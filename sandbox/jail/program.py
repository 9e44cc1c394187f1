"""Confines one program of others, such as a harness: `python -I -S -c "…program.main()" '<json plan>'`.

The program may run for long, and may run code that a model wrote. These walls stand between it and the machine:

- fresh user, mount, pid, network, IPC, UTS and cgroup namespaces, without a capability in any of them;
- the unprivileged user of the sandbox, even if root starts the program;
- a filter of system calls: it allows those of a tool, and a few more that `seccomp` lists with their reasons;
- a root in memory (tmpfs). It has /usr and the plan's `readable` paths, read-only; the plan's `folder`, writable; its
  own /tmp; and five devices. It has no home, no /etc, no /proc and no socket of a service;
- a network with only a loopback, on which only the starter listens. A socket belongs to the namespace in which it was
  made, so the listening sockets of `ports` are made here and sent to the starter over `control_fd`. A plan with
  `has_network` leaves this wall out, for a tool server that uses services on the internet;
- rlimits: files, descriptors and processes of the program; memory and processor time of each of its processes;
- an end: if the process that started the program ends, the kernel ends the program and all processes that it started.

Three things are not protected. The kernel is shared. Nothing bounds the memory and time of all processes together. The
program may write anything into the files of its folder, so they prove nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

from sandbox.jail import limits, linux, root, seccomp
from sandbox.jail.launcher import SANDBOX_UID, unshare_user

READY, GO = b"ready", b"go"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SET_INTERFACE_FLAGS, _INTERFACE_UP = 0x8914, 1
_MOST_CAPABILITIES = 64


def main() -> NoReturn:
    """Build the walls, send the listening sockets, wait for `GO`, run the program, exit with its exit code."""
    plan = json.loads(sys.argv[1])
    control = None if plan["control_fd"] is None else socket.socket(fileno=plan["control_fd"])
    if control is not None:
        os.set_inheritable(control.fileno(), False)
    try:
        unshare_user()
        namespaces = linux.ALL_NAMESPACES
        linux.unshare(namespaces & ~linux.CLONE_NEWNET if plan["has_network"] else namespaces)
        # Only now: the kernel forgets this wish when a process gets new credentials, as in a new user namespace.
        linux.die_with_parent()
        if os.getppid() != plan["parent"]:
            os._exit(1)
        first = os.fork()
    except OSError as error:
        _say(control, error)
        os._exit(1)
    if first == 0:
        _become_first_process(plan, control)
    if control is not None:
        control.close()
    os._exit(_exit_code(os.waitpid(first, 0)[1]))


def _become_first_process(plan: dict[str, Any], control: socket.socket | None) -> NoReturn:
    """Run the program as a child, since a namespace's first process ignores signals that it does not handle."""
    try:
        linux.die_with_parent()
        _build_root(plan["readable"], plan["folder"])
        os.chdir(plan["folder"])
        listening = [] if plan["has_network"] else _listen(plan["ports"])
        _become_unprivileged()
        if control is not None:
            socket.send_fds(control, [READY], [each.fileno() for each in listening])
            for each in listening:
                each.close()
            if control.recv(len(GO)) != GO:
                os._exit(1)
        program = os.fork()
    except OSError as error:
        _say(control, error)
        os._exit(1)
    if program == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
        try:
            limits.limit_program(plan["memory_bytes"], plan["cpu_seconds"])
            linux.filter_installer(seccomp.whole_program_filter(linux.machine()))()
            os.execvpe(plan["command"][0], plan["command"], os.environ)
        except OSError as error:
            _say(control, error)
        os._exit(127)
    if control is not None:
        control.close()
    while True:
        ended, status = os.wait()  # it may be an orphan, which this first process adopts
        if ended == program:
            os._exit(_exit_code(status))


def _build_root(readable: list[str], folder: str) -> None:
    """Assemble the root from the real paths; a path that is a symbolic link outside is one inside, too."""
    places = [(path, os.path.realpath(path)) for path in (*readable, folder)]
    system = {path: os.readlink(path) if os.path.islink(path) else "" for path in _SYSTEM if os.path.lexists(path)}
    shown = [os.path.realpath(path) for path in system]
    root.begin("size=16m,mode=755")
    for name, options in (("/tmp", "mode=1777"), ("/dev/shm", "mode=1777,size=64m")):
        os.makedirs(root.INSIDE + name)
        linux.mount("none", root.INSIDE + name, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    # MS_REC: without the mounts below a path the kernel refuses to show it, since that would uncover hidden files.
    for path in _DEVICES:
        root.show(path, flags=linux.MS_REC)
    for path, target in system.items():
        if target:
            os.symlink(target, root.INSIDE + path)
        else:
            linux.restrict_mount(root.show(path, flags=linux.MS_REC), linux.MOUNT_READ_ONLY)
    for path, real in places:
        # A path inside a folder that is shown already is skipped: `root.show` would open it there for writing.
        if path == folder or not any(f"{real}/".startswith(f"{place}/") for place in shown):
            attributes = 0 if path == folder else linux.MOUNT_READ_ONLY
            linux.restrict_mount(root.show(real, flags=linux.MS_REC), attributes)
            shown.append(real)
        if not os.path.lexists(root.INSIDE + path):
            os.makedirs(os.path.dirname(root.INSIDE + path), exist_ok=True)
            os.symlink(real, root.INSIDE + path)
    root.enter()


def _listen(ports: list[int]) -> list[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, struct.pack("16sH14x", b"lo", _INTERFACE_UP))
    found = []
    for port in ports:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
        found.append(listening)
    return found


def _become_unprivileged() -> None:
    """Become the user of the sandbox, and give up all capabilities for ever."""
    for capability in range(_MOST_CAPABILITIES):
        with contextlib.suppress(OSError):  # this kernel knows fewer capabilities
            linux.prctl(linux.PR_CAPBSET_DROP, capability)
    linux.become_user(SANDBOX_UID)
    linux.die_with_parent()  # `become_user` has made the kernel forget the first call
    linux.capability_setter()()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def _say(control: socket.socket | None, error: OSError) -> None:
    """Tell the starter why the program does not begin: over the control socket or, without one, on standard error."""
    said = f"{type(error).__name__}: {error}"[:1000]
    with contextlib.suppress(OSError):  # the starter may have gone
        if control is None:
            os.write(2, f"{said}\n".encode())
        else:
            control.send(said.encode())


def _exit_code(status: int) -> int:
    """Return the exit code that a shell would give for a wait status."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
