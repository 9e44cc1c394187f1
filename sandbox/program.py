"""A program of others, confined: the command line that starts it behind the walls of `sandbox.jail.program`.

Programs of harnesses, their set-up, and tool servers that are started by a command are run in this way.

Decided: docs/decisions/benchmarks.md, “Programs of others are confined; where that cannot be, no harness runs”.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from sandbox.errors import SandboxError
from sandbox.interpreter import base_interpreter, isolated_command

SANDBOX_UID: Final = 65534  # as sandbox.jail.launcher has it
_START: Final = "from sandbox.jail import program; program.main()"
_OF_THE_NETWORK: Final = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/ssl", "/etc/pki"),
    *("/etc/ca-certificates", "/etc/localtime", "/etc/alternatives"),
)
"""Files of names, certificates and time that a program with a network needs; none of them holds a secret."""


class ProgramNotConfined(SandboxError):
    """A program of others cannot be confined here, and was not run; the message says why."""


def confined_command(
    command: Sequence[str],
    *,
    folder: Path,
    readable: Sequence[Path] = (),
    ports: Sequence[int] = (),
    control_fd: int | None = None,
    has_network: bool = False,
    cpu_seconds: int | None = None,
    memory_bytes: int | None = 16 << 30,
) -> list[str]:
    """Return the command line that runs a command confined; this process must start it, and its end ends it.

    The command may read the interpreter and `readable`, and write into `folder`. `cpu_seconds` and `memory_bytes` bound
    each of its processes.

    Args:
      ports: ports of its own loopback; their listening sockets are sent over `control_fd` before it begins.
      control_fd: a Unix socket that passes the sockets and the word to begin; None begins at once.
      has_network: whether it has the network of this machine; else it has a loopback of its own.

    Raises:
        ProgramNotConfined: this is not Linux, or the user's home lies in a folder that would be readable.
    """
    if sys.platform != "linux":
        raise ProgramNotConfined(cannot_confine(sys.platform))
    # The folders of the interpreter that environments are made from.
    interpreter = {Path(sys.base_prefix), Path(sys.base_exec_prefix), Path(base_interpreter()).parents[1]}
    shown = [*sorted(interpreter), *readable]
    shown += [Path(path) for path in _OF_THE_NETWORK if has_network and os.path.exists(path)]
    require_no_home_in([Path("/usr"), *shown])
    shown = [path for path in shown if not path.is_relative_to("/usr")]
    plan = {
        "control_fd": control_fd,
        "parent": os.getpid(),
        "readable": [str(path.absolute()) for path in shown],
        "folder": str(folder.absolute()),
        "ports": list(ports),
        "has_network": has_network,
        "cpu_seconds": cpu_seconds,
        "memory_bytes": memory_bytes,
        "command": list(command),
    }
    return isolated_command(_START, json.dumps(plan))


@cache
def why_not_confined() -> str | None:
    """Return the reason why this machine cannot confine a program; None if it can. One program is run to find out."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            command = confined_command([base_interpreter(), "-I", "-S", "-c", ""], folder=Path(folder))
        except ProgramNotConfined as error:
            return str(error)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, stdin=subprocess.DEVNULL
        )
    said = done.stderr.strip().splitlines()
    return None if not done.returncode else said[-1] if said else f"exit code {done.returncode}"


def cannot_confine(found: str) -> str:
    """Return the message of a machine that cannot confine a program."""
    return (
        f"this machine cannot confine programs of others, which needs Linux 5.12 with user namespaces: {found}; see to "
        "it that `unshare --user --net true` works"
    )


def require_no_home_in(folders: Sequence[Path]) -> None:
    """Require that no folder that a program may read holds the user's home.

    Raises:
        ProgramNotConfined: one does.
    """
    home = Path.home().resolve()
    for folder in folders:
        if home.is_relative_to(folder.resolve()):
            raise ProgramNotConfined(
                f"{folder} holds the user's home {home}, which no program of others may read; name folders below it, "
                "or use a Python that is installed in a folder of its own"
            )


@contextlib.contextmanager
def lent(folder: Path) -> Iterator[None]:
    """Lend a folder to a program, and take it back without the links, pipes and sockets that the program has made.

    Through one of these this process would later read or write somewhere else. If this process is root's, root's files
    in the folder belong to the sandbox's user meanwhile.
    """
    giver = os.geteuid()
    taker = giver or SANDBOX_UID
    known = set(_hand_over(folder, giver, taker, None))
    try:
        yield
    finally:
        _hand_over(folder, taker, giver, known)


def give(folder: Path) -> None:
    """Give the files of a folder to the user that confined programs run as, if this process is root's."""
    _hand_over(folder, os.geteuid(), os.geteuid() or SANDBOX_UID, None)


def _hand_over(folder: Path, giver: int, taker: int, known: set[tuple[str, str]] | None) -> list[tuple[str, str]]:
    """Change the owner of a folder's files, remove the links that are not known, return the others with their targets.

    Names are looked up in open folders, so that no link leads out of it.
    """
    links = []
    for top, folders, files, here in os.fwalk(folder):
        for name in (".", *folders, *files):
            with contextlib.suppress(FileNotFoundError):  # a program that is ending removes its files
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                    target = os.readlink(name, dir_fd=here) if stat.S_ISLNK(found.st_mode) else ""
                    if known is not None and (f"{top}/{name}", target) not in known:
                        os.unlink(name, dir_fd=here)
                        continue
                    links.append((f"{top}/{name}", target))
                if found.st_uid == giver != taker:
                    os.chown(name, taker, taker, dir_fd=here, follow_symlinks=False)
    return links
